"""TensorFlow training graphs of the literature, built from a spec such as "rnnlm:layers=4".

A model is one function in a module of its kind: see `registry.model` for how to add one.
"family:cifar10[3]" is a graph that is sampled by its index, see `families`.
"""

from placeto_tf.zoo.families import expand, family_names, member
from placeto_tf.zoo.registry import build, names, resolve
from placeto_tf.zoo.zoo_graph import ZooGraph

__all__ = ["ZooGraph", "build", "expand", "family_names", "member", "names", "resolve"]
