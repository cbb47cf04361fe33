"""The device pointer as methods."""
