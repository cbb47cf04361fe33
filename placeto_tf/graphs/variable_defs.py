"""`variable_defs`: the variables that the collections of a MetaGraphDef describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict

if TYPE_CHECKING:
  from tensorflow.core.framework.variable_pb2 import VariableDef
  from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef


def variable_defs(meta_graph: MetaGraphDef) -> Dict[str, VariableDef]:
  """Returns the VariableDefs of a MetaGraphDef by the names of their ops.

  A collection holds serialized protos of one type, which its name tells: `variables` holds
  VariableDefs, `queue_runners` holds QueueRunnerDefs, some of which can be parsed as a VariableDef.
  So only collections are read whose registered type is VariableDef.
  """
  from google.protobuf import message
  from tensorflow.core.framework import variable_pb2
  from tensorflow.python.framework import ops

  found: Dict[str, VariableDef] = {}
  for key, collection in meta_graph.collection_def.items():
    if ops.get_collection_proto_type(key) is not variable_pb2.VariableDef:
      continue
    for serialized in collection.bytes_list.value:
      try:
        variable = variable_pb2.VariableDef.FromString(serialized)
      except message.DecodeError:
        continue  # a collection of the user's own that has this name
      found.setdefault(variable.variable_name.rpartition(":")[0], variable)
  return found
