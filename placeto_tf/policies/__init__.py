"""Networks and agents, one folder per policy.

All but the inference of the shipped policy (`device_pointer`) need tf-agents, TF-GNN and the legacy
Keras. The check for it is in the folders of those policies and in `training`, and not here, so that
inference works with any Keras.
"""
