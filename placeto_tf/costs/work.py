"""`OpWork`: the work of each op of a graph, in flops and bytes, on any device.

The counts come from grappler, except for these ops, which are counted here:
  - Optimizer and resource ops read variables by handles, which grappler cannot see. A dense update
    reads and writes each variable and reads its other inputs; a sparse update does so for the rows
    that it changes. Unique sorts, and sums by segments are zeroed, read and written.
  - Ops that only rearrange elements, and ops that grappler's scheduler leaves out, move their
    inputs and outputs.
  - Ops that launch no kernel do nothing: ops that only pass a tensor, a handle or a shape on
    (`OpRule.kernel`), and on a GPU also ops whose outputs are all in host memory.

Memory: a variable's bytes are persistent on the op that makes it (VarHandleOp, VariableV2; also for
an optimizer's slots), a constant's bytes on the constant. The result of a read of a variable is an
output with the variable's bytes: the read takes no time, but its bytes are sent if another device
needs them.

An op in a loop runs in every iteration. In a conditional, the more expensive side runs (see
`branches`).

Dimensions: N ops, O outputs of all ops together.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.costs import tensor_sizes
from placeto_tf.costs.branches import untaken
from placeto_tf.costs.guarded import analyse
from placeto_tf.costs.loop_rounds import executions_of, notes_of
from placeto_tf.costs.step_run import Seen
from placeto_tf.errors import counted, listed
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.kernels import outputs_in_host_memory
from placeto_tf.graphs.tensor_names import data_inputs, op_of, parse
from placeto_tf.on_use import GraphDef, NodeDef
from placeto_tf.ops import VARIABLES, rule_of

# Kinds of accesses to variables, by the beginning of the op type; the first that fits holds.
_ACCESSES = (
    ("assign", "Assign(VariableOp)?$"), ("gather", "ResourceGather(Nd)?$"),
    ("sparse", ".*SparseApply|(?!ScatterNd(NonAliasingAdd)?$)(Resource)?Scatter"),
    ("unique", "Unique"), ("segments", "UnsortedSegment"),
    ("dense", "(Resource)?Apply|ResourceAccumulatorApply|Assign(Add|Sub)"))
_OF_PREDICATES = ("LogicalAnd", "LogicalOr", "LogicalNot")
_SCALAR_BYTES = 4  # the least that an op which launches a kernel moves
# A GPU of any kind, for the dearer side of a conditional.
_NOMINAL_US_PER_OP, _NOMINAL_FLOPS_PER_US, _NOMINAL_BYTES_PER_US = 5.0, 5e6, 5e5


@dataclasses.dataclass(frozen=True, eq=False)
class OpWork:
  """Work of one execution of each op, and the bytes it holds.

  Attributes:
    flops, moved_bytes: [N] float64; moved between device memory and cores.
    launches: [N] bool, whether a kernel runs on a CPU.
    launches_on_gpu: [N] int32, the number of kernels of a run on a GPU.
    product_types: [N] int32, the DataType of the factors of matrix products and convolutions; 0 for
      other ops.
    windows: [N] int32, the side of the window of a convolution with stride 1, if convolutions of
      this window are a kind of kernels (`OpRule.windows`); 0 for other ops.
    temporary_bytes, persistent_bytes: [N] float64.
    executions: [N] float64, the number of runs of the op in a step.
    output_bytes: [O] float64.
    notes: sentences on assumptions.
    unknown: shapes and trip counts that are unknown even after guesses, as part of a sentence; ""
      for none.
    unsure: whether a run of the step could show more shapes and trip counts.
  """

  flops: np.ndarray  # [N]
  moved_bytes: np.ndarray  # [N]
  launches: np.ndarray  # [N]
  launches_on_gpu: np.ndarray  # [N]
  product_types: np.ndarray  # [N]
  windows: np.ndarray  # [N]
  temporary_bytes: np.ndarray  # [N]
  persistent_bytes: np.ndarray  # [N]
  executions: np.ndarray  # [N]
  output_bytes: np.ndarray  # [O]
  notes: Tuple[str, ...] = ()
  unknown: str = ""
  unsure: bool = False


def count_work(
    graph: ComputationGraph, graph_def: GraphDef, seen: Optional[Seen] = None) -> OpWork:
  """Counts the work of every op of a graph.

  Args:
    graph: the ops to count.
    graph_def: their NodeDefs, with static shapes at the placeholders.
    seen: shapes and executions in a run of the step, if there was one.

  Returns:
    Flops, bytes and executions of each op, [N], and the bytes of each output, [O].

  Raises:
    CostError: TensorFlow cannot analyse the graph.
  """
  nodes = {node.name: node for node in graph_def.node}
  trip_count = graph.source.trip_count if graph.source is not None else None
  answer = analyse(graph_def, seen=seen.shapes if seen else {})
  counter = _Counter(nodes, answer.outputs)
  n = graph.num_ops
  flops, moved, temporary, persistent = np.zeros((4, n))
  launches, launches_on_gpu = np.zeros((2, n), dtype=np.int32)
  output_bytes = np.zeros(graph.num_outputs)
  # [N] DataType of the factors of each product, 0 for other ops.
  product_types = np.array(
      [nodes[name].attr[rule_of(op).product].type if rule_of(op).product else 0
       for name, op in zip(graph.op_names, graph.op_types)], dtype=np.int32)
  windows = np.array([counter.window(nodes[name]) for name in graph.op_names], dtype=np.int32)
  trips, capped = answer.trips, answer.capped
  if trip_count is not None:
    trips, capped = dict.fromkeys(trips, trip_count), ()
  executions, loops = executions_of(graph, graph_def.node, trips)
  notes = notes_of(loops, trips, capped, trip_count is not None)
  # A trip count of the user's goes before what was seen.
  ran = seen.executions if seen is not None and trip_count is None else None
  if ran is not None:
    # All ops that ran are in the trace, except feeds.
    fed = {op_of(name) for name in graph.feeds}
    executions = np.array([ran.get(name, name in fed) for name in graph.op_names], np.float64)
    notes = ()
  variables_seen = set()
  for i, name in enumerate(graph.op_names):
    node = nodes[name]
    offset = graph.output_offsets[i]
    # Output i of the op is output_bytes[offset + i].
    for port in range(graph.output_offsets[i + 1] - offset):
      output_bytes[offset + port] = counter.tensor(name, port)
    if node.op in VARIABLES:
      # Without a shared name, the name of the op identifies the variable.
      identity = node.attr["container"].s, node.attr["shared_name"].s or name.encode()
      if identity not in variables_seen:  # two handles of one variable hold it once
        variables_seen.add(identity)
        persistent[i] = counter.variable(name)
    elif node.op in ("Const", "HostConst", "ImmutableConst"):
      persistent[i] = counter.tensor(name, 0)
    launches[i] = rule_of(node.op).kernels > 0
    if not launches[i]:
      continue
    launches_on_gpu[i] = 0 if outputs_in_host_memory(node) else rule_of(node.op).kernels
    if executions[i] != 1 and (not launches_on_gpu[i] or node.op in _OF_PREDICATES) and all(
        tensor_sizes.num_elements(each.shape) == (1, True)
        for each in answer.outputs.get(name, ())):
      # The counter of a loop and its comparison: the host does them beside the kernels.
      launches[i] = launches_on_gpu[i] = 0
      continue
    # In order: counts of variable accesses, grappler's, and one flop an element.
    estimate = answer.estimates.get(name)
    temporary[i] = estimate.temporary_bytes if estimate else 0.0
    update = counter.variable_access(node)
    if update is not None:
      flops[i], moved[i] = update
    elif estimate and estimate.flops + estimate.moved_bytes > 0:
      flops[i], moved[i] = estimate.flops, estimate.moved_bytes
    else:
      flops[i], moved[i] = counter.elementwise(node)
    if flops[i] + moved[i] <= 0:
      moved[i] = _SCALAR_BYTES
  if answer.guessed:
    notes += (f"{len(answer.guessed)} outputs have shapes that are only known when the step runs "
              f"({listed([name for name, _ in answer.guessed])}): the largest possible ones are "
              "assumed",)
  counter.unknown.update(dict.fromkeys(answer.growing))
  if seen is not None:  # ops that did not run have no shapes
    for i in np.flatnonzero(executions == 0).tolist():
      counter.unknown.pop(graph.op_names[i], None)
  unknown = _unknown([*counter.unknown], [
      loops[loop] for loop, count in trips.items() if count is None and ran is None])
  # [N] us on a typical GPU, to compare the sides of conditionals.
  nominal_us = launches * (
      _NOMINAL_US_PER_OP + flops / _NOMINAL_FLOPS_PER_US + moved / _NOMINAL_BYTES_PER_US)
  unsure = bool(unknown or answer.guessed or capped)
  if ran is None:
    cheaper = untaken(graph, nodes, nominal_us * executions)
    # A run shows how often each side of a conditional in a loop is taken.
    unsure |= trip_count is None and bool((executions[cheaper] > 1).any())
    executions[cheaper] = 0
  return OpWork(flops, moved, launches, launches_on_gpu, product_types, windows, temporary,
                persistent, executions, output_bytes, notes, unknown, unsure)


class _Counter:
  """Bytes of tensors and variables; remembers which were not known."""

  def __init__(self, nodes: Mapping[str, NodeDef], outputs: tensor_sizes.Outputs):
    self._nodes, self._outputs = nodes, outputs
    self.unknown: Dict[str, None] = {}  # op names, in order

  def tensor(self, name: str, port: int) -> float:
    """Returns the bytes of an output; an output whose shape is not fully known is noted.

    Args:
      name: of the op.
      port: of the output.

    Returns:
      Bytes, in which unknown dimensions count as 1.
    """
    tensors = self._outputs.get(name, ())
    size, known = tensor_sizes.tensor_bytes(tensors[port]) if port < len(tensors) else (0, False)
    if not known:
      self.unknown[name] = None
    return float(size)

  def window(self, node: NodeDef) -> int:
    """Returns the side of a convolution's window if it is one of `OpRule.windows`, else 0."""
    sides = rule_of(node.op).windows
    if not sides or set(node.attr["strides"].list.i) | set(node.attr["dilations"].list.i) != {1}:
      return 0
    # The window is in the filter, or in its gradient: [rows, columns, channels, filters].
    name, port = (node.name, 0) if node.op.endswith("Filter") else parse(node.input[1])
    rows, columns = (dim.size for dim in self._outputs.get(name, ())[port].shape.dim[:2])
    return rows if rows == columns and rows in sides else 0

  def variable(self, name: str) -> float:
    """Returns the bytes of a variable; noted where its shape is not fully known."""
    attr = self._nodes[name].attr
    elements, known = tensor_sizes.num_elements(attr["shape"].shape)
    if not known:
      self.unknown[name] = None
    return float(elements * tensor_sizes.item_bytes(attr["dtype"].type))

  def elementwise(self, node: NodeDef) -> Tuple[float, float]:
    """Returns (flops, bytes) of an op that touches each element of its inputs and outputs once."""
    tensors = [parse(text) for text in data_inputs(node)]
    tensors += [(node.name, port) for port in range(len(self._outputs.get(node.name, ())))]
    # One flop an element of the largest tensor; all tensors are moved once.
    elements = [tensor_sizes.num_elements(self._outputs[name][port].shape)[0]
                for name, port in tensors if port < len(self._outputs.get(name, ()))]
    return float(max(elements, default=0)), sum(self.tensor(*tensor) for tensor in tensors)

  def variable_access(self, node: NodeDef) -> Optional[Tuple[float, float]]:
    """Returns (flops, bytes) of an op that reads or updates variables, None for any other op."""
    kind = next((kind for kind, pattern in _ACCESSES if re.match(pattern, node.op)), None)
    if kind is None:
      return None
    # Handles stand for their variables, other inputs for themselves.
    variables, others = [], []
    for name, port in map(parse, data_inputs(node)):
      tensors = self._outputs.get(name, ())
      # A resource (20) or reference (above 100), not a value that was read.
      is_handle = port >= len(tensors) or tensors[port].dtype == 20 or tensors[port].dtype > 100
      variable = is_handle and tensor_sizes.origin(self._nodes, (name, port), VARIABLES)
      if variable:
        variables.append(self.variable(variable))
      else:
        others.append(self.tensor(name, port))
    if kind == "gather":
      # 2 *: the rows that it yields are read and written; the indices are read.
      return 0.0, 2 * self.tensor(node.name, 0) + sum(others)
    if kind == "unique":
      return 0.0, self._unique_bytes(node)
    if kind == "segments":
      # 3 *: sums are zeroed, read and written.
      return others[0] / 4, sum(others) + 3 * self.tensor(node.name, 0)
    if kind == "assign":
      return 0.0, sum(variables) + sum(others)
    if kind == "sparse":
      # The gradient has the rows that are touched, and is the largest of the other inputs.
      rows = max(others, default=0.0)
      variables = [min(size, rows) for size in variables]
    # 2 *: variables are read and written; the other inputs are read.
    moved = 2 * sum(variables) + sum(others)
    return moved / 4, moved  # about one flop for each number moved, most of them float32

  def _unique_bytes(self, node: NodeDef) -> float:
    """Returns the bytes that Unique moves, as TensorFlow's GPU kernel does it (unique_op_gpu)."""
    ids, positions = self.tensor(*parse(node.input[0])), self.tensor(node.name, 1)
    count = max(1, tensor_sizes.num_elements(self._outputs[node.name][1].shape)[0])
    # A radix sort reads keys for a histogram, then reads and writes keys and positions for each
    # byte of a key; the second sort is by position, whose highest bytes are 0.
    sort = ids + 2 * (ids / count) * (ids + positions)
    sort_back = positions + 4 * -(-count.bit_length() // 8) * positions
    # Sorted ids are compared and numbered; then numbers and ids go to where they belong.
    return sort + sort_back + 4 * ids + 11 * positions


def _unknown(names: Sequence[str], loops: Sequence[str]) -> str:
  """Returns the ops of unknown shapes and loops of unknown rounds, as part of a sentence."""
  return " and ".join(
      f"the {what} of {counted(len(found), kind)} are unknown (the first: {found[0]})"
      for what, kind, found in (("shapes", "op", names), ("rounds", "loop", loops)) if found)
