"""One policy for any graph on any cluster: scores (group, device) pairs by features free of scale.

`scorer` and `sweeps` need NumPy and numba only, `network` and `agent` TensorFlow and tf-agents.
"""
