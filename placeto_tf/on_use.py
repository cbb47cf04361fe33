"""TensorFlow and Keras, imported at their first use, and names of their types for annotations.

Lists of methods, `--help`, and searches on costs that were read start without TensorFlow.
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

__all__ = [
    "AttrValue", "ConcreteFunction", "ConfigProto", "FuncGraph", "FunctionDef",
    "FunctionDefLibrary", "GenericFunction", "GraphDef", "Message", "MetaGraphDef", "NameAttrList",
    "NodeDef", "OpDef", "OpInfo", "RunMetadata", "RunOptions", "SavedModel", "TensorInfo",
    "TensorShapeProto", "VariableDef", "keras", "tf"]


class _OnUse(types.ModuleType):
  """A module whose first attribute that is read imports it."""

  def __getattr__(self, name: str) -> Any:
    return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
  import keras
  import tensorflow as tf
  from google.protobuf.message import Message
  from tensorflow.core.framework.attr_value_pb2 import AttrValue, NameAttrList
  from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.core.framework.node_def_pb2 import NodeDef
  from tensorflow.core.framework.op_def_pb2 import OpDef
  from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
  from tensorflow.core.framework.variable_pb2 import VariableDef
  from tensorflow.core.grappler.costs.op_performance_data_pb2 import OpInfo
  from tensorflow.core.protobuf.config_pb2 import ConfigProto, RunMetadata, RunOptions
  from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo
  from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
  from tensorflow.python.framework.func_graph import FuncGraph
  from tensorflow.types.experimental import ConcreteFunction, GenericFunction
else:
  keras, tf = _OnUse("keras"), _OnUse("tensorflow")
  globals().update({name: Any for name in __all__ if name not in ("keras", "tf")})  # types
