"""Placeto (Addanki et al., NeurIPS 2019): graph embedding, policy network, REINFORCE agent."""

from placeto_tf.encoding.legacy_keras import check_legacy_keras

check_legacy_keras()  # before any module here imports tf-agents
