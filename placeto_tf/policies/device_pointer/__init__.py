"""One policy for any graph on any cluster: scores (group, device) pairs by features free of scale.

It needs NumPy and numba only; `training/gain_training.py`, which trains it, needs TensorFlow.
"""
