"""The programs: flags -> a configuration -> one library call.

Installed as `placeto_tf.scripts`. Some of them train, which needs the legacy Keras; the switch
has to be thrown before TensorFlow is first imported, and programs, unlike the library, may do so.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
