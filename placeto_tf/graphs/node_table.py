"""`NodeTable`: all nodes of a GraphDef, checked, with their edges as arrays.

Checked is what the arrays need. Other faults are found by TensorFlow's analysis of the graph, which
has a process of its own (`costs/guarded.py`).

Dimensions: M nodes of the file, E edges in the order of consumers and their inputs, O outputs.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, List

import numpy as np

from placeto_tf.errors import GraphError
from placeto_tf.graphs import tensor_names
from placeto_tf.graphs.computation_graph import CONTROL, check_unique
from placeto_tf.graphs.op_defs import OpDefs
from placeto_tf.on_use import GraphDef, NodeDef, tf


@dataclasses.dataclass(frozen=True)
class NodeTable:
  """Nodes and edges of one GraphDef.

  Attributes:
    nodes: [M] NodeDefs of the GraphDef itself, not copies.
    names: [M].
    types: [M] op types.
    index: name -> index into [M].
    op_defs: definitions of the ops.
    output_offsets: [M+1] int64; outputs of node i are `output_offsets[i]:output_offsets[i+1]`.
    output_types: [O] int32 DataType, plus `REF` for references.
    producers: [E] int64.
    ports: [E] int64, `CONTROL` for control edges.
    consumers: [E] int64, ascending.
    input_types: [E] int32 DataType that the consumer expects, 0 for control edges.
  """

  nodes: List[NodeDef]
  names: List[str]
  types: List[str]
  index: Dict[str, int]
  op_defs: OpDefs
  output_offsets: np.ndarray  # [M+1]
  output_types: np.ndarray  # [O]
  producers: np.ndarray  # [E]
  ports: np.ndarray  # [E]
  consumers: np.ndarray  # [E]
  input_types: np.ndarray  # [E]

  @property
  def num_nodes(self) -> int:
    """Returns M."""
    return len(self.names)

  @property
  def num_outputs(self) -> np.ndarray:
    """Returns [M] int64, the number of outputs of each node."""
    return np.diff(self.output_offsets)


def read_nodes(graph_def: GraphDef) -> NodeTable:
  """Checks a GraphDef and turns it into arrays.

  Raises:
    GraphError: there are no nodes; a name appears twice; an op is unknown; an attribute is missing
      or of another kind; an input does not exist or is out of range; an op has too many inputs; or
      this TensorFlow cannot read the version.
  """
  nodes = list(graph_def.node)
  if not nodes:
    raise GraphError("the graph is empty; expected a GraphDef with at least one node")
  _check_versions(graph_def.versions)
  names = [node.name for node in nodes]
  index = {name: i for i, name in enumerate(names)}
  check_unique(names)
  op_defs = OpDefs(graph_def.library)
  signatures = [op_defs.signature(node) for node in nodes]
  # [M+1] prefix sums of the numbers of outputs.
  offsets = np.zeros(len(nodes) + 1, dtype=np.int64)
  np.cumsum([len(signature.outputs) for signature in signatures], out=offsets[1:])
  producers: List[int] = []
  ports: List[int] = []
  consumers: List[int] = []
  input_types: List[int] = []
  for i, (node, signature) in enumerate(zip(nodes, signatures)):
    wanted = signature.inputs
    # Count the data inputs, which TensorFlow requires to precede the control inputs.
    data = 0
    for text in node.input:
      name, port = tensor_names.parse(text)
      producer = index.get(name)
      if producer is None:
        raise GraphError(
            f"input {text!r} of op {node.name!r} ({node.op}) names no op of the graph; export the "
            "graph again with all the ops that it needs")
      if port != CONTROL:
        width = len(signatures[producer].outputs)
        if port >= width:
          raise GraphError(
              f"op {node.name!r} reads output {port} of {name!r} ({nodes[producer].op}), which has "
              f"{width} outputs")
        if consumers and consumers[-1] == i and ports[-1] == CONTROL:
          raise GraphError(
              f"op {node.name!r} ({node.op}) has the data input {text!r} behind a control input; "
              "data inputs come first")
        # Too many inputs cause an error below, where the numbers are compared.
        input_types.append(wanted[data] if data < len(wanted) else 0)
        data += 1
      else:
        input_types.append(0)
      producers.append(producer)
      ports.append(port)
      consumers.append(i)
    if data != len(wanted):
      raise GraphError(
          f"op {node.name!r} ({node.op}) has {data} data inputs, expected {len(wanted)}")
  return NodeTable(
      nodes=nodes,
      names=names,
      types=[node.op for node in nodes],
      index=index,
      op_defs=op_defs,
      output_offsets=offsets,
      output_types=np.array(
          [dtype for signature in signatures for dtype in signature.outputs], dtype=np.int32),
      producers=np.array(producers, dtype=np.int64),
      ports=np.array(ports, dtype=np.int64),
      consumers=np.array(consumers, dtype=np.int64),
      input_types=np.array(input_types, dtype=np.int32),
  )


def _check_versions(versions) -> None:
  current = tf.version.GRAPH_DEF_VERSION
  if versions.min_consumer > current or current in versions.bad_consumers:
    raise GraphError(
        f"the graph asks for GraphDef version {versions.min_consumer}, or excludes version "
        f"{current} of this TensorFlow ({tf.version.VERSION}); install a newer TensorFlow")
