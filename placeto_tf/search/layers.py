"""The position of each op along a network's depth: the layers that a human expert sees.

The rule, for any graph:

1. Variables are layers. A set of colocated ops that holds a variable has the position of
   the first forward op that reads it. Ops that read variables take their variable's position,
   so that all time steps of an unrolled recurrent layer are one layer; the forward ops between
   take the furthest position among their producers, and ops before any variable (inputs,
   constants) the nearest position among their consumers. In a graph without variables an op's
   position is its depth.
2. A gradient op, one in a scope called "gradients" or "gradient_tape", has the position of the
   forward op that its name contains, else that of the furthest forward op whose outputs it reads,
   else that of the nearest gradient op that feeds it.
3. All other ops (optimizer ops, learning rates, savers) have the position of the ops they are
   colocated with, else of their producers, else of their consumers.

Dimensions: N ops.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Tuple

import numpy as np

from placeto_tf.graphs.computation_graph import CONTROL, ComputationGraph

_VARIABLE_TYPES = frozenset({"VarHandleOp", "VariableV2", "Variable", "TemporaryVariable"})
_GRADIENT_SCOPES = ("gradients", "gradient_tape")
_GRADIENT_SUFFIX = "_grad"


def layer_positions(graph: ComputationGraph, *, distinct: bool = False) -> np.ndarray:
  """Finds the position of each op along the forward depth; equal positions are a layer.

  Args:
    graph: any.
    distinct: whether layers of one depth, as those of branches, are told apart. Positions then
      count the ops in the order of their depths.

  Returns:
    [N] float64, 0 or more.
  """
  depths = graph.depths
  # Ranks in topological order are distinct, while depths tie.
  if distinct:
    depths = np.argsort(graph.topological_order, kind="stable")
  # Ops in gradient scopes are backward; all data downstream of them is not forward either.
  scopes = [_gradient_scope(name) for name in graph.op_names]
  backward = np.array([scope is not None for scope in scopes])
  producers, consumers = _data_edges(graph)

  is_variable = np.isin(np.array(graph.op_types), list(_VARIABLE_TYPES))
  # Marks colocated sets by label: all ops of a set with a variable belong to the variable.
  holds_variable = np.zeros(graph.num_ops, dtype=bool)
  holds_variable[graph.colocation[is_variable]] = True
  of_variable = holds_variable[graph.colocation]
  forward = _forward(producers, consumers, backward)

  # -1 marks ops without a position.
  position = np.full(graph.num_ops, -1.0)
  if is_variable.any():
    set_position = np.full(graph.num_ops, np.inf)
    # Rule 1: a variable's position is the depth of the first forward op that reads it.
    reads = of_variable[producers] & forward[consumers] & ~of_variable[consumers]
    np.minimum.at(
        set_position, graph.colocation[producers[reads]],
        depths[consumers[reads]].astype(np.float64))
    for op in np.flatnonzero(of_variable).tolist():
      found = set_position[graph.colocation[op]]
      position[op] = found if np.isfinite(found) else -1.0
    # Positions go on from variables to the forward ops between them.
    _spread_forward(position, producers, consumers, forward, of_variable)
  else:
    # Without variables, the depth itself.
    position[forward] = depths[forward]
  # Rule 2: gradient ops by name, then by the ops that they read.
  for op in np.flatnonzero(backward & (position < 0)).tolist():
    scope = scopes[op]
    twin = None if scope is None else _forward_op(graph.op_index, scope, forward)
    if twin is not None:
      position[op] = position[twin]
  _spread_backward(position, producers, consumers, forward, backward)
  # Rule 3: all other ops by producers or consumers, and by their colocated set.
  _follow(position, producers, consumers)
  _share(position, graph.colocation)
  # Ops that no rule reaches are in the first layer.
  return np.maximum(position, 0.0)


def forward_edges(graph: ComputationGraph) -> Tuple[np.ndarray, np.ndarray]:
  """Returns the data edges between forward ops.

  Args:
    graph: of N ops.

  Returns:
    Producers and consumers, both [F] for F edges, in the order of the consumers' depths.
  """
  producers, consumers = _data_edges(graph)
  backward = np.array([_gradient_scope(name) is not None for name in graph.op_names])
  forward = _forward(producers, consumers, backward)
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

  "gradients/layer/MatMul_grad/Mul" and "gradient_tape/layer/MatMul/Mul" are of "layer/MatMul". In
  an inlined function both names have the call site as a prefix, so prefixes of the part before the
  gradient scope are tried, the longest first.
  """
  before, after = scope
  # The longest name after the scope first, then shorter ones: "MatMul_grad/Mul" is of "MatMul".
  for end in range(len(after), 0, -1):
    last = after[end - 1]
    if last.endswith(_GRADIENT_SUFFIX):
      last = last[:-len(_GRADIENT_SUFFIX)]
    for start in range(len(before), -1, -1):
      op = op_index.get("/".join([*before[:start], *after[:end - 1], last]))
      if op is not None and forward[op]:
        return op
  return None


