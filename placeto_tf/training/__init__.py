"""Libraries that train policies; the programs in scripts/ are thin layers over them."""
