"""Placeto (Addanki et al., NeurIPS 2019): graph embedding, policy network, REINFORCE agent."""

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()  # before any module here imports tf-agents
