"""How files that users name are read, and how results are published."""
