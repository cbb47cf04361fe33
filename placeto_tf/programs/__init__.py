"""Parts that the programs in `scripts/` share: flags, the way they start and end, mutated graphs.

Importing this package sets two environment variables, which have an effect only before TensorFlow's
first import: for the legacy Keras, which programs that train need, and for quiet logs. The library
itself must not set them; programs may.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
