"""What the programs in `scripts/` share: flags, the way they start and end, mutated graphs.

Importing it throws two switches that count only before TensorFlow's first import: the legacy
Keras, which programs that train need, and quiet logs. Programs, unlike the library, may do so.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
