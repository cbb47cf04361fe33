"""Placeto as methods."""
