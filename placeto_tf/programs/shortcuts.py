"""Shortcuts for programs in forks: what no mutant and no kill changes is done once, or not at all.

Importing alone takes six seconds of CPU time, a fork of `place.py` with these half a second:
the compiled simulator is in memory, graphs of the zoo are built once, pictures are files that hold
nothing, recurrent policies have few groups, and functions are not traced, which takes longer than a
run of two iterations.
`fuzz_inputs.py` starts some of its programs anew, without any of it, and compares.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Callable, Dict, Tuple, cast

from placeto_tf.programs import forked, input_mutants

TINY = input_mutants.tiny_family(None, 0)


@functools.cache
def shortcuts() -> Callable[[], None]:
  """Loads and builds in this process, which runs no TensorFlow; what forks are to call first."""
  import numpy as np
  import tensorflow as tf

  from placeto_tf.graphs import loading
  from placeto_tf.simulation import Simulator
  from placeto_tf.training import placeto_training

  built, problem = forked.call(_built)
  Simulator(*problem).simulate(np.zeros(problem[0].num_ops, np.int32))

  build = loading._read_zoo

  def prepare() -> None:
    tiny_family()
    tf.config.run_functions_eagerly(True)
    no_pictures()
    few_groups()
    for module, name, value in (
        (loading, "_read_zoo", lambda spec: loading._from_proto(
            built[spec], "meta_graph_def") if spec in built else build(spec)),
        (placeto_training, "save_policy", lambda policy, directory: None)):
      setattr(module, name, value)

  return prepare


def _built() -> Tuple[Any, Any]:
  """(spec of the zoo -> MetaGraphDef, what a simulator is made of)."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.graphs import load_graph
  from placeto_tf.zoo import build

  graph, cluster = load_graph(input_mutants.GRAPH), Cluster.parse("k80:2")
  specs = input_mutants.GRAPH.partition(":")[2], TINY
  return ({spec: build(spec).meta_graph_def() for spec in specs},
          (graph, estimate_costs(graph, cluster), cluster))


def tiny_family() -> None:
  """Makes a family of small graphs known to the programs of this process."""
  from placeto_tf.zoo import families

  families._FAMILIES.setdefault("tiny", input_mutants.tiny_family)


def few_groups() -> None:
  """Policies that have a step of a recurrent network for each group have eight."""
  from placeto_tf.policies.hierarchical.policy import HierarchicalConfig
  from placeto_tf.training import one_graph_policies as policies

  search = policies.RnnSearch(max_groups=8), policies.HierarchicalSearch(
      HierarchicalConfig(num_groups=8))
  for name, config in zip(("rnn", "hierarchical"), search):
    _, make_policy = policies.POLICIES[name]
    cast(Dict[str, Any], policies.POLICIES)[name] = functools.partial(
        dataclasses.replace, cast(Any, config)), make_policy


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
