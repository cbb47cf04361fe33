"""Placeto's decision process as a batched tf-agents environment, with its cost injected."""

from placeto_tf.encoding.legacy_keras import check_legacy_keras

check_legacy_keras()  # before any module here imports tf-agents
