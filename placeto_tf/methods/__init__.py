"""Every method: what it is, what it needs, and how it is run."""
