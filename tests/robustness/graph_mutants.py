"""Mutated graphs for `fuzz_graphs.py`: each a function of a seed and its number.

Mutants are made of small sound protos with all that real graphs have: variables of both kinds,
loops, branches, nested function calls, shapes that are computed, gradients. One to eight changes
are made to the messages, and in one mutant of five to its bytes, so that most still parse.
"""

from __future__ import annotations

import functools
import os
import random
import tempfile
import time
import traceback
from typing import Any, Dict, List, Tuple

FORMATS = ("graph_def", "meta_graph_def", "saved_model", "cost_graph_def")
FILES = {"graph_def": "graph.pb", "meta_graph_def": "graph.meta", "saved_model": "saved_model.pb",
          "cost_graph_def": "graph.cost_graph.pb"}
_SIZES = (-1, -2, 0, 1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 62) + 1,
          (1 << 63) - 1, -(1 << 31), -(1 << 63))
_NAMES = ("", "^", ":", "a:b:c", "x" * 100_000, "\u00e9", "a b", "^^x", "x:-1", "x:99999999999",
          "../x", "loc:@", "\n", "_SOURCE")
_OPS = ("NoSuchOp", "Const", "Identity", "Switch", "Merge", "Enter", "Exit", "NextIteration",
        "LoopCond", "PartitionedCall", "While", "If", "Reshape", "Fill", "Range", "Pack", "Concat",
        "Conv2D", "Split", "TensorListReserve", "VarHandleOp", "StridedSlice", "Placeholder", "")


def _training_graph() -> Any:
  """A v1 graph: both kinds of variables, a loop, shapes that are computed, gradients."""
  import tensorflow as tf

  v1 = tf.compat.v1
  with tf.Graph().as_default():
    x = v1.placeholder(tf.float32, [None, 4, 4, 2], name="x")
    filters = v1.get_variable("filters", [3, 3, 2, 3], use_resource=True)
    bias = v1.get_variable("bias", [3], use_resource=False)
    y = tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME") + bias)
    y = tf.reshape(y, [tf.shape(x)[0], 48])
    _, y = tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, tf.tanh(z)), (0, y))
    y = tf.concat([y, tf.zeros(tf.stack([tf.shape(x)[0], 2]))], 1)
    loss = tf.reduce_mean(y * y, name="loss")
    train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name="train")
    v1.add_to_collection("train_op", train)
    v1.global_variables_initializer()
    return v1.train.export_meta_graph(saver_def=v1.train.Saver().saver_def)


def _saved_model() -> Any:
  """A SavedModel with nested calls, a loop and a branch."""
  import tensorflow as tf
  from tensorflow.core.protobuf import saved_model_pb2

  class Model(tf.Module):
    def __init__(self) -> None:
      self.weights = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def layer(self, x: Any) -> Any:
      return tf.tanh(x @ self.weights)

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def serve(self, x: Any) -> Any:
      for _ in tf.range(3):
        x = self.layer(x)
        if tf.reduce_sum(x) > 0:
          x = x * 2
      self.weights.assign_add(tf.eye(4))
      return {"y": x, "z": self.layer(x)}

  model = Model()
  with tempfile.TemporaryDirectory() as folder:
    tf.saved_model.save(model, folder, signatures=model.serve)
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
      return saved_model_pb2.SavedModel.FromString(file.read())


