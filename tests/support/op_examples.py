"""An example of each op type of the registry that can run alone, in one graph at any batch."""

import numpy as np

# Ops that need a loop, a branch, a table or a reference, or only have effects: constructs in
# tests/replication run these. The others have no kernel for CPUs, or no version in this TensorFlow.
NOT_ALONE = frozenset((
    "Enter RefEnter Exit RefExit NextIteration RefNextIteration Switch RefSwitch Assert Print "
    "PrintV2 LookupTableFind LookupTableFindV2 PlaceholderWithDefault ResourceGather AccumulateNV2 "
    "Conv TopK CheckNumericsV2 Conv2DBackpropFilterV2 Conv2DBackpropInputV2").split())


class Examples:
  """Makes the examples in the default graph.

  Attributes:
    ops: op type -> its op.
  """

  def __init__(self, batch):
    """Args: batch: examples in the first dimension of what is fed."""
    import tensorflow as tf

    self._batch, self._tf, self._raw = batch, tf, tf.raw_ops
    self.ops = {}

  def add(self, op_type):
    """Adds the example of an op type."""
    made = getattr(self, f"_{op_type}", None)
    with self._tf.name_scope(op_type):
      result = made() if made else self._of_inputs(op_type)
    first = self._tf.nest.flatten(result)[0]
    assert first.op.type == op_type, (first.op.type, op_type)
    self.ops[op_type] = first.op

  def rows(self, *dims, dtype="float32"):
    """What is fed, with the batch in front."""
    return self._tf.compat.v1.placeholder(dtype, [self._batch, *dims])

  def constant(self, *dims):
    """Numbers that are the same for all examples."""
    return self._tf.constant(np.random.default_rng(0).uniform(0.2, 0.8, dims), self._tf.float32)

  def _of_inputs(self, op_type):
    """An op whose inputs all have examples of three numbers."""
    from placeto_tf.graphs.op_defs import registered_op_def

    tf, op_def = self._tf, registered_op_def(op_type)
    types = {}
    for attr in op_def.attr:
      if attr.type == "type":
        allowed = [tf.dtypes.as_dtype(each) for each in attr.allowed_values.list.type]
        usual = (tf.float32, tf.int32, tf.bool, tf.complex64, tf.string)
        types[attr.name] = next(each for each in usual if not allowed or each in allowed)
    arguments = {}
    for arg in op_def.input_arg:
      dtype = types[arg.type_attr] if arg.type_attr else tf.dtypes.as_dtype(arg.type)
      arguments[arg.name] = [self.rows(3, dtype=dtype) for _ in range(2)] if arg.number_attr else (
          self.rows(3, dtype=dtype))
    return getattr(self._raw, op_type)(**arguments)


def _example(names):
  def add(build):
    for name in names.split():
      setattr(Examples, f"_{name}", lambda self, name=name: build(
          self, getattr(self._raw, name), self._tf))
    return build
  return add


_POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
_POOL_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "SAME"}
_CONV = {"strides": [1, 1, 1, 1], "padding": "SAME"}
_DILATION = {"strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "SAME"}

_example("Cast")(lambda s, op, tf: op(x=s.rows(3), DstT=tf.float64))
_example("Bitcast")(lambda s, op, tf: op(input=s.rows(3), type=tf.int32))
_example("Select")(
    lambda s, op, tf: op(condition=s.rows(3, dtype="bool"), x=s.rows(3), y=s.rows(3)))
_example("IdentityN")(lambda s, op, tf: op(input=[s.rows(3), s.rows(2)]))
_example("BroadcastTo")(lambda s, op, tf: op(input=s.rows(1, 3), shape=[s._batch, 2, 3]))
_example("EnsureShape")(lambda s, op, tf: op(input=s.rows(3), shape=[None, 3]))
_example("CheckNumerics")(lambda s, op, tf: op(tensor=s.rows(3), message=""))
_example("Substr")(lambda s, op, tf: op(input=s.rows(3, dtype="string"), pos=0, len=1))
_example("StringToHashBucket")(
    lambda s, op, tf: op(string_tensor=s.rows(3, dtype="string"), num_buckets=7))
_example("DecodeCSV")(
    lambda s, op, tf: op(records=s.rows(dtype="string"), record_defaults=[[0.0]]))
_example("BiasAdd BiasAddV1")(lambda s, op, tf: op(value=s.rows(3), bias=s.constant(3)))
_example("Bucketize")(lambda s, op, tf: op(input=s.rows(3), boundaries=[0.3, 0.5]))
_example("Complex")(lambda s, op, tf: op(real=s.rows(3), imag=s.rows(3)))
_example("StringToHashBucketFast")(
    lambda s, op, tf: op(input=s.rows(3, dtype="string"), num_buckets=7))
_example("StringToHashBucketStrong")(
    lambda s, op, tf: op(input=s.rows(3, dtype="string"), num_buckets=7, key=[1, 2]))
_example("RegexReplace")(
    lambda s, op, tf: op(input=s.rows(3, dtype="string"), pattern="1", rewrite="x"))
_example("StaticRegexReplace")(
    lambda s, op, tf: op(input=s.rows(3, dtype="string"), pattern="1", rewrite="x"))
_example("ClipByValue")(
    lambda s, op, tf: op(t=s.rows(3), clip_value_min=0.4, clip_value_max=0.6))
_example("FakeQuantWithMinMaxVars")(lambda s, op, tf: op(inputs=s.rows(3), min=0.0, max=1.0))
_example("MaxPool AvgPool")(lambda s, op, tf: op(
    **{"input" if op is tf.raw_ops.MaxPool else "value": s.rows(4, 4, 2)}, **_POOL))
_example("MaxPoolV2")(lambda s, op, tf: op(input=s.rows(4, 4, 2), **_POOL))
_example("MaxPoolGrad MaxPoolGradV2")(lambda s, op, tf: op(
    orig_input=s.rows(4, 4, 2), orig_output=s.rows(2, 2, 2), grad=s.rows(2, 2, 2), **_POOL))
_example("MaxPoolGradGrad")(lambda s, op, tf: op(
    orig_input=s.rows(4, 4, 2), orig_output=s.rows(2, 2, 2), grad=s.rows(4, 4, 2), **_POOL))
_example("AvgPoolGrad")(lambda s, op, tf: op(
    orig_input_shape=[s._batch, 4, 4, 2], grad=s.rows(2, 2, 2), **_POOL))
_example("MaxPool3D AvgPool3D")(lambda s, op, tf: op(input=s.rows(4, 4, 4, 2), **_POOL_3D))
_example("MaxPool3DGrad")(lambda s, op, tf: op(
    orig_input=s.rows(4, 4, 4, 2), orig_output=s.rows(2, 2, 2, 2), grad=s.rows(2, 2, 2, 2),
    **_POOL_3D))
_example("AvgPool3DGrad")(lambda s, op, tf: op(
    orig_input_shape=[s._batch, 4, 4, 4, 2], grad=s.rows(2, 2, 2, 2), **_POOL_3D))
_example("LRN")(lambda s, op, tf: op(input=s.rows(4, 4, 2)))
_example("LRNGrad")(lambda s, op, tf: op(
    input_grads=s.rows(4, 4, 2), input_image=s.rows(4, 4, 2), output_image=s.rows(4, 4, 2)))
_example("ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea")(
    lambda s, op, tf: op(images=s.rows(4, 4, 2), size=[6, 6]))
_example("ResizeBilinearGrad ResizeBicubicGrad")(
    lambda s, op, tf: op(grads=s.rows(6, 6, 2), original_image=s.rows(4, 4, 2)))
_example("ResizeNearestNeighborGrad")(lambda s, op, tf: op(grads=s.rows(6, 6, 2), size=[4, 4]))
_example("DepthToSpace")(lambda s, op, tf: op(input=s.rows(2, 2, 4), block_size=2))
_example("SpaceToDepth")(lambda s, op, tf: op(input=s.rows(4, 4, 2), block_size=2))
_example("AdjustContrastv2")(
    lambda s, op, tf: op(images=s.rows(4, 4, 3), contrast_factor=0.5))
_example("RGBToHSV HSVToRGB")(lambda s, op, tf: op(images=s.rows(4, 4, 3)))
_example("AdjustHue")(lambda s, op, tf: op(images=s.rows(4, 4, 3), delta=0.2))
_example("AdjustSaturation")(lambda s, op, tf: op(images=s.rows(4, 4, 3), scale=0.2))
_example("Conv2D DepthwiseConv2dNative")(
    lambda s, op, tf: op(input=s.rows(4, 4, 2), filter=s.constant(3, 3, 2, 2), **_CONV))
_example("Conv3D")(lambda s, op, tf: op(
    input=s.rows(4, 4, 4, 2), filter=s.constant(2, 2, 2, 2, 2), strides=[1] * 5, padding="SAME"))
_example("Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput")(lambda s, op, tf: op(
    input_sizes=[s._batch, 4, 4, 2], filter=s.constant(3, 3, 2, 2), **_CONV,
    out_backprop=s.rows(4, 4, 2 if op is tf.raw_ops.Conv2DBackpropInput else 4)))
_example("Conv3DBackpropInputV2")(lambda s, op, tf: op(
    input_sizes=[s._batch, 4, 4, 4, 2], filter=s.constant(2, 2, 2, 2, 2),
    out_backprop=s.rows(4, 4, 4, 2), strides=[1] * 5, padding="SAME"))
_example("Conv2DBackpropFilter DepthwiseConv2dNativeBackpropFilter")(lambda s, op, tf: op(
    input=s.rows(4, 4, 2), filter_sizes=[3, 3, 2, 2], **_CONV,
    out_backprop=s.rows(4, 4, 2 if op is tf.raw_ops.Conv2DBackpropFilter else 4)))
_example("Conv3DBackpropFilterV2")(lambda s, op, tf: op(
    input=s.rows(4, 4, 4, 2), filter_sizes=[2, 2, 2, 2, 2], out_backprop=s.rows(4, 4, 4, 2),
    strides=[1] * 5, padding="SAME"))
_example("Dilation2D")(
    lambda s, op, tf: op(input=s.rows(4, 4, 2), filter=s.constant(3, 3, 2), **_DILATION))
_example("Dilation2DBackpropInput Dilation2DBackpropFilter")(lambda s, op, tf: op(
    input=s.rows(4, 4, 2), filter=s.constant(3, 3, 2), out_backprop=s.rows(4, 4, 2), **_DILATION))
_example("BiasAddGrad")(lambda s, op, tf: op(out_backprop=s.rows(2, 3)))
_example("SoftmaxCrossEntropyWithLogits")(
    lambda s, op, tf: op(features=s.rows(3), labels=s.rows(3)))
_example("SparseSoftmaxCrossEntropyWithLogits")(
    lambda s, op, tf: op(features=s.rows(4), labels=s.rows(dtype="int32")))
_example("InTopK InTopKV2")(
    lambda s, op, tf: op(predictions=s.rows(4), targets=s.rows(dtype="int32"), k=2))
_example("ExtractImagePatches")(lambda s, op, tf: op(
    images=s.rows(4, 4, 2), ksizes=[1, 2, 2, 1], strides=[1, 2, 2, 1], rates=[1, 1, 1, 1],
    padding="SAME"))
_example("ImageProjectiveTransformV2")(lambda s, op, tf: op(
    images=s.rows(4, 4, 2), transforms=s.rows(8), output_shape=[4, 4], interpolation="BILINEAR"))
_example("ImageProjectiveTransformV3")(lambda s, op, tf: op(
    images=s.rows(4, 4, 2), transforms=s.rows(8), output_shape=[4, 4], fill_value=0.0,
    interpolation="BILINEAR"))
_example("ScaleAndTranslate")(lambda s, op, tf: op(
    images=s.rows(4, 4, 2), size=[6, 6], scale=[1.5, 1.5], translation=[0.0, 0.0]))
_example("ScaleAndTranslateGrad")(lambda s, op, tf: op(
    grads=s.rows(6, 6, 2), original_image=s.rows(4, 4, 2), scale=[1.5, 1.5],
    translation=[0.0, 0.0]))
_example("MaxPoolWithArgmax")(lambda s, op, tf: op(input=s.rows(4, 4, 2), **_POOL))
_example("MaxPoolGradWithArgmax")(lambda s, op, tf: op(
    input=s.rows(4, 4, 2), grad=s.rows(2, 2, 2), argmax=s.rows(2, 2, 2, dtype="int64"), **_POOL))
_example("LowerBound UpperBound")(
    lambda s, op, tf: op(sorted_inputs=s.rows(3), values=s.rows(2)))
_example("NthElement")(lambda s, op, tf: op(input=s.rows(3), n=1))
_example("DecodeRaw")(lambda s, op, tf: op(bytes=s.rows(dtype="string"), out_type=tf.uint8))
_example("Softmax LogSoftmax")(lambda s, op, tf: op(logits=s.rows(2, 3)))
_example("TopKV2")(lambda s, op, tf: op(input=s.rows(4), k=2))
_example("MatrixDiag MatrixDiagV2 MatrixDiagV3")(lambda s, op, tf: op(
    diagonal=s.rows(3), **({} if op is tf.raw_ops.MatrixDiag else {
        "k": 0, "num_rows": -1, "num_cols": -1, "padding_value": 0.0})))
_example("MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3")(lambda s, op, tf: op(
    input=s.rows(3, 3), **({} if op is tf.raw_ops.MatrixDiagPart else {
        "k": 0, "padding_value": 0.0})))
_example("MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3")(lambda s, op, tf: op(
    input=s.rows(3, 3), diagonal=s.rows(3), **({} if op is tf.raw_ops.MatrixSetDiag else {"k": 0})))
_example("MatrixInverse MatrixDeterminant")(lambda s, op, tf: op(input=s.rows(3, 3)))
_example("Cholesky")(lambda s, op, tf: op(input=s.rows(1, 1)))
_example("MatrixBandPart")(lambda s, op, tf: op(input=s.rows(3, 3), num_lower=0, num_upper=1))
_example("LogMatrixDeterminant SelfAdjointEigV2 Qr Svd")(
    lambda s, op, tf: op(input=tf.linalg.diag(s.rows(2))))
_example("MatrixTriangularSolve")(
    lambda s, op, tf: op(matrix=s.rows(3, 3), rhs=s.rows(3, 2)))
_example("FFT IFFT FFT2D IFFT2D")(lambda s, op, tf: op(input=s.rows(2, 4, dtype="complex64")))
_example("RFFT")(lambda s, op, tf: op(input=s.rows(4), fft_length=[4]))
_example("IRFFT")(lambda s, op, tf: op(input=s.rows(3, dtype="complex64"), fft_length=[4]))
_example("RFFT2D")(lambda s, op, tf: op(input=s.rows(4, 4), fft_length=[4, 4]))
_example("IRFFT2D")(lambda s, op, tf: op(input=s.rows(4, 3, dtype="complex64"), fft_length=[4, 4]))
_example("MatrixSolve")(lambda s, op, tf: op(matrix=s.rows(3, 3), rhs=s.rows(3, 2)))
_example("L2Loss")(lambda s, op, tf: op(t=s.rows(3)))
_example("Sum Mean Max Min Prod EuclideanNorm")(lambda s, op, tf: op(input=s.rows(3), axis=[1]))
_example("All Any")(lambda s, op, tf: op(input=s.rows(3, dtype="bool"), axis=[0]))
_example("ArgMax ArgMin")(lambda s, op, tf: op(input=s.rows(3, 2), dimension=1))
_example("Cumsum Cumprod CumulativeLogsumexp")(lambda s, op, tf: op(x=s.rows(3), axis=1))
_example("ReverseV2")(lambda s, op, tf: op(tensor=s.rows(3), axis=[1]))
_example("ReverseSequence")(lambda s, op, tf: op(
    input=s.rows(3, 2), seq_lengths=s.rows(dtype="int64"), seq_dim=1, batch_dim=0))
_example("Reshape")(lambda s, op, tf: op(tensor=s.rows(3, 4), shape=[-1, 6]))
_example("Squeeze")(lambda s, op, tf: op(input=s.rows(1, 3), axis=[1]))
_example("ExpandDims")(lambda s, op, tf: op(input=s.rows(3), axis=0))
_example("Transpose")(lambda s, op, tf: op(x=s.rows(3, 2), perm=[2, 0, 1]))
_example("MatMul")(
    lambda s, op, tf: op(a=s.rows(3), b=s.rows(2), transpose_a=True))
_example("BatchMatMul BatchMatMulV2")(lambda s, op, tf: op(x=s.rows(2, 3), y=s.rows(3, 4)))
_example("BatchMatMulV3")(
    lambda s, op, tf: op(x=s.rows(2, 3), y=s.rows(3, 4), Tout=tf.float32))
_example("Einsum")(lambda s, op, tf: op(inputs=[s.rows(2), s.rows(3)], equation="bi,bj->ij"))
_example("Concat")(lambda s, op, tf: op(concat_dim=1, values=[s.rows(3), s.rows(2)]))
_example("ConcatV2")(lambda s, op, tf: op(values=[s.rows(3), s.rows(2)], axis=1))
_example("Split")(lambda s, op, tf: op(axis=1, value=s.rows(4), num_split=2))
_example("SplitV")(
    lambda s, op, tf: op(value=s.rows(4), size_splits=[1, 3], axis=1, num_split=2))
_example("Pack")(lambda s, op, tf: op(values=[s.rows(3), s.rows(3)], axis=0))
_example("Unpack")(lambda s, op, tf: op(value=s.rows(2, 3), num=2, axis=1))
_example("Slice")(lambda s, op, tf: op(input=s.rows(4), begin=[0, 1], size=[-1, 2]))
_example("StridedSlice")(lambda s, op, tf: op(
    input=s.rows(4, 3), begin=[0, 1], end=[0, 2], strides=[1, 1], begin_mask=1, end_mask=1,
    shrink_axis_mask=2))
_example("StridedSliceGrad")(lambda s, op, tf: op(
    shape=[s._batch, 4, 3], begin=[0, 1], end=[0, 2], strides=[1, 1], dy=s.rows(3), begin_mask=1,
    end_mask=1, shrink_axis_mask=2))
_example("Pad")(lambda s, op, tf: op(input=s.rows(3), paddings=[[0, 0], [1, 2]]))
_example("PadV2")(
    lambda s, op, tf: op(input=s.rows(3), paddings=[[0, 0], [1, 2]], constant_values=0.5))
_example("MirrorPad MirrorPadGrad")(
    lambda s, op, tf: op(input=s.rows(5), paddings=[[0, 0], [1, 1]], mode="REFLECT"))
_example("Tile")(lambda s, op, tf: op(input=s.rows(3), multiples=[1, 2]))
_example("Gather")(lambda s, op, tf: op(params=s.constant(5, 2), indices=s.rows(3, dtype="int32")))
_example("GatherV2")(lambda s, op, tf: op(
    params=s.constant(2, 5), indices=s.rows(3, dtype="int32"), axis=1))
_example("GatherNd")(
    lambda s, op, tf: op(params=s.constant(5, 2), indices=s.rows(1, dtype="int32")))
_example("ScatterNd")(lambda s, op, tf: op(
    indices=s.rows(1, dtype="int32"), updates=s.rows(2), shape=[5, 2]))
_example("UnsortedSegmentSum")(lambda s, op, tf: op(
    data=s.rows(2), segment_ids=s.rows(dtype="int32"), num_segments=5))
_example("OneHot")(
    lambda s, op, tf: op(indices=s.rows(3, dtype="int32"), depth=4, on_value=1.0, off_value=0.0))
_example("SpaceToBatchND")(lambda s, op, tf: op(
    input=s.rows(4, 4, 2), block_shape=[2, 2], paddings=[[0, 0], [0, 0]]))
_example("SpaceToBatch")(
    lambda s, op, tf: op(input=s.rows(4, 4, 2), block_size=2, paddings=[[0, 0], [0, 0]]))
_example("BatchToSpaceND")(lambda s, op, tf: op(
    input=tf.raw_ops.SpaceToBatchND(
        input=s.rows(4, 4, 2), block_shape=[2, 2], paddings=[[0, 0], [0, 0]]),
    block_shape=[2, 2], crops=[[0, 0], [0, 0]]))
_example("BatchToSpace")(lambda s, op, tf: op(
    input=tf.raw_ops.SpaceToBatch(
        input=s.rows(4, 4, 2), block_size=2, paddings=[[0, 0], [0, 0]]),
    block_size=2, crops=[[0, 0], [0, 0]]))
for _grad in ("", "V2", "V3"):
  _example(f"FusedBatchNorm{_grad}")(lambda s, op, tf: op(
      x=s.rows(2, 2, 3), scale=s.constant(3), offset=s.constant(3), mean=s.constant(3),
      variance=s.constant(3), is_training=False))
  _example(f"FusedBatchNormGrad{_grad}")(lambda s, op, tf, v3=_grad == "V3": op(
      y_backprop=s.rows(2, 2, 3), x=s.rows(2, 2, 3), scale=s.constant(3),
      reserve_space_1=s.constant(3), reserve_space_2=s.constant(3), is_training=False,
      **({"reserve_space_3": s.constant(3)} if v3 else {})))
