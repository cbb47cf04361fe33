"""`ComputationGraph`: a TensorFlow graph as immutable arrays, for all other folders.

Dimensions: N ops, E edges, O outputs of all ops together, K kernel device types.

Worked example, `c = a + b` followed by `print(c)` behind a control edge from `b`:

  op_names        ("a", "b", "c", "print")
  output_offsets  [0, 1, 2, 3, 3]          a, b and c have one output each, print has none
  edge_producers  [0, 1, 1, 2]             sorted by (producer, port, consumer)
  edge_ports      [0, -1, 0, 0]            CONTROL (-1) is the control edge b -> print
  edge_consumers  [2, 3, 2, 3]
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import ArrayLike

from placeto_tf.errors import GraphError, listed
from placeto_tf.graphs import traversal
from placeto_tf.on_use import ConcreteFunction, GraphDef, Message, MetaGraphDef, NodeDef, tf
from placeto_tf.ops import VARIABLES

CONTROL = -1  # port of a control edge, as in TensorFlow's Graph::kControlSlot
KERNEL_TYPES = ("CPU", "GPU")  # types of devices for which the kernels of ops are known


@dataclasses.dataclass(frozen=True, eq=False)
class GraphSource:
  """The source of a graph, which is needed to write the placed graph in the same format.

  Attributes:
    format: "tf_graph", "graph_def", "meta_graph_def", "cost_graph_def", "saved_model" or
      "concrete_function".
    proto: the proto that was read, with all ops of the file, also unneeded ones; never modified.
    path: the file's path, or None for a graph in memory.
    text: whether the file was in text format.
    tf_graph: the live `tf.Graph` for format "tf_graph", the ConcreteFunction for
      "concrete_function", else None.
    graph_def: the GraphDef with the nodes of the ops, a part of `proto` if nothing had to be
      rewritten; None for a CostGraphDef. Never modified.
    positions: [N] int64, index of each op among the nodes of `graph_def` or of the CostGraphDef.
    feed_shapes: feed (tensor name) -> dimensions, all of them known.
    feed_values: feed -> the number that is assumed for each of its elements, because the rounds of
      a loop, or shapes, depend on it.
    meta_graph: the chosen MetaGraphDef of a SavedModel, a part of `proto`.
    iterator_shapes: op that takes the next batch of an iterator -> shapes of its outputs, if the
      user's batch size replaced an unknown dimension.
    fully_fed_ops: ops whose outputs are fed, so that their inputs are not needed.
    fixed_devices: op -> device that a placement must not change, such as the device of a lookup
      table that a live function captures.
    trip_count, split_loops: the arguments of `load_graph`.
  """

  format: str
  proto: Message = dataclasses.field(repr=False)
  path: Optional[str] = None
  text: bool = False
  tf_graph: Union[tf.Graph, ConcreteFunction] = None
  graph_def: GraphDef = dataclasses.field(default=None, repr=False)
  positions: Optional[np.ndarray] = dataclasses.field(default=None, repr=False)  # [N]
  feed_shapes: Mapping[str, Tuple[int, ...]] = dataclasses.field(default_factory=dict)
  feed_values: Mapping[str, int] = dataclasses.field(default_factory=dict)
  iterator_shapes: Mapping[str, Tuple[Optional[Tuple[int, ...]], ...]] = dataclasses.field(
      default_factory=dict)
  fully_fed_ops: FrozenSet[str] = dataclasses.field(default=frozenset(), repr=False)
  meta_graph: MetaGraphDef = dataclasses.field(default=None, repr=False)
  fixed_devices: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
  trip_count: Optional[int] = None
  split_loops: bool = False


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ComputationGraph:
  """The ops that the fetches need, and the data and control edges between them.

  The graph is acyclic: back edges of loops (NextIteration -> Merge) are left out. The trip counts
  of loops are in `executions`.

  Attributes:
    op_names: [N] unique names, in the order of the file.
    op_types: [N] TensorFlow op types ("Conv2D").
    output_offsets: [N+1] int32; outputs of op i are `output_offsets[i]:output_offsets[i+1]`.
    edge_producers: [E] int32 op indices; edges are unique and sorted by (producer, port, consumer).
    edge_ports: [E] int32 output port of the producer, or `CONTROL`.
    edge_consumers: [E] int32 op indices.
    fetched_outputs: [O] bool, outputs that live to the end of the step.
    colocation: [N] int32, the smallest index of the ops that must share a device with this one.
    has_kernel: [N, K] bool, whether TensorFlow has a kernel for the op on devices of each of
      `KERNEL_TYPES`.
    executions: [N] float64, the number of runs of the op in one step (1 outside loops). Every loop
      is assumed to run `trip_count` times, 10 by default. Cost models use better estimates where
      the bound of a loop is known.
    assigned_devices: [N] the device strings in the graph, "" for none.
    fetches: names of the fetches, as the user or the file gave them.
    feeds: names of the feeds.
    source: the source of the graph, or None for a graph made of arrays alone.
    notes: sentences on assumptions, for the user.
    analyses: cache of results of analyses, by name; shared by all users of this graph.
  """

  op_names: Tuple[str, ...]  # [N]
  op_types: Tuple[str, ...]  # [N]
  output_offsets: np.ndarray  # [N+1]
  edge_producers: np.ndarray  # [E]
  edge_ports: np.ndarray  # [E]
  edge_consumers: np.ndarray  # [E]
  fetched_outputs: np.ndarray  # [O]
  colocation: np.ndarray  # [N]
  has_kernel: np.ndarray  # [N, K]
  executions: np.ndarray  # [N]
  assigned_devices: Tuple[str, ...]  # [N]
  fetches: Tuple[str, ...] = ()
  feeds: Tuple[str, ...] = ()
  source: Optional[GraphSource] = None
  notes: Tuple[str, ...] = ()
  analyses: Dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

  def __repr__(self) -> str:
    """Returns numbers of ops and edges and the fetches; the arrays would fill pages."""
    source = "" if self.source is None else f", source={self.source.path or self.source.format!r}"
    fetches, feeds = (listed([*map(repr, names)]) for names in (self.fetches, self.feeds))
    return (f"ComputationGraph({self.num_ops:,} ops, {self.num_edges:,} edges, "
            f"fetches=[{fetches}], feeds=[{feeds}]{source})")

  @property
  def origin(self) -> GraphSource:
    """Returns the source that the graph was read from.

    Raises:
      GraphError: the graph was made of arrays and has no source.
    """
    if self.source is None:
      raise GraphError("the graph was not read from a TensorFlow graph; load one with load_graph")
    return self.source

  def __post_init__(self) -> None:
    _check(self)
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      # Read-only, because caches and searches share the arrays.
      if isinstance(value, np.ndarray):
        value.flags.writeable = False

  @classmethod
  def from_edges(
      cls,
      op_names: Sequence[str],
      op_types: Sequence[str],
      num_outputs: ArrayLike,
      edges: ArrayLike,
      **fields: Any,
  ) -> ComputationGraph:
    """Builds a graph from `(producer, port, consumer)` rows in any order, duplicates allowed.

    Args:
      op_names: [N] unique names.
      op_types: [N] op types.
      num_outputs: [N] number of outputs of each op.
      edges: rows of (producer index, output port or `CONTROL`, consumer index).
      **fields: any other field; by default nothing is fetched, colocated or assigned, every op
        has a kernel everywhere and runs once.

    Returns:
      The graph, its edges sorted and without duplicates.

    Raises:
      GraphError: an invariant does not hold, or there is a cycle.
    """
    n = len(op_names)
    rows = np.asarray(edges, dtype=np.int64).reshape(-1, 3)
    rows = _unique_rows(rows)
    offsets = np.zeros(n + 1, dtype=np.int32)
    # Prefix sums: output_offsets[i + 1] - output_offsets[i] outputs of op i.
    np.cumsum(np.asarray(num_outputs, dtype=np.int32), out=offsets[1:])
    defaults: Dict[str, Any] = dict(
        fetched_outputs=np.zeros(int(offsets[-1]), dtype=bool),
        colocation=np.arange(n, dtype=np.int32),
        has_kernel=np.ones((n, len(KERNEL_TYPES)), dtype=bool),
        executions=np.ones(n, dtype=np.float64),
        assigned_devices=("",) * n,
    )
    defaults.update(fields)
    return cls(
        op_names=tuple(op_names),
        op_types=tuple(op_types),
        output_offsets=offsets,
        edge_producers=rows[:, 0].astype(np.int32),
        edge_ports=rows[:, 1].astype(np.int32),
        edge_consumers=rows[:, 2].astype(np.int32),
        **defaults,
    )

  @property
  def nodes(self) -> List[NodeDef]:
    """Returns [N] the NodeDefs of the ops; [] for a graph without them, of costs or arrays."""
    source = self.source
    if source is None or source.graph_def is None or source.positions is None:
      return []
    nodes = source.graph_def.node
    return [nodes[position] for position in source.positions.tolist()]

  @property
  def num_ops(self) -> int:
    """Returns N."""
    return len(self.op_names)

  @property
  def num_edges(self) -> int:
    """Returns E."""
    return len(self.edge_producers)

  @property
  def num_outputs(self) -> int:
    """Returns O."""
    return int(self.output_offsets[-1])

  @functools.cached_property
  def op_index(self) -> dict:
    """Returns op name -> index."""
    return {name: i for i, name in enumerate(self.op_names)}

  @property
  def edges(self) -> Iterable[Tuple[int, int, int]]:
    """Yields (producer, port, consumer) of each edge."""
    return zip(
        self.edge_producers.tolist(), self.edge_ports.tolist(), self.edge_consumers.tolist())

  @functools.cached_property
  def edge_outputs(self) -> np.ndarray:
    """Returns [E] int32, the index into [O] of each edge's tensor; -1 for control edges."""
    # Outputs are numbered by op, then by port.
    outputs = self.output_offsets[self.edge_producers] + self.edge_ports
    return np.where(self.edge_ports == CONTROL, -1, outputs).astype(np.int32)

  @functools.cached_property
  def edges_by_tensor(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns [E] producers, consumers (int32) and tensors (int64) of edges, sorted by tensor.

    All control edges of one producer carry the same signal, which has a negative tensor number.
    """
    # -1, -2, ... for the control signals of ops 0, 1, ...
    tensors = np.where(
        self.edge_ports == CONTROL, -1 - self.edge_producers.astype(np.int64), self.edge_outputs)
    order = np.argsort(tensors, kind="stable")
    return self.edge_producers[order], self.edge_consumers[order], tensors[order]

  @functools.cached_property
  def topological_order(self) -> np.ndarray:
    """Returns [N] int32 op indices, producers first; among ready ops by (depth, index)."""
    # The last key of a lexsort is the primary key: sort by depth, then index.
    return np.lexsort((np.arange(self.num_ops), self.depths)).astype(np.int32)

  @functools.cached_property
  def topological_rank(self) -> np.ndarray:
    """Returns [N] int64, the position of each op in `topological_order`."""
    return np.argsort(self.topological_order)

  @functools.cached_property
  def depths(self) -> np.ndarray:
    """Returns [N] int32, the number of edges on the longest path that ends at the op."""
    _, depths = traversal.topological_order(
        self.num_ops, self.edge_producers, self.edge_consumers)
    if (depths < 0).any():
      op = traversal.op_on_cycle(self.num_ops, self.edge_producers, self.edge_consumers)
      raise GraphError(
          f"the graph has a cycle through op {self.op_names[op]!r} outside a loop; remove one of "
          "the edges of the cycle")
    return depths

  @functools.cached_property
  def fingerprint(self) -> str:
    """Returns a hex digest of structure and names, equal for equal graphs from different files."""
    digest = hashlib.sha256()
    for names in (self.op_names, self.op_types):
      digest.update("\0".join(names).encode())
      digest.update(b"\1")
    # Fields are separated, so that different graphs never hash the same bytes.
    for array in (
        self.output_offsets, self.edge_producers, self.edge_ports, self.edge_consumers):
      digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
      digest.update(b"\1")
    return digest.hexdigest()[:32]

  @functools.cached_property
  def interface_shapes(self) -> Dict[str, Tuple[int, ...]]:
    """Returns op name -> declared shape of the feeds and variables; -1 is any size."""
    return shapes_of_interface(self.nodes)


_HANDLES = (20, 21)  # DT_RESOURCE and DT_VARIANT, such as the captures of a function
_INTERFACE = ("Placeholder", "PlaceholderWithDefault", *VARIABLES)


def shapes_of_interface(nodes: Iterable[NodeDef]) -> Dict[str, Tuple[int, ...]]:
  """Returns op name -> declared shape of feeds and variables among NodeDefs; -1 is any size."""
  found = {}
  for node in nodes:
    if node.op in _INTERFACE and "shape" in node.attr and node.attr["dtype"].type not in _HANDLES:
      shape = node.attr["shape"].shape
      if not shape.unknown_rank:
        found[node.name] = tuple(dim.size for dim in shape.dim)
  return found


def _unique_rows(rows: np.ndarray) -> np.ndarray:
  """Returns the distinct rows of (producer, port, consumer), sorted."""
  # The last key of a lexsort is the primary one. It is many times faster than np.unique of rows.
  rows = rows[np.lexsort(rows.T[::-1])]
  differs = np.ones(len(rows), dtype=bool)
  differs[1:] = (rows[1:] != rows[:-1]).any(axis=1)
  return rows[differs]


def check_unique(names: Sequence[str]) -> None:
  """Raises GraphError if two ops have one name."""
  if len(set(names)) < len(names):
    name = next(name for name, count in collections.Counter(names).items() if count > 1)
    raise GraphError(f"op name {name!r} appears twice; names must be unique")


def _check(graph: ComputationGraph) -> None:
  """Raises GraphError where an invariant of `ComputationGraph` does not hold."""
  n = len(graph.op_names)
  if n == 0:
    raise GraphError("the graph has no ops; expected at least one op that the fetches need")
  check_unique(graph.op_names)
  o = int(graph.output_offsets[-1])
  shapes = {
      "op_types": (len(graph.op_types), n),
      "output_offsets": (len(graph.output_offsets), n + 1),
      "fetched_outputs": (len(graph.fetched_outputs), o),
      "colocation": (len(graph.colocation), n),
      "has_kernel": (graph.has_kernel.shape, (n, len(KERNEL_TYPES))),
      "executions": (len(graph.executions), n),
      "assigned_devices": (len(graph.assigned_devices), n),
      "edge_ports": (len(graph.edge_ports), len(graph.edge_producers)),
      "edge_consumers": (len(graph.edge_consumers), len(graph.edge_producers)),
  }
  for name, (found, expected) in shapes.items():
    if found != expected:
      raise GraphError(f"{name} has shape {found}, expected {expected}")
  if not graph.num_edges:
    return
  for name in ("edge_producers", "edge_consumers"):
    ends = getattr(graph, name)
    if ends.min() < 0 or ends.max() >= n:
      raise GraphError(f"{name} names op {int(ends.max())}, but there are {n} ops")
  ports = graph.edge_ports
  # [E] outputs of each edge's producer.
  widths = np.diff(graph.output_offsets)[graph.edge_producers]
  wrong = np.flatnonzero((ports < CONTROL) | (ports >= widths))
  if len(wrong):
    e = int(wrong[0])
    raise GraphError(
        f"op {graph.op_names[graph.edge_consumers[e]]!r} reads output {int(ports[e])} of "
        f"{graph.op_names[graph.edge_producers[e]]!r}, which has {int(widths[e])} outputs")
  _ = graph.depths  # raises on a cycle
