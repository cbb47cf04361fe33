"""Libraries that train policies; the programs in scripts/ are thin layers over them."""

from placeto_tf.encoding.legacy_keras import check_legacy_keras

check_legacy_keras()  # before any module here imports tf-agents
