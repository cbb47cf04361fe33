"""GDP (Zhou et al., arXiv 1910.01578; GO, NeurIPS 2020): every op placed in one pass.

A GraphSAGE embedding of ops, a Transformer-XL over them in topological order, superposition
conditioning on the graph, PPO. There is no grouping: only ops that must share a device are placed
together.
"""

from placeto_tf.encoding.training_packages import check_training_packages

check_training_packages()  # before any module here imports tf-agents
