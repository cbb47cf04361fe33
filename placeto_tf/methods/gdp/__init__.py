"""GDP as methods."""
