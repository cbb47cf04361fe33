"""Made-up strings that the ops of a graph can read: numerals, or what the ops that parse them take.

The nearest reader decides: serialized Examples with the keys, types and sizes of a parse op, lines
of CSV, the bytes of numbers, images. All strings of a tensor differ, so that an exchange of two
examples would show.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from placeto_tf.on_use import tf
from placeto_tf.ops import members, rule_of

_MOST_VALUES = 3  # of a feature of any length
_MOST_NUMBER = 1 << 30
_SIDE = 8  # of an image, in pixels
_LOOKUPS = ("LookupTableFindV2", "LookupTableFind")
_FILLS = ("InitializeTableV2", "InitializeTable", "LookupTableImportV2", "LookupTableImport")
# Integers of a tensor -> how many there are, from 0; as `feeds.index_range`.
IndexRange = Callable[["tf.Tensor"], int]


def made_strings(
    tensor: tf.Tensor, count: int, rng: np.random.Generator, index_range: IndexRange
) -> List[bytes]:
  """Makes strings for a tensor.

  Args:
    tensor: of strings.
    count: how many.
    rng: source of random numbers.
    index_range: gives the range of integers that a tensor holds.
  """
  keys = table_keys(tensor)
  if keys is not None:
    return rng.choice(keys, count).tolist()
  maker = next((functools.partial(_MAKERS[op.type], op) for at, op in readers(tensor)
                if op.type in _MAKERS and op.inputs[0] is at), _numeral)
  return [maker(rng, index_range) for _ in range(count)]


def table_keys(tensor: tf.Tensor) -> Optional[np.ndarray]:
  """Returns the keys of the lookup table that a tensor is looked up in; None if unknown."""
  for at, op in readers(tensor):
    if op.type in _LOOKUPS and op.inputs[1] is at:
      for fill in op.inputs[0].consumers():
        if fill.type in _FILLS and (keys := _value(fill.inputs[1])).size:
          return keys.reshape(-1)
  return None


def readers(tensor: tf.Tensor) -> Iterator[Tuple[tf.Tensor, tf.Operation]]:
  """Yields (the tensor, or one with its values, op that reads it), nearest first."""
  seen, waiting = {tensor.name}, [tensor]
  while waiting:
    at = waiting.pop(0)
    for op in at.consumers():
      yield at, op
      if any(op.inputs[i] is at for i in members(rule_of(op.type).moves, len(op.inputs))):
        # Unique passes on values at output 0, and positions at output 1.
        passed = [each for each in op.outputs if (
            each.name not in seen and each.value_index not in (rule_of(op.type).any_number or ()))]
        waiting += passed
        seen.update(each.name for each in passed)


def _numeral(rng: np.random.Generator, index_range: IndexRange) -> bytes:
  return str(int(rng.integers(_MOST_NUMBER))).encode()


def _example(op: tf.Operation, rng: np.random.Generator, index_range: IndexRange) -> bytes:
  """Returns a serialized Example or SequenceExample with every feature that a parse op reads."""
  if "context_sparse_types" not in op.node_def.attr:
    return tf.train.Example(features=_features(op, "", rng, index_range)).SerializeToString()
  made = tf.train.SequenceExample(context=_features(op, "context_", rng, index_range))
  for _ in range(int(rng.integers(1, _MOST_VALUES + 1))):  # steps
    for key, feature in _features(op, "feature_list_", rng, index_range).feature.items():
      made.feature_lists.feature_list[key].feature.add().CopyFrom(feature)
  return made.SerializeToString()


def _features(
    op: tf.Operation, part: str, rng: np.random.Generator, index_range: IndexRange
) -> tf.train.Features:
  """Returns values for the features whose attributes, inputs and outputs begin with `part`."""
  features = tf.train.Features()
  for key, dtype, size, output in _features_read(op, part):
    # A list of a free length has one value at least, as means need.
    number = int(rng.integers(1, _MOST_VALUES + 1)) if size is None else size
    feature = features.feature[key]
    if dtype == tf.string:
      feature.bytes_list.value.extend(made_strings(output, number, rng, index_range))
    elif dtype.is_integer:
      feature.int64_list.value.extend(rng.integers(0, index_range(output), number).tolist())
    else:
      feature.float_list.value.extend(rng.random(number).tolist())
  return features


def _features_read(
    op: tf.Operation, part: str) -> Iterable[Tuple[str, tf.DType, Optional[int], tf.Tensor]]:
  """Yields (key, type, number of values or None, output with the values) of a parse op."""
  outputs = {name: each for name, each in zip(_names(op, op.op_def.output_arg), op.outputs)}
  inputs = {name: each for name, each in zip(_names(op, op.op_def.input_arg), op.inputs)}

  def keys(kind: str) -> List[Any]:
    # Keys are an attribute, an input that holds all, or an input each.
    if f"{kind}_keys" in op.node_def.attr:
      return [each.decode() for each in op.get_attr(f"{kind}_keys")]
    found = [np.ravel(_value(each)) for name, each in inputs.items() if name[0] == f"{kind}_keys"]
    return [key.decode() for each in found for key in each]

  dense = {"": "Tdense", "context_": "Tcontext_dense"}.get(part, f"{part}dense_types")
  for kind, types, sizes in (
      (f"{part}sparse", f"{part}sparse_types", None),
      (f"{part}dense", dense, f"{part}dense_shapes"),
      (f"{part}ragged", f"{part}ragged_value_types", None)):
    if types not in op.node_def.attr:
      continue
    shapes = op.get_attr(sizes) if sizes else []
    for i, (key, dtype) in enumerate(zip(keys(kind), op.get_attr(types))):
      shape = [dim.size for dim in shapes[i].dim] if sizes else []
      # Rows of a sequence are as many as its values make.
      size = None if not sizes else math.prod(_MOST_VALUES if each < 0 else each for each in shape)
      yield key, dtype, size, outputs[f"{kind}_values", i]


def _value(tensor: tf.Tensor) -> np.ndarray:
  """Returns the constant that a tensor holds; no elements if it is none."""
  value = tf.get_static_value(tensor)
  return np.array([], object) if value is None else value


def _names(op: tf.Operation, args: Sequence[Any]) -> List[Tuple[str, int]]:
  """Returns (name of an argument, number in it) of each tensor of an op."""
  found: List[Tuple[str, int]] = []
  for arg in args:
    count = 1
    if arg.number_attr:
      count = op.get_attr(arg.number_attr)
    elif arg.type_list_attr:
      count = len(op.get_attr(arg.type_list_attr))
    found += [(arg.name, i) for i in range(count)]
  return found


def _line(op: tf.Operation, rng: np.random.Generator, index_range: IndexRange) -> bytes:
  """Returns a line of CSV with a value for each column that a DecodeCSV reads."""
  values = [
      made_strings(output, 1, rng, index_range)[0] if output.dtype.name == "string" else
      str(int(rng.integers(0, index_range(output)))).encode() if output.dtype.is_integer else
      f"{rng.random():.6f}".encode() for output in op.outputs]
  return op.get_attr("field_delim").join(values)


def _bytes(op: tf.Operation, rng: np.random.Generator, index_range: IndexRange) -> bytes:
  """Returns the bytes of as many numbers as a reader of the decoded ones takes."""
  output, dtype = op.outputs[0], op.get_attr("out_type")
  shapes = [output.shape, *(each.outputs[0].shape for each in output.consumers()
                            if each.type in ("Reshape", "EnsureShape"))]
  known = [shape[1:].num_elements() for shape in shapes if shape.rank and shape.rank > 1]
  number = next(filter(None, known), _MOST_VALUES)
  kind = np.dtype(dtype.as_numpy_dtype)
  values = rng.integers(0, index_range(output), number) if dtype.is_integer else rng.random(number)
  return values.astype(kind.newbyteorder("<" if op.get_attr("little_endian") else ">")).tobytes()


def _image(op: tf.Operation, rng: np.random.Generator, index_range: IndexRange) -> bytes:
  """Returns an encoded image of random pixels."""
  shape = [_SIDE if size is None else size for size in (
      op.outputs[0].shape[-3:].as_list() if op.outputs[0].shape.rank else [None, None, 3])]
  pixels = rng.integers(0, 256, (*shape[:2], shape[2] if shape[2] in (1, 3) else 3), np.uint8)
  encode = tf.io.encode_jpeg if "Jpeg" in op.type else tf.io.encode_png
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    return session.run(encode(pixels))


# Type of an op that reads strings -> what makes one of them.
_MAKERS: Dict[str, Callable[[Any, np.random.Generator, IndexRange], bytes]] = {
    "ParseExample": _example, "ParseExampleV2": _example, "ParseSingleExample": _example,
    "ParseSequenceExample": _example, "ParseSequenceExampleV2": _example,
    "ParseSingleSequenceExample": _example,
    "DecodeCSV": _line, "DecodeRaw": _bytes, "DecodeJpeg": _image, "DecodeAndCropJpeg": _image,
    "DecodePng": _image, "DecodeImage": _image}
