"""The position of each op along a network's depth, from which layers are told apart.

The rule, for any graph:

1. Variables are layers. A set of colocated ops that holds a variable has the position of
   the first forward op that reads the variable. Ops that read variables take that position,
   so that all time steps of an unrolled recurrent layer are one layer; the forward ops between
   take the furthest position among their producers, and ops before any variable (inputs,
   constants) the nearest position among their consumers. In a graph without variables an op's
   position is its depth.
2. A gradient op (its scope is called "gradients" or "gradient_tape") has the position of the
   forward op that its name contains, else of the furthest forward op whose outputs it reads, else
   of the nearest gradient op that feeds it.
3. All other ops (optimizer ops, learning rates, savers) have the position of the ops they are
   colocated with, else of their producers, else of their consumers.

Dimensions: N ops.
"""

from __future__ import annotations

from typing import Callable, List, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph
from placeto_tf.ops import VARIABLES

_GRADIENT_SCOPES = ("gradients", "gradient_tape")
_GRADIENT_SUFFIX = "_grad"


def layer_positions(graph: ComputationGraph, *, distinct: bool = False) -> np.ndarray:
  """Finds the position of each op along the forward depth; ops with equal positions are a layer.

  Args:
    graph: any graph.
    distinct: whether layers of equal depth, such as those of parallel branches, get different
      positions. Positions then count the ops in the order of their depths.

  Returns:
    [N] float64, 0 or more.
  """
  depths = graph.depths
  # Ranks in topological order are distinct, while depths tie.
  if distinct:
    depths = graph.topological_rank
  # Ops in gradient scopes are backward ops; ops downstream of them are not forward either.
  scopes = [_gradient_scope(name) for name in graph.op_names]
  backward = np.array([scope is not None for scope in scopes])
  producers, consumers = _data_edges(graph)

  is_variable = np.isin(np.array(graph.op_types), [*VARIABLES, "TemporaryVariable"])
  # Marks colocated sets by label: all ops of a set with a variable belong to the variable.
  holds_variable = np.zeros(graph.num_ops, dtype=bool)
  holds_variable[graph.colocation[is_variable]] = True
  of_variable = holds_variable[graph.colocation]
  # Neither gradients nor downstream of one.
  forward = ~downstream(producers, consumers, backward)

  # -1 marks ops without a position.
  position = np.full(graph.num_ops, -1.0)
  if is_variable.any():
    set_position = np.full(graph.num_ops, np.inf)
    # Rule 1: a variable's position is the depth of the first forward op that reads it.
    reads = of_variable[producers] & forward[consumers] & ~of_variable[consumers]
    np.minimum.at(
        set_position, graph.colocation[producers[reads]],
        depths[consumers[reads]].astype(np.float64))
    found = set_position[graph.colocation]
    position = np.where(of_variable & np.isfinite(found), found, -1.0)
    # Forward ops take the furthest of the variables that they read, or else of their producers.
    reads_variable = np.zeros(graph.num_ops, dtype=bool)
    reads_variable[consumers[of_variable[producers]]] = True
    kept = of_variable[producers] | ~reads_variable[consumers]
    _spread(position, producers[kept], consumers[kept], forward & ~of_variable, max)
    # Ops with only inputs and constants before them take the nearest of their consumers.
    kept = forward[consumers]
    _spread(position, consumers[kept][::-1], producers[kept][::-1], forward, min)
  else:
    # Without variables, the depth itself.
    position[forward] = depths[forward]
  # Rule 2: gradient ops by name, then by the ops that they read.
  for op in np.flatnonzero(backward & (position < 0)).tolist():
    scope = scopes[op]
    named = None if scope is None else _forward_op(graph.op_index, scope, forward)
    if named is not None:
      position[op] = position[named]
  # A gradient op reads its own layer's outputs and inputs, so it takes the furthest of the forward
  # ops that it reads. Gradients come from later layers, so otherwise it takes the nearest of them.
  open_ops, read = backward & (position < 0), forward[producers]
  _spread(position, producers[read], consumers[read], open_ops, max)
  _spread(position, producers, consumers, open_ops, min)
  # Rule 3: all other ops by producers or consumers, and by their colocated set.
  everything = np.ones(graph.num_ops, dtype=bool)
  _spread(position, producers, consumers, everything, max)
  _spread(position, consumers[::-1], producers[::-1], everything, min)
  _share(position, graph.colocation)
  # Ops for which no rule finds a position are in the first layer.
  return np.maximum(position, 0.0)


