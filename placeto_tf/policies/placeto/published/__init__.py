"""The published process (Addanki et al. 2019): `scripts/train.py --preset=paper`."""