def _cost_graph() -> Any:
  from tensorflow.core.framework import cost_graph_pb2

  proto = cost_graph_pb2.CostGraphDef()
  for i in range(40):
    node = proto.node.add(
        name=f"op{i}", id=i, device="/device:CPU:0", compute_cost=i, is_final=i == 39)
    node.output_info.add(size=4 * i, alias_input_port=-1).shape.dim.add(size=i)
    for before in {i - 1, i // 2} - {i, -1}:
      node.input_info.add(preceding_node=before)
    if i > 3:
      node.control_input.append(i - 3)
  return proto


@functools.cache
def bases() -> Dict[str, Tuple[Any, ...]]:
  """Format -> sound protos that mutants are made of."""
  meta_graph, saved_model = _training_graph(), _saved_model()
  inner = saved_model.meta_graphs[0]
  return {
      "graph_def": (meta_graph.graph_def, inner.graph_def),
      "meta_graph_def": (meta_graph, inner),
      "saved_model": (saved_model,),
      "cost_graph_def": (_cost_graph(),),
  }


def mutant(seed: int, number: int) -> Tuple[str, bytes, bool, str]:
  """The mutant of that number: format, bytes, whether they parse, and what was done."""
  from google.protobuf import message

  rng = random.Random(f"{seed}/{number}")
  format = FORMATS[number % len(FORMATS)]
  base = rng.choice(bases()[format])
  proto = type(base)()
  proto.CopyFrom(base)
  done = []
  for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
    change = rng.choices(list(_CHANGES), weights=list(_CHANGES.values()))[0]
    done.append(change.__name__[1:])
    change(rng, proto)
  content = proto.SerializeToString(deterministic=True)
  if rng.random() < 0.2:
    done.append("bytes")
    content = _changed_bytes(rng, content)
  try:
    type(base).FromString(content)
    parses = True
  except (message.DecodeError, RecursionError, ValueError):
    parses = False
  return format, content, parses, "+".join(done)


def _changed_bytes(rng: random.Random, content: bytes) -> bytes:
  changed = bytearray(content)
  kind = rng.randrange(4)
  if kind == 0:
    del changed[rng.randrange(len(changed) + 1):]
  elif kind == 1:
    at = rng.randrange(len(changed) + 1)
    changed[at:at] = rng.randbytes(rng.choice((1, 2, 100)))
  elif changed:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
      changed[rng.randrange(len(changed))] = rng.randrange(256)
  return bytes(changed)


def _messages(proto: Any, limit: int = 20_000) -> List[Any]:
  """The proto and all messages inside, of which maps are left out but for their values."""
  found: List[Any] = []
  stack = [proto]
  while stack and len(found) < limit:
    each = stack.pop()
    found.append(each)
    for field, value in each.ListFields():
      if field.message_type is None:
        continue
      if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is not None:
          stack.extend(value[key] for key in sorted(value))
      elif isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        stack.append(value)
      else:
        stack.extend(value)
  return found


def _node_lists(proto: Any) -> List[Any]:
  """Lists of nodes: of the graph, and of its functions."""
  graphs = [proto]
  if hasattr(proto, "meta_graphs"):
    graphs = [meta_graph.graph_def for meta_graph in proto.meta_graphs]
  elif hasattr(proto, "graph_def"):
    graphs = [proto.graph_def]
  lists = []
  for graph in graphs:
    lists.append(graph.node)
    if hasattr(graph, "library"):
      lists += [function.node_def for function in graph.library.function]
  return [nodes for nodes in lists if len(nodes)]


def _pick_node(rng: random.Random, proto: Any) -> Tuple[Any, Any]:
  lists = _node_lists(proto)
  if not lists:
    return None, None
  nodes = lists[0] if rng.random() < 0.6 else rng.choice(lists)
  return nodes, rng.choice(nodes)


def _dropped_field(rng: random.Random, proto: Any) -> None:
  each = rng.choice(_messages(proto))
  fields = [field for field, _ in each.ListFields()]
  if fields:
    each.ClearField(rng.choice(fields).name)


def _dropped_element(rng: random.Random, proto: Any) -> None:
  lists = [value for each in _messages(proto) for field, value in each.ListFields()
           if not isinstance(value, (str, bytes)) and hasattr(value, "pop") and len(value)
           and not hasattr(value, "keys")]
  if lists:
    values = rng.choice(lists)
    del values[rng.randrange(len(values))]


def _extreme_number(rng: random.Random, proto: Any) -> None:
  places = []
  for each in _messages(proto):
    for field, value in each.ListFields():
      if field.cpp_type in (1, 2, 3, 4, 8):  # integers and enums
        places.append((each, field, value))
  if not places:
    return
  for each, field, value in rng.sample(places, min(len(places), rng.choice((1, 1, 3)))):
    number = rng.choice(_SIZES) if rng.random() < 0.8 else rng.randrange(-300, 300)
    try:
      if hasattr(value, "append"):
        value[rng.randrange(len(value))] = number
      else:
        setattr(each, field.name, number)
    except (ValueError, TypeError):
      pass  # too large for the field


def _extreme_shape(rng: random.Random, proto: Any) -> None:
  shapes = [each for each in _messages(proto) if each.DESCRIPTOR.name == "TensorShapeProto"]
  if not shapes:
    return
  shape = rng.choice(shapes)
  for _ in range(rng.choice((0, 1, 2, 5, 300))):
    shape.dim.add(size=rng.choice(_SIZES))
  for dim in shape.dim:
    if rng.random() < 0.3:
      dim.size = rng.choice(_SIZES)
  if rng.random() < 0.1:
    shape.unknown_rank = True


def _rewired_input(rng: random.Random, proto: Any) -> None:
  nodes, node = _pick_node(rng, proto)
  if node is None:
    return
  other = rng.choice(nodes)
  if hasattr(node, "input_info"):  # of a CostGraphDef
    kind = rng.randrange(3)
    if kind == 0:
      node.input_info.add(preceding_node=rng.choice((other.id, *_SIZES[:8])),
                          preceding_port=rng.choice((0, 1, -1, -2, 1 << 30)))
    elif kind == 1:
      node.control_input.append(other.id)
    else:
      node.id = other.id
    return
  text = rng.choice((
      other.name, f"^{other.name}", f"{other.name}:{rng.choice((0, 1, 2, 100))}",
      f"{other.name}:output:0", rng.choice(_NAMES)))
  if node.input and rng.random() < 0.8:
    node.input[rng.randrange(len(node.input))] = text
  else:
    node.input.append(text)


def _changed_name(rng: random.Random, proto: Any) -> None:
  nodes, node = _pick_node(rng, proto)
  if node is not None:
    node.name = rng.choice((*_NAMES, rng.choice(nodes).name))


def _changed_op(rng: random.Random, proto: Any) -> None:
  nodes, node = _pick_node(rng, proto)
  if node is not None and hasattr(node, "op"):
    node.op = rng.choice((*_OPS, rng.choice(nodes).op))


def _changed_attribute(rng: random.Random, proto: Any) -> None:
  """Another value, of another node or of another kind, for an attribute."""
  nodes, node = _pick_node(rng, proto)
  if node is None or not hasattr(node, "attr") or not len(node.attr):
    return
  key = rng.choice(sorted(node.attr))
  kind = rng.randrange(5)
  if kind == 0:
    other = rng.choice(nodes)
    if len(other.attr):
      node.attr[key].CopyFrom(other.attr[rng.choice(sorted(other.attr))])
  elif kind == 1:
    node.attr[key].type = rng.choice((0, 1, 3, 7, 9, 20, 21, 101, 120, 500))
  elif kind == 2:
    node.attr[key].i = rng.choice(_SIZES)
  elif kind == 3:
    node.attr[key].Clear()
  else:
    del node.attr[key]


def _changed_constant(rng: random.Random, proto: Any) -> None:
  """Values of a constant, by which shapes are computed and loops end."""
  tensors = [each for each in _messages(proto) if each.DESCRIPTOR.name == "TensorProto"]
  if not tensors:
    return
  tensor = rng.choice(tensors)
  kind = rng.randrange(5)
  if kind == 0:
    tensor.int_val[:] = [rng.choice(_SIZES[:9])]
  elif kind == 1:
    size = len(tensor.tensor_content)
    tensor.tensor_content = rng.choice((b"\xff", b"\x7f", b"\x00")) * size
  elif kind == 2:
    tensor.tensor_content = rng.randbytes(rng.choice((0, 1, 4, 1000)))
  elif kind == 3:
    tensor.dtype = rng.choice((0, 1, 2, 3, 7, 9, 20, 21, 101, 333))
  else:
    tensor.string_val.append(b"x")


def _repeated_node(rng: random.Random, proto: Any) -> None:
  nodes, node = _pick_node(rng, proto)
  if node is None:
    return
  for _ in range(rng.choice((1, 1, 2, 30))):
    added = nodes.add()
    added.CopyFrom(node)
    if rng.random() < 0.7:
      added.name += f"_{len(nodes)}"
      if hasattr(added, "id") and rng.random() < 0.7:
        added.id = len(nodes)


def _deep_nesting(rng: random.Random, proto: Any) -> None:
  """Attributes inside attributes, calls inside calls, or a long chain of ops."""
  lists = _node_lists(proto)
  if not lists:
    return
  depth = rng.choice((10, 40, 90, 150, 400))
  nodes = lists[0]
  if hasattr(nodes[0], "id"):
    for _ in range(depth):
      added = nodes.add(name=f"deep{len(nodes)}", id=len(nodes) + 1000)
      added.output_info.add(size=4)
      added.input_info.add(preceding_node=nodes[-2].id)
    return
  kind = rng.randrange(4)
  if kind == 0:
    value = rng.choice(nodes).attr["deep"]
    for _ in range(depth):
      value = value.list.func.add(name="f").attr["deep"]
  elif kind == 1:
    message = rng.choice(nodes).attr["value"].tensor
    for _ in range(min(depth, 60)):
      message = message.variant_val.add().tensors.add()
  elif kind == 2:
    _nested_calls(rng, proto, nodes, depth)
  else:
    last = rng.choice(nodes).name
    for i in range(depth * 20):
      added = nodes.add(name=f"deep{i}", op="Identity", input=[last])
      added.attr["T"].type = 1
      last = added.name


def _nested_calls(rng: random.Random, proto: Any, nodes: Any, depth: int) -> None:
  """Functions that call the next one once or twice, the last one perhaps the first."""
  graph = proto
  if hasattr(proto, "meta_graphs"):
    graph = proto.meta_graphs[0].graph_def
  elif hasattr(proto, "graph_def"):
    graph = proto.graph_def
  twice, circle = rng.random() < 0.3, rng.random() < 0.3
  for i in range(depth):
    function = graph.library.function.add()
    function.signature.name = f"deep{i}"
    function.signature.input_arg.add(name="x", type=1)
    function.signature.output_arg.add(name="y", type=1)
    callee = f"deep{(i + 1) % depth if circle else i + 1}"
    result = "x"
    if circle or i + 1 < depth:
      for call in range(1 + twice):
        node = function.node_def.add(name=f"call{call}", op="PartitionedCall", input=[result])
        _call(node, callee)
        result = f"call{call}:output:0"
    function.ret["y"] = result
  node = nodes.add(name="deep_input", op="Placeholder")
  node.attr["dtype"].type = 1
  node.attr["shape"].shape.dim.add(size=2)
  _call(nodes.add(name="deep_call", op="PartitionedCall", input=["deep_input"]), "deep0")


def _call(node: Any, function: str) -> None:
  node.attr["f"].func.name = function
  node.attr["Tin"].list.type.append(1)
  node.attr["Tout"].list.type.append(1)


def _unchanged(rng: random.Random, proto: Any) -> None:
  """For mutants whose bytes alone are changed."""


# What is done to a mutant -> how often.
_CHANGES = {
    _dropped_field: 4, _dropped_element: 2, _extreme_number: 3, _extreme_shape: 3,
    _rewired_input: 4, _changed_name: 1, _changed_op: 2, _changed_attribute: 3,
    _changed_constant: 4, _repeated_node: 1, _deep_nesting: 1, _unchanged: 2,
}


def read(format: str, content: bytes, folder: str, with_costs: bool) -> Dict[str, Any]:
  """Loads a mutant, as a file; what happened, the CPU seconds that loading took, and the seconds of
  costing, which is done by another process."""
  from placeto_tf.clusters import Cluster
  from placeto_tf.costs import estimate_costs
  from placeto_tf.errors import PlacetoError
  from placeto_tf.graphs import load_graph

  path = os.path.join(folder, FILES[format])
  with open(path, "wb") as file:
    file.write(content)
  found: Dict[str, Any] = {"load_s": 0.0, "cost_s": 0.0, "stage": "load"}
  clock = time.process_time
  started = clock()
  try:
    graph = load_graph(folder if format == "saved_model" else path, batch_size=2)
    found["load_s"] = clock() - started
    found["outcome"] = "loaded"
    if with_costs:
      found["stage"], clock = "cost", time.perf_counter
      started = clock()
      estimate_costs(graph, Cluster.parse("k80:2"), cache=False)
      found["outcome"] = "costed"
  except PlacetoError as error:
    found["outcome"], found["error"] = "refused", f"{type(error).__name__}: {error}"
  except Exception as error:  # what the fuzzing is to find
    found["outcome"] = "raised"
    found["error"] = f"{type(error).__name__}: {error}"[:500]
    found["traceback"] = traceback.format_exc()[-3000:]
  found[f"{found['stage']}_s"] = clock() - started
  return found
