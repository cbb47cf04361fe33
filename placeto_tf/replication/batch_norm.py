"""Fused batch normalization written out in plain ops, so that its statistics can be combined.

A fused op computes the mean and the variance of its own examples. Written out in plain ops, both
are means over the batch. Replicas all-reduce these means like any other mean over the batch, which
makes synchronized batch normalization.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import List

from placeto_tf.graphs.computation_graph import ComputationGraph
from placeto_tf.graphs.exported_protos import with_nodes
from placeto_tf.graphs.graph_defs import ReadGraph, from_graph_def
from placeto_tf.on_use import FunctionDef, NodeDef, tf
from placeto_tf.replication.reloading import reloaded

_FORWARD = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_BACKWARD = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")


def with_plain_batch_norm(graph: ComputationGraph, corrected: bool = True) -> ComputationGraph:
  """Returns the graph with every fused batch normalization of training written out.

  Such an op keeps its name and its outputs.

  Args:
    graph: at any batch.
    corrected: whether moving variances have Bessel's correction, as the fused ops apply it.

  Returns:
    The graph itself where nothing is written out.
  """
  source = graph.origin
  graph_def = type(source.graph_def)()
  graph_def.CopyFrom(source.graph_def)
  functions = {}
  for node in graph_def.node:
    if _is_training(node):
      # The op becomes a call of a function; loading puts the ops of the function in its place.
      function = _plain_function(node, corrected)
      functions[function.signature.name] = function
      node.op = function.signature.name
      node.attr.clear()
  if not functions:
    return graph
  graph_def.library.function.extend(functions.values())
  if source.format != "concrete_function":
    return reloaded(graph, with_nodes(source, graph_def))
  return from_graph_def(
      ReadGraph(dataclasses.replace(source, proto=graph_def, graph_def=graph_def)),
      fetches=graph.fetches, feeds=graph.feeds, feed_shapes={
          name.rpartition(":")[0]: shape for name, shape in source.feed_shapes.items()})


def _is_training(node: NodeDef) -> bool:
  return node.op in (*_FORWARD, *_BACKWARD) and (
      # tf-keras writes a layer normalization as such an op, with examples as channels.
      "is_training" not in node.attr or node.attr["is_training"].b) and not (
          "data_format" in node.attr and node.attr["data_format"].s == b"NCHW"
          and "layer_norm" in node.name.lower())


def _plain_function(node: NodeDef, corrected: bool) -> FunctionDef:
  """Returns the plain ops of a fused one, as a function with its inputs and outputs."""
  attr = node.attr
  return _traced(
      node.op, attr["T"].type, attr["U"].type if "U" in attr else attr["T"].type,
      attr["data_format"].s if "data_format" in attr else b"NHWC",
      attr["epsilon"].f if "epsilon" in attr else 1e-4,
      attr["exponential_avg_factor"].f if "exponential_avg_factor" in attr else 1.0, corrected)


@functools.lru_cache(maxsize=64)
def _traced(
    op: str, of_data: int, of_statistics: int, layout: bytes, epsilon: float, factor: float,
    corrected: bool) -> FunctionDef:
  rank = 5 if layout in (b"NDHWC", b"NCDHW") else 4
  channels = 1 if layout in (b"NCHW", b"NCDHW") else rank - 1
  axes = [axis for axis in range(rank) if axis != channels]
  # Shape in which a value for each channel is broadcast against x.
  wide = [-1 if axis == channels else 1 for axis in range(rank)]
  dtype, wider = tf.as_dtype(of_data), tf.as_dtype(of_statistics)

  def average(value: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(value, axes, keepdims=True)

  forward = op in _FORWARD

  def plain(*given: tf.Tensor) -> List[tf.Tensor]:
    x = tf.cast(given[0 if forward else 1], wider)
    # mean = E[x], variance = E[(x - mean)^2], normal = (x - mean) / sqrt(variance + epsilon)
    mean = average(x)
    centred = x - mean
    variance = average(tf.square(centred))
    inverse = tf.math.rsqrt(variance + epsilon)
    normal = centred * inverse
    if forward:
      # y = normal * scale + offset
      y = normal * tf.reshape(given[1], wide) + tf.reshape(given[2], wide)
      of_batch = [tf.reshape(each, [-1]) for each in (mean, variance)]
      kept = list(of_batch)
      if corrected:
        # Bessel's correction: variance * n / max(n - 1, 1), n values for each channel.
        count = tf.cast(tf.size(x), wider) / tf.cast(tf.size(mean), wider)
        kept[1] *= count / tf.maximum(count - 1.0, 1.0)
      if factor != 1.0:
        # moving = before * (1 - factor) + now * factor
        kept = [before * (1.0 - factor) + now * factor for before, now in zip(given[3:], kept)]
      outputs = [tf.cast(y, dtype), *kept, *of_batch]
    else:
      # d offset = sum(dy), d scale = sum(dy * normal)
      dy, zero = tf.cast(given[0], wider), tf.constant(0.0, wider)
      of_offset, of_scale = (tf.reduce_sum(each, axes) for each in (dy, dy * normal))
      # dx = scale / sqrt(variance + epsilon) * (dy - E[dy] - normal * E[dy * normal])
      dx = (dy - average(dy) - normal * average(dy * normal)) * (
          inverse * tf.reshape(given[2], wide))
      outputs = [tf.cast(dx, dtype), of_scale, of_offset, zero, zero]
    # The sixth output of the third version serves cuDNN alone.
    return outputs + [tf.constant(0.0, wider)] * (op == "FusedBatchNormV3")

  # x, scale, offset, mean, variance; or dy, x, scale; and inputs of later versions are unread.
  types = [dtype, *[wider] * 4] if forward else [dtype, dtype, *[wider] * (
      4 if op.endswith("V3") else 3)]
  return tf.function(plain, autograph=False).get_concrete_function(
      *[tf.TensorSpec(None, each) for each in types]).function_def
