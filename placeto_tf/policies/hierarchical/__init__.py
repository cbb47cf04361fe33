"""The hierarchical policy: a grouper of ops and a placer of groups, learned together."""

from placeto_tf.encoding.legacy_keras import check_legacy_keras

check_legacy_keras()  # before any module here imports tf-agents
