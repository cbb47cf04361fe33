"""Parts that the programs in `scripts/` share: flags, the way they start and end, mutated graphs.

Importing it sets two environment variables that only count before TensorFlow's first import: for
the legacy Keras, which programs that train need, and for quiet logs. Programs, unlike the library,
may do so.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
