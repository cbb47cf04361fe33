"""Reads GraphDef, MetaGraphDef and CostGraphDef files, binary and text.

The bytes of one of these protos can often be parsed as another without an error. So the content is
checked after parsing: wire types of fields, names of nodes, plausible op types. The error message
names the format that a wrong file seems to have.
"""

from __future__ import annotations

import os
import re
from typing import Any, Optional, Tuple

from placeto_tf.errors import GraphError, one_line, option
from placeto_tf.files import user_files
from placeto_tf.on_use import Message

# Longest suffixes first: ".meta.pbtxt" ends with ".pbtxt".
SUFFIXES = (
    (".cost_graph.pbtxt", "cost_graph_def", True),
    (".cost_graph.pb", "cost_graph_def", False),
    (".meta.pbtxt", "meta_graph_def", True),
    (".meta", "meta_graph_def", False),
    (".pbtxt", "graph_def", True),
    (".pb", "graph_def", False),
)
FORMATS = ("graph_def", "meta_graph_def", "cost_graph_def")
TITLES = {
    "graph_def": "GraphDef", "meta_graph_def": "MetaGraphDef", "cost_graph_def": "CostGraphDef"}

_OP_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_>.\-]*\Z")


def read_file(path: str, format: Optional[str] = None) -> Tuple[str, Message, bool]:
  """Reads a graph file.

  Args:
    path: the file.
    format: one of `FORMATS`, or None to derive the format from the suffix.

  Returns:
    The format, the proto, and whether the file is text.

  Raises:
    GraphError: there is no such file, its format is unknown, or the content has another format.
  """
  format, text = file_format(path, format)
  return format, parse(read_bytes(path), format, text, path), text


def read_bytes(path: str) -> bytes:
  """Returns the content of a file; refuses an empty file."""
  content = user_files.read_bytes(
      path, what="the graph file", remedy="check the path", error_type=GraphError)
  if not content:
    raise GraphError(f"the graph file {path!r} is empty; export the graph again")
  return content


def file_format(path: str, format: Optional[str]) -> Tuple[str, bool]:
  """Returns the format of a file, and whether it is text, by its suffix.

  Args:
    path: of the file.
    format: one of `FORMATS`, which overrides the suffix, or None.

  Returns:
    The format, and whether the file is text.

  Raises:
    GraphError: the format or the suffix is unknown.
  """
  if format is not None and format not in FORMATS:
    raise GraphError(f"unknown format {format!r}; expected one of {', '.join(FORMATS)}")
  # Suffixes are sorted by length, so the first match is the longest.
  for suffix, suffix_format, text in SUFFIXES:
    if path.endswith(suffix):
      return format or suffix_format, text
  if format is None and not os.path.exists(path):
    raise GraphError(f"there is no file or SavedModel directory {path!r}; check the path")
  if format is None:
    raise GraphError(
        f"the suffix of {path!r} is none of {', '.join(s for s, _, _ in SUFFIXES)}; rename the "
        f"file or pass {option('format')} with one of {', '.join(FORMATS)}")
  return format, path.endswith("txt")


def parse(content: bytes, format: str, text: bool, where: str) -> Message:
  """Parses and checks the content of a graph file; graphs of a SavedModel are MetaGraphDefs.

  Args:
    content: of the file.
    format: one of `FORMATS`, or "saved_model".
    text: whether the content is in text form.
    where: the file's name, for errors.

  Raises:
    GraphError: the content has another format; the message names the format that it seems to have.
  """
  proto, problem = _try_parse(content, format, text)
  if not problem:
    return proto
  message = (f"{where!r} is not a {TITLES.get(format, 'SavedModel')} in "
             f"{'text' if text else 'binary'} form: {problem}")
  # The content has another format: try which one.
  for other in FORMATS if format in FORMATS else ():
    if other != format and not _try_parse(content, other, text)[1]:
      raise GraphError(f"{message}; it looks like a {TITLES[other]}: pass "
                       f"{option('format', other)}")
  if not text and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in content[:1000]):
    raise GraphError(f"{message}; it looks like text: give it a name that ends with .pbtxt")
  raise GraphError(f"{message}; the file is damaged or of another kind: export the graph again")


def new_proto(format: str) -> Message:
  """Returns an empty proto of the format."""
  from tensorflow.core.framework import cost_graph_pb2, graph_pb2
  from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

  return {
      "graph_def": graph_pb2.GraphDef,
      "meta_graph_def": meta_graph_pb2.MetaGraphDef,
      "cost_graph_def": cost_graph_pb2.CostGraphDef,
      "saved_model": saved_model_pb2.SavedModel,
  }[format]()


def format_of(proto: object) -> Optional[str]:
  """Returns the format of a proto in memory, or None if the proto is no graph."""
  full_name = getattr(getattr(proto, "DESCRIPTOR", None), "full_name", None)
  for format, title in TITLES.items():
    if full_name == f"tensorflow.{title}":
      return format
  return None


def implausible(proto: Message, format: str) -> str:
  """Returns the reason why a proto cannot be of a format.

  Returns:
    A sentence without a full stop, or "" if the proto can be of the format.
  """
  if format == "saved_model":
    if not proto.meta_graphs:
      return "it has no graphs"
    # The first reason among the graphs.
    return next(filter(None, (
        implausible(meta_graph, "meta_graph_def") for meta_graph in proto.meta_graphs)), "")
  if _misread_fields(proto):
    return "some of its fields are of another proto"
  if format == "meta_graph_def":
    return implausible(proto.graph_def, "graph_def")
  if not proto.node:
    return "it has no nodes"
  return next(filter(None, (_implausible_node(node) for node in proto.node)), "")


def _try_parse(content: bytes, format: str, text: bool) -> Tuple[Message, str]:
  """Returns the proto, and the reason why its format is wrong, or ""."""
  from google.protobuf import message, text_format

  proto = new_proto(format)
  try:
    if text:
      text_format.Parse(content.decode("utf-8"), proto)
    else:
      proto.ParseFromString(content)
  except text_format.ParseError as error:
    return None, one_line(error)
  except UnicodeDecodeError:
    return None, "it is not UTF-8 text"
  except RecursionError:
    return None, "its messages are nested too deeply"
  except (message.DecodeError, ValueError):
    return None, "its bytes end early or are not a proto"
  return proto, implausible(proto, format)


def _implausible_node(node: Message) -> str:
  """Returns the reason why a node of a GraphDef or CostGraphDef cannot be one, or ""."""
  name = repr(node.name[:80])
  if not node.name:
    return "a node has no name"
  if hasattr(node, "op"):  # a NodeDef
    if not _OP_TYPE.match(node.op):
      return f"node {name} has {node.op[:80]!r} where an op type should be"
    parts = [node]
  else:
    # Names of devices contain a / or a :; other texts are fields of another proto.
    if node.device and not re.search("[/:]", node.device):
      return f"node {name} has {node.device[:80]!r} where a device should be"
    parts = [node, *node.output_info]
  return f"some fields of node {name} are of another proto" if any(
      map(_misread_fields, parts)) else ""


def _misread_fields(proto: Message) -> bool:
  """Returns whether a field has a known number but the wrong wire type.

  Fields with unknown numbers are accepted, because newer versions of TensorFlow write them.
  """
  known = proto.DESCRIPTOR.fields_by_number
  return any(unknown.field_number in known for unknown in _unknown_fields(proto))


def _unknown_fields(proto: Message) -> Any:
  try:
    from google.protobuf import unknown_fields
  except ImportError:  # before protobuf 4.22
    return proto.UnknownFields()
  return unknown_fields.UnknownFieldSet(proto)
