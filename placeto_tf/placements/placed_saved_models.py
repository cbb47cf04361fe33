"""Writes SavedModels with a placement, as new directories, and loads them.

TensorFlow reads a SavedModel in two ways, and both get the devices. Serving and `tf.compat.v1` run
the graph, whose nodes are placed, variables included. `tf.saved_model.load` runs the function that
the signature calls. The body of that function becomes the inlined ops with their devices. Its
variables are captures: the loader makes them on `SavedVariable.device` only if told to, which
`load_placed` does. It makes those of TF1's SavedModels on the device of the graph's variable, where
the loader would make them on the first.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Container, Dict, Iterable, List, Set

from placeto_tf.errors import GraphError, PlacementError, one_line
from placeto_tf.files import outputs, user_files
from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.exported_protos import rewritten_proto
from placeto_tf.graphs.functions import CALLS, keep_known_classes
from placeto_tf.graphs.op_defs import OpDefs
from placeto_tf.graphs.tensor_names import control_inputs, data_inputs, op_of, parse
from placeto_tf.graphs.traversal import reachable
from placeto_tf.on_use import tf
from placeto_tf.placements.node_devices import place_nodes
from placeto_tf.placements.placement import Placement

NAME = "saved_model"  # of the directory that is written
# A fingerprint is of the original proto; readers of SavedModels do without one.
_REPLACED = ("saved_model.pb", "saved_model.pbtxt", "fingerprint.pb")
_DONE = "done"


def write(graph: ComputationGraph, placement: Placement, out_dir: str) -> str:
  """Writes the placed SavedModel to `out_dir`/saved_model, and replaces an existing one.

  Args:
    graph: as `load_graph` read it from a SavedModel.
    placement: of all ops of the inlined graph.
    out_dir: a directory outside of the original.

  Returns:
    The path of the new SavedModel.

  Raises:
    PlacementError: an op has no device, the original directory is gone, or the new one lies in it
      or cannot be written.
    GraphError: an entry of the original directory is neither a file nor a directory.
  """
  source = graph.origin
  placed = place(graph, placement)
  path = os.path.join(out_dir, NAME)
  original = check_copyable(graph, out_dir)
  try:
    # Write to another name and rename, so that no reader sees an incomplete SavedModel.
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=NAME) as folder:
      partial = os.path.join(folder, NAME)
      # Copy all files except the proto, which is rewritten, and its fingerprint.
      shutil.copytree(original, partial, ignore=lambda folder, names: (
          _REPLACED if folder == original else ()))
      outputs.write(
          os.path.join(partial, "saved_model.pbtxt" if source.text else "saved_model.pb"),
          serialized(placed, text=source.text))
      if os.path.isdir(path):
        shutil.rmtree(path)
      os.rename(partial, path)
  except (OSError, shutil.Error) as error:
    raise PlacementError(
        f"cannot write the SavedModel {path!r} ({getattr(error, 'strerror', None) or error}); give "
        "a path in a folder that can be written to") from None
  return path


def serialized(proto: Any, *, text: bool) -> bytes:
  """Returns a proto as the bytes of a file, the same for equal protos.

  Args:
    proto: any proto.
    text: whether the file has the text format.

  Returns:
    The bytes.
  """
  if not text:
    return proto.SerializeToString(deterministic=True)
  from google.protobuf import text_format

  return text_format.MessageToString(proto).encode("utf-8")


def check_copyable(graph: ComputationGraph, out_dir: str) -> str:
  """Checks that the files of a SavedModel can be copied to a directory.

  Raises:
    PlacetoError: the SavedModel is gone, the directory lies in it, or a file of it is a pipe or a
      device.
  """
  source = graph.origin
  if source.path is None or not os.path.isdir(source.path):
    raise PlacementError(
        f"the SavedModel {source.path!r}, whose variables are to be copied, is gone; put it back")
  root, target = os.path.realpath(source.path), os.path.realpath(out_dir)
  if os.path.commonpath([root, target]) == root:
    raise PlacementError(
        f"{out_dir!r} lies in the SavedModel {source.path!r}, which is to be copied to it; choose "
        "a directory outside")
  _check_files(source.path)
  return source.path


def _check_files(directory: str) -> None:
  """Raises GraphError where a file of a SavedModel is a pipe or a device, which would be read."""
  for folder, _, names in os.walk(directory):
    for name in names:
      user_files.check_regular(
          os.path.join(folder, name), what="a file of the SavedModel", remedy="take it away",
          error_type=GraphError)


def place(graph: ComputationGraph, placement: Placement) -> Any:
  """Returns the SavedModel proto with the devices of a placement.

  Args:
    graph: as `load_graph` read it from a SavedModel.
    placement: of all ops of the inlined graph.

  Returns:
    A new proto: the graph's nodes and the functions of its calls with devices.

  Raises:
    PlacementError: an op has no device.
  """
  source = graph.origin
  # The proto holds a MetaGraph for each set of tags; one of them was read.
  chosen = next(
      i for i, meta_graph in enumerate(source.proto.meta_graphs) if meta_graph is source.meta_graph)
  placed = type(source.proto)()
  placed.CopyFrom(rewritten_proto(graph))
  meta_graph = placed.meta_graphs[chosen]
  place_nodes(placement, meta_graph.graph_def.node)
  library = meta_graph.graph_def.library
  nodes = {node.name: node for node in meta_graph.graph_def.node}
  keep_known_classes(meta_graph.graph_def.node, nodes)
  originals = {node.name: node for node in source.meta_graph.graph_def.node}
  functions = {function.signature.name: function for function in library.function}
  done: Set[str] = set()
  # The body of each called function becomes the ops that were inlined for its call.
  for site in _behind(graph.fetches, originals):
    name = site.attr["f"].func.name if site.op in CALLS and "f" in site.attr else ""
    if name in functions and name not in done:
      done.add(name)
      body = _Body(functions[name], site, nodes, originals, library)
      if body.place():
        _place_variables(meta_graph.object_graph_def, name, body.arguments, nodes)
  return placed


def load_placed(directory: Any, tags: Any = None) -> Any:
  """Loads a placed SavedModel with its variables on their devices.

  Soft placement has to be on, as it is by default: while TensorFlow loads a model, it reads the
  variables with ops of the host.

  Args:
    directory: as `scripts/place.py` wrote it: `DIR/saved_model`, or `DIR` itself.
    tags: of the graph to load, where the SavedModel has several.

  Returns:
    The result of `tf.saved_model.load`; call its `signatures`.

  Raises:
    GraphError: the directory has no SavedModel, or TensorFlow cannot load it.
  """
  path = os.fspath(directory)
  # `DIR` itself is accepted where the model is in DIR/saved_model.
  inner = os.path.join(path, NAME)
  if os.path.isdir(inner) and not tf.saved_model.contains_saved_model(path):
    path = inner
  if not tf.saved_model.contains_saved_model(path):
    raise GraphError(
        f"{path!r} has no SavedModel; expected the directory that a placed model was written to")
  _check_files(path)  # TensorFlow would wait for a pipe
  options = tf.saved_model.LoadOptions(experimental_variable_policy="save_variable_devices")
  from tensorflow.python.eager import wrap_function

  lift = wrap_function._lift_single_variable

  def lift_in_place(variable: Any, *args: Any) -> Any:
    with tf.device(variable.device):
      return lift(variable, *args)

  wrap_function._lift_single_variable = lift_in_place
  try:
    return tf.saved_model.load(path, tags=tags, options=options)
  except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
    raise GraphError(
        f"TensorFlow cannot load the SavedModel {path!r} ({one_line(error)}); place the model "
        "again on devices that this machine has, with soft placement on") from error
  finally:
    wrap_function._lift_single_variable = lift


def _behind(ends: Iterable[str], nodes: Dict[str, Any], given: Container[str] = ()) -> List[Any]:
  """Returns the nodes that tensors and control inputs need, in order, up to the given tensors."""
  def needs(text: str) -> bool:
    return op_of(text) in nodes and (text.startswith("^") or _with_port(text) not in given)

  # Through data and control inputs.
  found = reachable(ends, lambda text: nodes[op_of(text)].input if needs(text) else ())
  names = {op_of(text) for text in found if needs(text)}
  return [node for name, node in nodes.items() if name in names]


class _Body:
  """The body of a called function, made of the placed ops that were inlined for one call.

  Attributes:
    arguments: name of each argument -> the tensor that the call passes.
  """

  def __init__(self, function: Any, site: Any, nodes: Dict, originals: Dict, library: Any):
    self._function = function
    self._site = site
    self._nodes = nodes
    self._originals = originals
    self._op_defs = OpDefs(library)
    self.arguments = dict(zip(
        (arg.name for arg in function.signature.input_arg), map(self._resolve, data_inputs(site))))

  def place(self) -> bool:
    """Rewrites the function in place; returns whether the call was inlined.

    If the call was not inlined, the graph has no ops of the function, and nothing is rewritten.
    """
    gather = self._nodes.get(self._site.name)
    if gather is None or gather.op != "IdentityN":
      return False
    signature = self._function.signature
    # The IdentityN of the call has its results as data, and one control input for its effects.
    results = [_with_port(text) for text in data_inputs(gather)]
    waits = [op_of(text) for text in control_inputs(gather)]
    if len(results) != len(signature.output_arg) or len(self.arguments) != len(
        signature.input_arg) or len(waits) != 1:
      return False
    # Tensor that the call passes -> name of the first argument with this tensor.
    given: Dict[str, str] = {}
    for name, tensor in self.arguments.items():
      given.setdefault(tensor, name)
    # The inlined ops replace the body; inputs get the spelling of function bodies.
    # Ops of the original graph are outside of the body.
    inlined = {name: node for name, node in self._nodes.items() if name not in self._originals}
    body = _behind([*results, *waits], inlined, given)
    del self._function.node_def[:]
    for node in body:
      copy = self._function.node_def.add()
      copy.CopyFrom(node)
      del copy.input[:]
      for text in node.input:
        if not text.startswith("^"):
          copy.input.append(self._inside(_with_port(text), given))
        elif text[1:] not in self._originals:  # control inputs of the call are outside
          copy.input.append(text)
    # Results and the side effects that a caller waits for.
    for arg, tensor in zip(signature.output_arg, results):
      self._function.ret[arg.name] = self._inside(tensor, given)
    del signature.control_output[:]
    signature.control_output.append(_DONE)
    self._function.control_ret.clear()
    self._function.control_ret[_DONE] = waits[0]
    return True

  def _inside(self, tensor: str, given: Dict[str, str]) -> str:
    """Returns a tensor "op:port" in the spelling of bodies: "argument" or "op:result:index"."""
    if tensor in given:
      return given[tensor]
    name, port = parse(tensor)
    # Nodes number their outputs through all results, bodies within each result.
    for result, (start, count) in self._op_defs.signature(self._nodes[name]).output_ranges.items():
      if start <= port < start + count:
        return f"{name}:{result}:{port - start}"
    raise PlacementError(f"the graph has no tensor {tensor!r}; load the SavedModel again")

  def _resolve(self, text: str) -> str:
    """Returns the tensor that the call is given, traced through other calls."""
    text = _with_port(text)
    name, port = parse(text)
    original, gather = self._originals.get(name), self._nodes.get(name)
    # An inlined call left an IdentityN of its name, whose inputs are the results.
    if gather is not None and original is not None and gather.op != original.op and (
        gather.op == "IdentityN"):
      return _with_port(gather.input[port])
    return text


def _place_variables(objects: Any, function: str, arguments: Dict[str, str], nodes: Dict) -> None:
  """Writes the devices of captured variables where the loader of objects reads them."""
  if function not in objects.concrete_functions:
    return
  # Captures are the last arguments, so both lists are paired from the end.
  bound = list(objects.concrete_functions[function].bound_inputs)
  for node_id, tensor in zip(reversed(bound), reversed(list(arguments.values()))):
    handle = nodes.get(op_of(tensor))
    if handle is not None and objects.nodes[node_id].WhichOneof("kind") == "variable":
      objects.nodes[node_id].variable.device = handle.device


def _with_port(text: str) -> str:
  op, port = parse(text)
  return f"{op}:{port}"
