"""The hierarchical policy: a grouper of ops and a placer of groups, learned together."""

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()  # before any module here imports tf-agents
