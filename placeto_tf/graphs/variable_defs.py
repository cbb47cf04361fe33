"""`variable_defs`: the variables that the collections of a MetaGraphDef describe."""

from __future__ import annotations

from typing import Dict

from placeto_tf.on_use import MetaGraphDef, VariableDef


def variable_defs(meta_graph: MetaGraphDef) -> Dict[str, VariableDef]:
  """Returns the VariableDefs of a MetaGraphDef by the names of their ops.

  The name of a collection determines the type of its serialized protos: `variables` holds
  VariableDefs, `queue_runners` holds QueueRunnerDefs. Some QueueRunnerDefs can be parsed as a
  VariableDef, so only collections with the registered type VariableDef are read.
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
        continue  # a user's own collection may have this name
      found.setdefault(variable.variable_name.rpartition(":")[0], variable)
  return found