def _forward(
    producers: np.ndarray, consumers: np.ndarray, backward: np.ndarray) -> np.ndarray:
  """Returns whether an op is neither a gradient nor downstream of one, [N] bool."""
  reached = backward.tolist()
  for u, v in zip(producers.tolist(), consumers.tolist()):
    # Edges are in the order of depth, so one pass reaches all ops downstream.
    if reached[u]:
      reached[v] = True
  return ~np.array(reached)


def _spread_forward(
    position: np.ndarray, producers: np.ndarray, consumers: np.ndarray, forward: np.ndarray,
    of_variable: np.ndarray) -> None:
  """Gives forward ops the position of the variables they read, else their producers' furthest."""
  # Lists, because loops over single elements of arrays are slow.
  values = position.tolist()
  reads_variable = np.zeros(len(position), dtype=bool)
  reads_variable[consumers[of_variable[producers]]] = True
  fixed, from_variable = of_variable.tolist(), reads_variable.tolist()
  is_forward, holds = forward.tolist(), of_variable.tolist()
  for u, v in zip(producers.tolist(), consumers.tolist()):
    # Ops that read a variable take positions from variables alone, the others from any producer.
    if is_forward[v] and not fixed[v] and (holds[u] or not from_variable[v]):
      values[v] = max(values[v], values[u])
  # Backwards, for ops with only inputs and constants before them.
  # Only ops still without a position move, to the least position of their consumers.
  inputs = [value < 0 for value in values]
  for u, v in zip(producers[::-1].tolist(), consumers[::-1].tolist()):
    if inputs[u] and is_forward[u] and is_forward[v] and values[v] >= 0:
      values[u] = values[v] if values[u] < 0 else min(values[u], values[v])
  position[:] = values


def _spread_backward(
    position: np.ndarray, producers: np.ndarray, consumers: np.ndarray, forward: np.ndarray,
    backward: np.ndarray) -> None:
  """Positions gradient ops whose name has no forward op by the ops that they read.

  The furthest of the forward ops, because a gradient reads its own layer's outputs and inputs;
  the nearest of the gradients, because they come from the layers behind.
  """
  values = position.tolist()
  # Gradient ops without a forward op of their name.
  open_ops = (backward & (position < 0)).tolist()
  is_forward = forward.tolist()
  reads_forward = [False] * len(values)
  for u, v in zip(producers.tolist(), consumers.tolist()):
    if not open_ops[v] or values[u] < 0:
      continue
    if is_forward[u]:
      # The first forward producer replaces positions taken from gradients.
      values[v] = max(values[v], values[u]) if reads_forward[v] else values[u]
      reads_forward[v] = True
    elif not reads_forward[v]:
      values[v] = values[u] if values[v] < 0 else min(values[v], values[u])
  position[:] = values


def _follow(position: np.ndarray, producers: np.ndarray, consumers: np.ndarray) -> None:
  """Gives ops without a position their producers' furthest, else their consumers' nearest."""
  values = position.tolist()
  # Forward pass: the furthest producer.
  missing = [value < 0 for value in values]
  for u, v in zip(producers.tolist(), consumers.tolist()):
    if missing[v]:
      values[v] = max(values[v], values[u])
  # Backward pass, for ops with no positioned producer: the nearest consumer.
  missing = [value < 0 for value in values]
  for u, v in zip(producers[::-1].tolist(), consumers[::-1].tolist()):
    if missing[u] and values[v] >= 0:
      values[u] = values[v] if values[u] < 0 else min(values[u], values[v])
  position[:] = values


def _share(position: np.ndarray, colocation: np.ndarray) -> None:
  """Gives all ops of a colocated set the least position among its ops."""
  # [N] by label of the set: the least position of the set's ops.
  lowest = np.full(len(position), np.inf)
  known = position >= 0
  np.minimum.at(lowest, colocation[known], position[known])
  shared = lowest[colocation]
  position[:] = np.where(np.isfinite(shared), shared, position)
