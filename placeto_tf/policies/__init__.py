"""Networks and agents, a folder a policy.

All but the inference of the shipped policy (`device_pointer`) need tf-agents, TF-GNN and the legacy
Keras. The check for it stands in the folders of those policies and in `training`, and not here, so
that inference starts beside any Keras.
"""