def forward_edges(graph: ComputationGraph) -> Tuple[np.ndarray, np.ndarray]:
  """Returns the data edges between forward ops.

  Returns:
    Producers and consumers, both [F] for F edges, in the order of the consumers' depths.
  """
  producers, consumers = _data_edges(graph)
  backward = np.array([_gradient_scope(name) is not None for name in graph.op_names])
  forward = ~downstream(producers, consumers, backward)
  kept = forward[producers] & forward[consumers]
  return producers[kept], consumers[kept]


def _data_edges(graph: ComputationGraph) -> Tuple[np.ndarray, np.ndarray]:
  """Returns (producers, consumers) of the data edges, in the order of the consumers' depths."""
  data = graph.edge_ports != CONTROL
  producers, consumers = graph.edge_producers[data], graph.edge_consumers[data]
  in_order = np.argsort(graph.depths[consumers], kind="stable")
  return producers[in_order], consumers[in_order]


def _gradient_scope(name: str) -> Optional[Tuple[List[str], List[str]]]:
  """Returns the parts of a name before and after its innermost gradient scope; None without one."""
  parts = name.split("/")
  # The innermost scope: the last part that is one, the op's own name excepted.
  for i in range(len(parts) - 2, -1, -1):
    # TensorFlow numbers repeated scopes, as in "gradients_1".
    stem, _, number = parts[i].rpartition("_")
    if parts[i] in _GRADIENT_SCOPES or (stem in _GRADIENT_SCOPES and number.isdigit()):
      return parts[:i], parts[i + 1:]
  return None


def _forward_op(
    op_index: Mapping[str, int], scope: Tuple[List[str], List[str]], forward: np.ndarray
) -> Optional[int]:
  """Finds the forward op that the name of a gradient op contains.

  "gradients/layer/MatMul_grad/Mul" and "gradient_tape/layer/MatMul/Mul" belong to "layer/MatMul".
  In an inlined function both names have the call site as a prefix, so prefixes of the part before
  the gradient scope are tried, the longest first.
  """
  before, after = scope
  # The longest name after the scope first, then shorter ones: "MatMul_grad/Mul" is for "MatMul".
  for end in range(len(after), 0, -1):
    last = after[end - 1]
    if last.endswith(_GRADIENT_SUFFIX):
      last = last[:-len(_GRADIENT_SUFFIX)]
    for start in range(len(before), -1, -1):
      op = op_index.get("/".join([*before[:start], *after[:end - 1], last]))
      if op is not None and forward[op]:
        return op
  return None


def downstream(producers: np.ndarray, consumers: np.ndarray, ops: np.ndarray) -> np.ndarray:
  """Returns the ops that are in a set or downstream of it.

  Args:
    producers, consumers: [E] ends of edges, sorted: all edges into an op come before the edges
      from it. With the ends exchanged, the result is the ops upstream.
    ops: [N] bool, the set.

  Returns:
    [N] bool.
  """
  found = ops.tolist()
  # One pass is enough, because each op is final before its own edges are followed.
  for u, v in zip(producers.tolist(), consumers.tolist()):
    if found[u]:
      found[v] = True
  return np.array(found)


def _spread(
    position: np.ndarray, sources: np.ndarray, targets: np.ndarray, ops: np.ndarray,
    pick: Callable[[float, float], float]) -> None:
  """Gives each op without a position the least or the largest position among its sources.

  Args:
    position: [N], -1 where there is none; changed in place.
    sources, targets: [E] ends of edges, sorted: all edges into an op come before the edges from it.
    ops: [N] bool, the ops that may get a position.
    pick: `max` or `min`.
  """
  # Lists, because loops over single elements of arrays are slow.
  values, missing = position.tolist(), (ops & (position < 0)).tolist()
  for u, v in zip(sources.tolist(), targets.tolist()):
    if missing[v] and values[u] >= 0:
      values[v] = values[u] if values[v] < 0 else pick(values[v], values[u])
  position[:] = values


def _share(position: np.ndarray, colocation: np.ndarray) -> None:
  """Gives all ops of a colocated set the least position among its ops."""
  # [N] by label of the set: the least position of the set's ops.
  lowest = np.full(len(position), np.inf)
  known = position >= 0
  np.minimum.at(lowest, colocation[known], position[known])
  shared = lowest[colocation]
  position[:] = np.where(np.isfinite(shared), shared, position)
