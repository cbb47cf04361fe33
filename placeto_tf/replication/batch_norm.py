"""Fused batch normalization written out in plain ops, so that its statistics can be combined.

A fused op computes mean and variance of the examples it is given. Written out, both are means over
the batch, which replicas join like any other: synchronized batch normalization.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

from placeto_tf.graphs import load_graph
from placeto_tf.graphs.computation_graph import ComputationGraph, GraphSource
from placeto_tf.graphs.graph_defs import ReadGraph, from_graph_def
from placeto_tf.graphs.tensor_names import data_inputs
from placeto_tf.replication.nodes import INT32, NodeWriter

if TYPE_CHECKING:
  from tensorflow.core.framework.graph_pb2 import GraphDef
  from tensorflow.core.framework.node_def_pb2 import NodeDef

_FORWARD = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_BACKWARD = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")


def with_plain_batch_norm(graph: ComputationGraph, corrected: bool = True) -> ComputationGraph:
  """Returns the graph with every fused batch normalization of training written out.

  Such an op keeps its name and its outputs.

  Args:
    graph: at any batch.
    corrected: whether the variances that are kept have Bessel's correction, as those of the ops.

  Returns:
    The graph itself where nothing is written out.
  """
  source = graph.origin
  graph_def = _written_out(source.graph_def, corrected)
  if graph_def is None:
    return graph
  # Feeds by op name, as `load_graph` takes them.
  shapes = {name.rpartition(":")[0]: shape for name, shape in source.feed_shapes.items()}
  options: Dict[str, Any] = {
      "fetches": graph.fetches, "feeds": graph.feeds, "feed_shapes": shapes}
  if source.format == "concrete_function":
    read = ReadGraph(GraphSource(
        "concrete_function", graph_def, tf_graph=source.tf_graph, graph_def=graph_def,
        fixed_devices=source.fixed_devices))
    return from_graph_def(read, **options)
  proto = graph_def
  if source.format == "meta_graph_def":
    proto = type(source.proto)()
    proto.CopyFrom(source.proto)
    proto.graph_def.CopyFrom(graph_def)
  return load_graph(proto, **options)


def _written_out(graph_def: GraphDef, corrected: bool) -> Optional[GraphDef]:
  """Returns a new GraphDef, or None if there is nothing to write out."""
  if not any(_is_training(node) for node in graph_def.node):
    return None
  writer = NodeWriter(type(graph_def)())
  writer.graph_def.versions.CopyFrom(graph_def.versions)
  writer.graph_def.library.CopyFrom(graph_def.library)
  for node in graph_def.node:
    if not _is_training(node):
      writer.graph_def.node.add().CopyFrom(node)
    elif node.op in _FORWARD:
      _Norm(writer, node, node.input[0]).forward(corrected)
    else:
      _Norm(writer, node, node.input[1]).backward()
  return writer.graph_def


def _is_training(node: NodeDef) -> bool:
  return node.op in (*_FORWARD, *_BACKWARD) and (
      "is_training" not in node.attr or node.attr["is_training"].b) and not _of_single_examples(
          node)


def _of_single_examples(node: NodeDef) -> bool:
  """Returns whether the op stands for a layer normalization (tf-keras: examples as channels)."""
  return "data_format" in node.attr and node.attr["data_format"].s == b"NCHW" and (
      "layer_norm" in node.name.lower())


class _Norm:
  """One op, written out by its input, statistics and normalized input."""

  def __init__(self, writer: NodeWriter, node: NodeDef, x: str):
    self._writer, self._node, self._name = writer, node, node.name
    self._dtype = node.attr["T"].type
    self._stats = node.attr["U"].type if "U" in node.attr else self._dtype
    layout = node.attr["data_format"].s if "data_format" in node.attr else b"NHWC"
    channels_first = layout in (b"NCHW", b"NCDHW")
    self._rank = 5 if layout in (b"NDHWC", b"NCDHW") else 4
    # All axes but that of the channels.
    axes = [0, *range(2, self._rank)] if channels_first else list(range(self._rank - 1))
    # Shape in which a value for each channel is broadcast against x.
    self._channels = [1, -1] + [1] * (self._rank - 2) if channels_first else (
        [1] * (self._rank - 1) + [-1])
    # Where the op is in a loop or a branch, its constants are, too.
    self._x = self._cast("x", x)
    self._axes = writer.constant(self._sub("axes"), axes, INT32, self._x)
    self._wide = writer.constant(self._sub("channels"), self._channels, INT32, self._x)
    self._flat = writer.constant(self._sub("flat"), [-1], INT32, self._x)
    # mean = E[x], variance = E[(x - mean)^2], normal = (x - mean) / sqrt(variance + epsilon)
    self._mean = self._average("mean", self._x)
    centred = self._op("Sub", "centred", self._x, self._mean)
    self._variance = self._average("variance", self._op("Square", "square", centred))
    epsilon = node.attr["epsilon"].f if "epsilon" in node.attr else 1e-4
    self._inverse = self._op("Rsqrt", "inverse", self._op(
        "AddV2", "shifted", self._variance, self._number("epsilon", epsilon)))
    self._normal = self._op("Mul", "normal", centred, self._inverse)

  def forward(self, corrected: bool) -> None:
    """Writes y, the batch's mean and variance, and the inputs of the gradient."""
    data = data_inputs(self._node)
    scale, offset = (self._reshape(f"{name}_wide", tensor, self._wide)
                     for name, tensor in (("scale", data[1]), ("offset", data[2])))
    # y = normal * scale + offset
    y = self._op("AddV2", "y", self._op("Mul", "scaled", self._normal, scale), offset)
    mean, variance = (self._reshape(f"{name}_flat", tensor, self._flat)
                      for name, tensor in (("mean", self._mean), ("variance", self._variance)))
    unbiased = self._corrected(variance) if corrected else variance
    factor = self._node.attr["exponential_avg_factor"].f if (
        "exponential_avg_factor" in self._node.attr) else 1.0
    outputs = [self._moving("mean", data[3], mean, factor),
               self._moving("variance", data[4], unbiased, factor)]
    self._finish([self._cast_back(y), *outputs, mean, variance], data)

  def _corrected(self, variance: str) -> str:
    """Writes a variance with Bessel's correction for the values of a channel."""
    # Bessel's correction: variance * n / max(n - 1, 1), n values for each channel.
    count = self._op("RealDiv", "count", self._size("values", self._x),
                     self._size("channel_count", self._mean))
    one = self._number("one", 1.0)
    rest = self._op("Maximum", "rest", self._op("Sub", "less", count, one), one)
    return self._op("Mul", "unbiased", variance, self._op("RealDiv", "bessel", count, rest))

  def backward(self) -> None:
    """Writes the gradients of x, scale and offset."""
    data = data_inputs(self._node)
    grad = self._cast("grad", data[0])
    # d offset = sum(dy), d scale = sum(dy * normal)
    of_offset = self._reduce("Sum", "of_offset", grad)
    weighted = self._op("Mul", "weighted", grad, self._normal)
    of_scale = self._reduce("Sum", "of_scale", weighted)
    # dx = scale / sqrt(variance + epsilon) * (dy - E[dy] - normal * E[dy * normal])
    inner = self._op("Sub", "inner", grad, self._average("grad_mean", grad))
    inner = self._op("Sub", "inner_centred", inner, self._op(
        "Mul", "projected", self._normal, self._average("weighted_mean", weighted)))
    factor = self._op("Mul", "factor", self._inverse, self._reshape(
        "scale_wide", data[2], self._wide))
    of_x = self._cast_back(self._op("Mul", "of_x", inner, factor))
    flat = [self._reshape(f"{name}_flat", tensor, self._flat)
            for name, tensor in (("of_scale", of_scale), ("of_offset", of_offset))]
    nothing = self._number("nothing", 0.0)
    self._finish([of_x, *flat, nothing, nothing], data)

  def _finish(self, outputs: List[str], data: List[str]) -> None:
    """Writes the op itself: an IdentityN of its outputs."""
    # The first output has the op's type, all others that of the statistics.
    types = [self._dtype] + [self._stats] * (len(outputs) - 1)
    if self._node.op == "FusedBatchNormV3":
      outputs.append(self._number("unused", 0.0))
      types.append(self._stats)
    controls = [text for text in self._node.input if text.startswith("^")]
    node = self._writer.new(self._name, "IdentityN", [*outputs, *controls])
    node.attr["T"].list.type.extend(types)
    if "_class" in self._node.attr:
      node.attr["_class"].CopyFrom(self._node.attr["_class"])
    node.device = self._node.device

  def _sub(self, name: str) -> str:
    return f"{self._name}/written_out/{name}"

  def _op(self, op: str, name: str, *inputs: str) -> str:
    return self._writer.new(self._sub(name), op, inputs, T=self._stats).name

  def _number(self, name: str, value: float) -> str:
    return self._writer.constant(self._sub(name), value, self._stats, self._x)

  def _reduce(self, op: str, name: str, tensor: str) -> str:
    node = self._writer.new(
        self._sub(name), op, [tensor, self._axes], T=self._stats, Tidx=INT32)
    node.attr["keep_dims"].b = True
    return node.name

  def _average(self, name: str, tensor: str) -> str:
    return self._reduce("Mean", name, tensor)

  def _reshape(self, name: str, tensor: str, shape: str) -> str:
    return self._writer.new(
        self._sub(name), "Reshape", [tensor, shape], T=self._stats, Tshape=INT32).name

  def _size(self, name: str, tensor: str) -> str:
    size = self._writer.new(self._sub(name), "Size", [tensor], T=self._stats, out_type=INT32)
    return self._writer.new(
        self._sub(f"{name}_number"), "Cast", [size.name], SrcT=INT32, DstT=self._stats).name

  def _moving(self, name: str, before: str, now: str, factor: float) -> str:
    """Writes the mean or variance that the op gives: the batch's, or a moving average of it."""
    if factor == 1.0:
      return now
    # moving = before * (1 - factor) + now * factor
    kept = self._op("Mul", f"{name}_kept", before, self._number(f"{name}_keep", 1.0 - factor))
    new = self._op("Mul", f"{name}_new", now, self._number(f"{name}_factor", factor))
    return self._op("AddV2", f"{name}_moving", kept, new)

  def _cast(self, name: str, tensor: str) -> str:
    if self._dtype == self._stats:
      return tensor
    return self._writer.new(
        self._sub(name), "Cast", [tensor], SrcT=self._dtype, DstT=self._stats).name

  def _cast_back(self, tensor: str) -> str:
    if self._dtype == self._stats:
      return tensor
    return self._writer.new(
        self._sub("result"), "Cast", [tensor], SrcT=self._stats, DstT=self._dtype).name
