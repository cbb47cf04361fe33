"""Lets the tests here import the oracles beside them, whatever directory they are run from."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
