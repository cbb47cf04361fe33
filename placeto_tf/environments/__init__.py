"""Placeto's decision process as a batched tf-agents environment, with its cost injected."""

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()  # before any module here imports tf-agents
