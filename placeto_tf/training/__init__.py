"""Libraries that train policies; the programs in scripts/ are thin layers over them."""

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()  # before any module here imports tf-agents
