"""Set before TensorFlow is first imported: the legacy Keras, no GPU, quiet logs; and a cache of
costs of its own, so that tests neither use nor fill the user's."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# oneDNN joins ops that share a device, so results would depend on the placement in the last bits;
# tests/placements/proof_test.py compares bits and needs it off.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="placeto_tf_tests_")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
