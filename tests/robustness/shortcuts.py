"""Shortcuts for programs in forks: what no mutant and no kill changes is done once, or not at all.

Importing alone takes six seconds of CPU time, a fork of `place.py` with these half a second:
the compiled simulator is in memory, pictures are files that hold nothing, recurrent policies have
few groups, and functions are not traced, which takes longer than a run of two iterations.
`fuzz_inputs.py` starts some of its programs anew, without any of it, and compares.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Callable, Tuple

import forked
import input_mutants

TINY = input_mutants.tiny_family(None, 0)


@functools.cache
def shortcuts() -> Callable[[], None]:
  """Compiles in this process, which runs no TensorFlow; what forks are to call first."""
  import numpy as np
  import tensorflow as tf

  from placeto_tf.simulation import Simulator

  Simulator(*forked.call(_problem)).simulate(np.zeros(1, np.int32))

  def prepare() -> None:
    tiny_family()
    tf.config.run_functions_eagerly(True)
    no_pictures()
    few_groups()

  return prepare


def _problem() -> Tuple[Any, Any, Any]:
  """(graph of one op, its costs, cluster): what a simulator is made of."""
  import tensorflow as tf

  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph

  with tf.Graph().as_default() as tf_graph:
    tf.constant(1.0, name="one")
  graph, cluster = load_graph(tf_graph, fetches=["one"]), Cluster.parse("k80:2")
  return graph, estimate_costs(graph, cluster), cluster


def tiny_family() -> None:
  """Makes a family of small graphs known to the programs of this process."""
  from placeto_tf.zoo import families

  families.FAMILIES.setdefault("tiny", input_mutants.tiny_family)


def few_groups() -> None:
  """Policies that have a step of a recurrent network for each group have eight."""
  from placeto_tf.policies.hierarchical import policy as hierarchical
  from placeto_tf.policies.rnn import policy as rnn

  for module, options in ((rnn, rnn.RnnConfig(max_groups=8)),
                          (hierarchical, hierarchical.HierarchicalConfig(num_groups=8))):
    module.POLICY = dataclasses.replace(module.POLICY, options=options)


def no_pictures() -> None:
  """Pictures are empty files from here on."""
  from matplotlib.figure import Figure

  def save(figure: Any, file: Any, **_: Any) -> None:
    del figure
    if isinstance(file, (str, os.PathLike)):
      with open(file, "wb"):
        pass

  for name, value in (("savefig", save), ("tight_layout", lambda figure: None)):
    setattr(Figure, name, value)
