"""Declares mirrored variables of later replicas as local variables that copy the first replica's.

A Saver restores the variables of the collection `variables`, which holds the first replica's
variables. The variables of the other replicas are in `local_variables`. A `MonitoredSession` runs
the initializers of `local_variables` after it has restored a checkpoint, as
`tf.compat.v1.local_variables_initializer` does. Each initializer copies the first replica's value.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from placeto_tf.graphs.tensor_names import parse
from placeto_tf.graphs.variable_defs import variable_defs
from placeto_tf.on_use import GraphDef, MetaGraphDef, VariableDef
from placeto_tf.replication import op_roles
from placeto_tf.replication.nodes import NodeWriter, tensor_name

_COLLECTION = "local_variables"


def add_local_copies(meta_graph: MetaGraphDef, originals: Mapping[str, str]) -> None:
  """Adds initializers and the collection to a MetaGraphDef.

  Args:
    meta_graph: of replicas with variables of their own; changed.
    originals: name of an op of any later replica -> name of the first replica's op.
  """
  defs = variable_defs(meta_graph)
  nodes = {node.name: node for node in meta_graph.graph_def.node}
  made: List[bytes] = []
  # Only variables whose originals state their initial value can be copied.
  for name, original in originals.items():
    if nodes[name].op in op_roles.VARIABLES and original in defs and (
        defs[original].initial_value_name):
      made.append(_local_copy(meta_graph.graph_def, nodes[name], defs[original]))
  if made:
    meta_graph.collection_def[_COLLECTION].bytes_list.value.extend(made)


def _local_copy(graph_def: GraphDef, variable: VariableDef, original: VariableDef) -> bytes:
  """Writes the initializer of a variable; returns its serialized VariableDef."""
  from tensorflow.core.framework import variable_pb2

  source, name = original.variable_name.rpartition(":")[0], variable.name
  resource = variable.op == "VarHandleOp"
  dtype, writer = variable.attr["dtype"].type, NodeWriter(graph_def)

  def new(suffix: str, op: str, inputs: Sequence[str], **types: int) -> str:
    """Adds a node below the variable's name and returns its name."""
    return writer.new(f"{name}/copy{suffix}", op, inputs, **types).name

  # Ops on the handle of a variable, or on a reference to it, with the attribute of its type.
  is_set, read, write, key = (
      "VarIsInitializedOp", "ReadVariableOp", "AssignVariableOp", "dtype") if resource else (
          "IsVariableInitialized", "Identity", "Assign", "T")
  # The original may be initialized in the same run: then both get the same initial value.
  known = new("/known", is_set, (source,), **({} if resource else {"dtype": dtype}))
  # Switch on whether the original has a value; output 1 is the true branch.
  branch = new("/branch", "Switch", (known, known), T=10)
  taken = new("/taken", "Identity", (f"{branch}:1",), T=10)
  value = new("/value", read, (source, f"^{taken}"), **{key: dtype})
  stated = tensor_name(*parse(original.initial_value_name))
  initial = new("/initial", "Switch", (stated, known), T=dtype)
  # The initial value where the original has none yet, else its present value.
  either = new("/either", "Merge", (initial, value), T=dtype)
  graph_def.node[-1].attr["N"].i = 2
  written = new("", write, (name, either), **{key: dtype})
  snapshot = new("/read", read, (name,), **{key: dtype})
  return variable_pb2.VariableDef(
      variable_name=f"{name}:0", initializer_name=written, snapshot_name=f"{snapshot}:0",
      initial_value_name=f"{either}:0", is_resource=resource, trainable=False
  ).SerializeToString()
