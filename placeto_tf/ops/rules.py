"""The rows of the registry; see `op_rule.OpRule` for each fact.

A row states one fact about several op types: the rule by which batch axes move, the factor of
results, the inputs in which an op is linear. A new op type is added to these rows.
"""

from __future__ import annotations

from placeto_tf.ops.op_rule import (
  ALL,
  BUT_FIRST,
  BUT_LAST,
  CONTAINER,
  HARMLESS,
  KEYED_RANDOM,
  OF_VARIABLE,
  OUTSIDE,
  PIPELINE,
  RANDOM,
  SEEDED_RANDOM,
  UPDATE,
  VARIABLE,
  VARIABLE_RANDOM,
  Scale,
  register,
)

# Axes. Each element of a result depends on the elements at the same index.
register(
    "Identity IdentityN StopGradient PreventGradient CheckNumerics CheckNumericsV2 "
    "Snapshot Cast Abs Neg Exp Expm1 Log Log1p Sqrt Rsqrt Square Sign Sin Cos Tan Tanh "
    "Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Sigmoid Softplus Softsign Relu Relu6 Elu "
    "Selu LeakyRelu Erf Erfc Erfinv Ndtri LogicalNot Round Rint Floor Ceil Reciprocal Inv "
    "IsFinite IsNan IsInf NextAfter BesselI0e BesselI1e ZerosLike OnesLike Add AddV2 AddN "
    "Sub Mul RealDiv Div DivNoNan FloorDiv FloorMod Mod TruncateDiv TruncateMod Maximum "
    "Minimum Pow SquaredDifference Less LessEqual Greater GreaterEqual Equal NotEqual "
    "LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift "
    "Select SelectV2 ClipByValue MulNoNan Xdivy Xlogy Xlog1py Atan2 ReluGrad Relu6Grad "
    "EluGrad SeluGrad LeakyReluGrad TanhGrad SigmoidGrad SoftplusGrad SoftsignGrad "
    "SqrtGrad RsqrtGrad ReciprocalGrad InvGrad BroadcastTo Bitcast "
    "FakeQuantWithMinMaxVars Enter RefEnter Exit RefExit NextIteration RefNextIteration "
    "Switch RefSwitch Assert Print PrintV2 ApproximateEqual Lgamma Digamma Zeta Polygamma "
    "Igamma Igammac Betainc AccumulateNV2 PlaceholderWithDefault Imag Real Conj Complex "
    "ComplexAbs Angle LookupTableFindV2 LookupTableFind Bucketize PopulationCount "
    "StringToHashBucketFast StringToHashBucketStrong AsString StringToNumber StringLower "
    "StringUpper StringStrip StringLength RegexReplace StaticRegexReplace StringJoin "
    "StringToHashBucket Substr DecodeCSV RandomGammaGrad EnsureShape BiasAdd BiasAddV1",
    axes="elementwise")
# The first axis counts examples in every input of more than one dimension, and in every output.
register(
    "MaxPool MaxPoolV2 MaxPoolGrad MaxPoolGradV2 MaxPoolGradGrad AvgPool AvgPoolGrad "
    "MaxPool3D AvgPool3D MaxPool3DGrad AvgPool3DGrad LRN LRNGrad ResizeBilinear "
    "ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeBicubic "
    "ResizeBicubicGrad DepthToSpace ResizeArea AdjustContrastv2 RGBToHSV HSVToRGB "
    "AdjustHue AdjustSaturation SpaceToDepth Conv2D Conv3D Conv DepthwiseConv2dNative "
    "Conv2DBackpropInput Conv2DBackpropInputV2 Conv3DBackpropInputV2 "
    "DepthwiseConv2dNativeBackpropInput Dilation2D Dilation2DBackpropInput "
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits InTopKV2 InTopK "
    "ExtractImagePatches DecodeRaw ImageProjectiveTransformV2 ImageProjectiveTransformV3 "
    "ScaleAndTranslate ScaleAndTranslateGrad MaxPoolWithArgmax MaxPoolGradWithArgmax LowerBound "
    "UpperBound NthElement Cross", axes="first_axis")
# Elements of the last axis depend on one another; all axes before are independent.
register("Softmax LogSoftmax TopK TopKV2 FFT IFFT RFFT IRFFT", axes="last_axis")
# The last one or two axes of every input form a matrix or its diagonal.
register(
    "MatrixDiag MatrixDiagV2 MatrixDiagV3 MatrixDiagPart MatrixDiagPartV2 "
    "MatrixDiagPartV3 MatrixInverse MatrixDeterminant MatrixSolve Cholesky MatrixSetDiag "
    "MatrixSetDiagV2 MatrixSetDiagV3 MatrixBandPart MatrixTriangularSolve LogMatrixDeterminant "
    "SelfAdjointEigV2 Qr Svd FFT2D IFFT2D RFFT2D IRFFT2D",
    axes="matrices")
# A gradient of weights: the sum over the examples, which are along the first axis.
register(
    "Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilterV2 BiasAddGrad "
    "DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter", axes="filter")
# Axes given by an input are removed, or keep length 1.
register("Sum Mean Max Min All Any Prod EuclideanNorm", axes="reduce")
# Elements depend on others along one axis alone.
register("Cumsum Cumprod CumulativeLogsumexp ReverseV2", axes="along")
register("ReverseSequence", axes="reverse_sequence")
register(
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad "
    "FusedBatchNormGradV2 FusedBatchNormGradV3", axes="batch_norm", kind="batch norm")
# Examples keep their order: the axis that is longer at a larger batch holds them.
register(
    "ArgMax ArgMin Transpose Unpack Pad PadV2 MirrorPad MirrorPadGrad OneHot", axes="moved")
# Changes of shape: axes are split, merged, inserted.
register("Reshape Squeeze ExpandDims", axes="reshape")
# Contractions: an axis of all operands is summed over, or all axes.
register("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 L2Loss", axes="contract")
register("Einsum", axes="einsum")
# Tensors put together and taken apart along one axis.
register("Concat ConcatV2", axes="concat")
register("Split SplitV", axes="split")
register("Pack", axes="pack")
# Parts of tensors, and their gradients.
register("Slice", axes="slice")
register("StridedSlice StridedSliceGrad", axes="strided_slice")
register("Tile", axes="tile")
# Rows by index: read, written, summed.
register("Gather GatherV2 ResourceGather", axes="gather")
register("GatherNd", axes="gather_nd")
register("ScatterNd", axes="scatter_nd")
register("UnsortedSegmentSum", axes="segments")
# Blocks of space are moved into the first axis, or out of it.
register("SpaceToBatchND BatchToSpaceND SpaceToBatch BatchToSpace", axes="to_batch")

# Scales. Homogeneous of degree 1 in one input, for any values of the others.
register(
    "Identity StopGradient PreventGradient CheckNumerics CheckNumericsV2 Snapshot Abs Neg "
    "Relu LeakyRelu Reshape Squeeze ExpandDims Transpose SplitV Slice StridedSlice Pad "
    "Tile BroadcastTo Sum Mean Max Min Enter RefEnter Exit RefExit NextIteration "
    "RefNextIteration Switch RefSwitch GatherV2 Gather GatherNd UnsortedSegmentSum "
    "ReverseV2 Cumsum Unpack EnsureShape MaxPool MaxPoolV2 AvgPool MaxPool3D AvgPool3D "
    "ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeBilinearGrad "
    "ResizeNearestNeighborGrad ResizeBicubicGrad DepthToSpace SpaceToDepth "
    "ExtractImagePatches MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiag "
    "MatrixDiagV2 MatrixDiagV3 MatrixBandPart ReverseSequence SpaceToBatchND "
    "BatchToSpaceND SpaceToBatch BatchToSpace MirrorPad MirrorPadGrad BiasAddGrad Real "
    "Imag Conj EuclideanNorm TopK TopKV2 SegmentSum SegmentMean Cast Roll "
    "ReluGrad LeakyReluGrad", scale=Scale("factor", (0,)))
register("TensorScatterUpdate", scale=Scale("alike", (0, 2)))
register("OneHot", scale=Scale("alike", (2, 3)))
register("AvgPoolGrad AvgPool3DGrad Split ScatterNd", scale=Scale("factor", (1,)))
register(
    "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradGrad", scale=Scale("factor", (2,)))
register("StridedSliceGrad", scale=Scale("factor", (4,)))
# Powers of one input: degrees 2, 1/2, -1/2 and -1.
register("Square L2Loss", scale=Scale("factor", (0,), 2.0))
register("Sqrt", scale=Scale("factor", (0,), 0.5))
register("Rsqrt", scale=Scale("factor", (0,), -0.5))
register("Reciprocal Inv", scale=Scale("factor", (0,), -1.0))
# Homogeneous in one input, if the others are not scaled.
register(
    "Relu6Grad EluGrad SeluGrad SoftplusGrad SoftsignGrad LRNGrad FusedBatchNormGrad "
    "FusedBatchNormGradV2 FusedBatchNormGradV3", scale=Scale("gradient", (0,)))
register(
    "TanhGrad SigmoidGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad", scale=Scale("gradient", (1,)))
# Homogeneous in several inputs that have the same factor.
register(
    "Add AddV2 Sub AddN AccumulateNV2 Maximum Minimum BiasAdd BiasAddV1 Pack Merge "
    "RefMerge FloorMod Mod TruncateMod", scale=Scale("alike", ALL))
register("ConcatV2", scale=Scale("alike", BUT_LAST))
register("Concat", scale=Scale("alike", BUT_FIRST))
# Comparisons do not change if all inputs have the same factor: degree 0.
register("Less LessEqual Greater GreaterEqual Equal NotEqual", scale=Scale("alike", ALL, 0.0))
register("SquaredDifference", scale=Scale("alike", ALL, 2.0))
# Input 0 is the condition.
register("Select SelectV2", scale=Scale("alike", (1, 2)))
register("ClipByValue", scale=Scale("alike", (0, 1, 2)))
register("PadV2", scale=Scale("alike", (0, 2)))
register(
    "Mul MulNoNan MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv2D Conv3D "
    "Conv DepthwiseConv2dNative Conv2DBackpropInput Conv2DBackpropInputV2 "
    "Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput Conv2DBackpropFilter "
    "Conv2DBackpropFilterV2 Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter",
    scale=Scale("product"))
# Numerator over denominator.
register("RealDiv Div DivNoNan", scale=Scale("quotient"))
register("Shape ShapeN Size Rank ZerosLike OnesLike BroadcastGradientArgs", scale=Scale("shape"))

# Jointly linear: the op commutes with the sum over replicas.
register(
    "Identity StopGradient PreventGradient CheckNumerics CheckNumericsV2 Snapshot Cast "
    "Neg Reshape Squeeze ExpandDims Transpose Unpack SplitV Slice StridedSlice Pad Tile "
    "BroadcastTo Sum Mean Enter RefEnter Exit RefExit NextIteration RefNextIteration "
    "GatherV2 Gather GatherNd UnsortedSegmentSum ReverseV2 Cumsum EnsureShape BiasAddGrad "
    "MatrixDiagPart MatrixDiag MatrixDiagV2 MatrixDiagV3 MatrixDiagPartV2 "
    "MatrixDiagPartV3 MatrixBandPart Real Imag Conj Roll", linear=(0,))
# Input 0 of Split is the axis; inputs 0 to 3 of StridedSliceGrad are shape and slices.
register("Split", linear=(1,))
register("StridedSliceGrad", linear=(4,))
register("Add AddV2 Sub AddN AccumulateNV2 Pack IdentityN", linear=ALL)
register("ConcatV2", linear=BUT_LAST)
register("Concat", linear=BUT_FIRST)
# Linear in each operand while the other one is fixed.
register("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Mul Einsum", linear="bilinear")
# Elements are elements of these inputs; of strings, and of whole numbers with their bounds.
register(
    "Identity Reshape Cast StridedSlice Slice Unpack SplitV ExpandDims Squeeze Transpose Unique "
    "StopGradient Gather GatherV2 Tile BroadcastTo ReverseV2 EnsureShape", moves=(0,))
register("Split", moves=(1,))
register("SelectV2 Select", moves=(1, 2))
register("Pack Maximum Minimum", moves=ALL)
register("ConcatV2", moves=BUT_LAST)
# The op commutes with the maximum, minimum or conjunction over replicas.
register(
    "Identity StopGradient PreventGradient CheckNumerics CheckNumericsV2 Snapshot Reshape "
    "Squeeze ExpandDims Transpose Slice StridedSlice Unpack Split Enter Exit "
    "NextIteration EnsureShape Pack", passes=True)

# Positions of examples.
register(
    "Identity Reshape ExpandDims Squeeze Cast StopGradient Snapshot Tile BroadcastTo "
    "StridedSlice Switch Enter Exit NextIteration", positions="keeps")
register("Add AddV2 Mul", positions="moves")
register(
    "Gather GatherV2 ResourceGather GatherNd ScatterNd UnsortedSegmentSum Pack ConcatV2",
    positions="tells")

# Random ops, by the state that they sample from.
register(
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomGamma "
    "RandomPoisson RandomPoissonV2 ParameterizedTruncatedNormal Multinomial RandomShuffle "
    "RandomCrop UniformCandidateSampler LogUniformCandidateSampler "
    "LearnedUnigramCandidateSampler FixedUnigramCandidateSampler", role=RANDOM)
register(
    "StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal "
    "StatelessRandomUniformInt StatelessRandomUniformFullInt StatelessRandomPoisson "
    "StatelessRandomBinomial StatelessMultinomial", role=SEEDED_RANDOM)
register(
    "StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg", role=SEEDED_RANDOM, key=True)
register(
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 "
    "StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2 StatelessRandomGammaV3",
    role=KEYED_RANDOM)
# The last one only advances the state of a generator.
register("StatefulUniform StatefulStandardNormalV2 RngSkip", role=VARIABLE_RANDOM)
register("RngReadAndSkip", role=VARIABLE_RANDOM, key=True)

# State.
register(
    "IteratorGetNext IteratorGetNextSync QueueDequeueManyV2 QueueDequeueUpToV2 "
    "QueueDequeueMany QueueDequeueUpTo", role=PIPELINE)
register("TensorArrayV3 TensorArrayV2 TensorArray StackV2 Stack", role=CONTAINER)
# Variables: handles, reads, updates.
register("VarHandleOp VariableV2 Variable", role=VARIABLE)
register(
    "ReadVariableOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp "
    "IsVariableInitialized Assert", role=OF_VARIABLE)
register(
    "Assign AssignAdd AssignSub CountUpTo AssignVariableOp AssignAddVariableOp "
    "AssignSubVariableOp ResourceStridedSliceAssign", role=UPDATE)
register(
    "Print PrintV2 IteratorV2 Iterator IteratorFromStringHandleV2 MakeIterator "
    "OneShotIterator AnonymousIteratorV2 AnonymousIteratorV3 LookupTableFindV2 "
    "LookupTableFind LookupTableSizeV2 HashTableV2 MutableHashTableV2 Placeholder "
    "PlaceholderV2 _Retval _Arg FakeParam CheckNumerics CheckNumericsV2 StackPushV2 "
    "StackPopV2 StackCloseV2 StackPush StackPop StackClose", role=HARMLESS)

# Ops with the shape of the output in an input.
register("Fill BroadcastTo Tile Reshape Range OneHot ZerosLike OnesLike", shaped=True)

# Containers.
register("TensorArrayWriteV3", puts=(0, 2, 0))
register("TensorArrayScatterV3", puts=(0, 2, -1))
register("TensorListPushBack StackPushV2 StackPush", puts=(0, 1, 0))
register("TensorListSetItem", puts=(0, 2, 0))
register("TensorListFromTensor TensorListScatter TensorListScatterV2", puts=(None, 0, -1))
register("TensorListScatterIntoExistingList", puts=(0, 1, -1))
register("OptionalFromValue", puts=(None, 0, 0))
register("TensorArrayReadV3 StackPopV2 StackPop", takes=(0, 0, 0))
register("TensorArrayGatherV3", takes=(0, 1, 0))
register("TensorListPopBack", takes=(0, 0, 1))
register("TensorListGetItem OptionalGetValue", takes=(0, 0, 0))
register("TensorListStack TensorListGather", takes=(0, 1, 0))

# Rows whose number depends on values; numbered outputs are as long as the input.
# Unique numbers every element: output 1 is as long as the input.
register("Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2", any_number=(1,))
register(
    "Where ListDiff SetDiff1D DynamicPartition NonMaxSuppressionV3 "
    "DenseToDenseSetOperation SparseReshape", any_number=())

# Numbers of examples.
register("FloorDiv FloorMod Mod TruncateDiv Minimum Maximum Add AddV2 Sub", bends=True)

# Ops of optimizers and moving averages.
register(
    "Identity Mul RealDiv Div DivNoNan Neg Cast Square Sub Add AddV2 Select SelectV2 "
    "Maximum Minimum ClipByValue Sqrt Rsqrt Pow StopGradient Abs Sign", scales_rows=True)
register(
    "Identity Squeeze Reshape ExpandDims Cast StopGradient Snapshot Switch Merge Sub Mul "
    "Add AddV2 Neg AddN", averages=True)

# Loops and branches of TensorFlow 1.
register("Enter RefEnter", flow="enter")
register("Exit RefExit", flow="exit")
register("Merge RefMerge", flow="merge")
register("NextIteration RefNextIteration", flow="next")
register("Switch RefSwitch", flow="switch")

# Where ops run. Placeholders are measured with a default, whose kernel is that of Identity.
register(
    "BroadcastArgs BroadcastGradientArgs ConcatOffset Const ControlTrigger Enter Exit ExpandDims "
    "HostConst Identity IdentityN ImmutableConst IsVariableInitialized LoopCond Merge "
    "NextIteration NoOp Placeholder PlaceholderWithDefault PreventGradient Rank RefEnter RefExit "
    "RefIdentity RefMerge RefNextIteration RefSwitch Reshape Shape ShapeN Size Squeeze StackPopV2 "
    "StackPushV2 StopGradient Switch VarHandleOp", inline=True)
register(
    "LoopCond PyFunc PyFuncStateless EagerPyFunc SaveV2 RestoreV2 Save Restore MergeV2Checkpoints "
    "QueueDequeueV2 QueueEnqueueV2 FIFOQueueV2 NonMaxSuppression UniqueV2 UniqueWithCountsV2 "
    "ListDiff",
    host=True)

# Files and servers.
register(
    "ReadFile MatchingFiles GenerateVocabRemapping InitializeTableFromTextFile "
    "InitializeTableFromTextFileV2 CacheDataset CacheDatasetV2 SnapshotDataset SnapshotDatasetV2 "
    "SnapshotDatasetReader SnapshotChunkDataset RegisterDataset RegisterDatasetV2 ImmutableConst "
    "EncodeProto DecodeProtoV2 DebugIdentity DebugIdentityV2 DebugIdentityV3 DebugNanCount "
    "DebugNumericSummary", role=OUTSIDE)

# Ops that output their inputs.
register(
    "Identity IdentityN RefIdentity Enter RefEnter Exit RefExit NextIteration RefNextIteration "
    "Switch RefSwitch _SwitchN Merge RefMerge StopGradient PreventGradient", hands_on=True)

# Kernels. No kernel runs for these ops.
register(
    "Const HostConst ImmutableConst Placeholder PlaceholderV2 PlaceholderWithDefault _Arg _Retval "
    "Identity IdentityN RefIdentity StopGradient PreventGradient DebugGradientIdentity "
    "DebugGradientRefIdentity Snapshot NoOp ControlTrigger EnsureShape "
    "VarHandleOp VarIsInitializedOp VariableShape ReadVariableOp DestroyResourceOp "
    "Variable VariableV2 AutoReloadVariable TemporaryVariable IsVariableInitialized "
    "Shape ShapeN Size Rank Reshape Squeeze ExpandDims Bitcast "
    "Switch RefSwitch _SwitchN Merge RefMerge _XlaMerge Enter RefEnter Exit RefExit NextIteration "
    "RefNextIteration LoopCond "
    "Stack StackV2 StackPush StackPushV2 StackPop StackPopV2 StackClose StackCloseV2 "
    "TensorArrayV2 TensorArrayV3 TensorArrayGradV2 TensorArrayGradV3 TensorArrayGradWithShape "
    "TensorArrayReadV2 TensorArrayReadV3 TensorArrayWriteV2 TensorArrayWriteV3 TensorArraySizeV2 "
    "TensorArraySizeV3 TensorArrayCloseV2 TensorArrayCloseV3 "
    "EmptyTensorList TensorListReserve TensorListPushBack TensorListPopBack TensorListLength "
    "TensorListSetItem TensorListGetItem TensorListElementShape TensorListResize "
    "OptionalNone OptionalFromValue OptionalGetValue OptionalHasValue "
    "DummyMemoryCache MutexV2 AnonymousSeedGenerator DeleteSeedGenerator Timestamp", kernels=0)
# By TensorFlow's sources (core/kernels): ids of int32 are numbered, sorted in 4 passes of 8 bits,
# counted, and sorted again by position, in 3 passes (unique_op_gpu); sums begin as zeros
# (segment_reduction_ops_gpu).
register("Unique UniqueWithCounts", kernels=28, of_gpu=True)
register("UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd", kernels=2)
# Tensor cores multiply these.
register(
    "MatMul BatchMatMul BatchMatMulV2 Einsum Conv2D Conv2DBackpropFilter Conv2DBackpropInput "
    "Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 CudnnRNN CudnnRNNV2 CudnnRNNV3 "
    "CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 _FusedMatMul _FusedConv2D", product="T")
register("BatchMatMulV3 SparseMatMul", product="Ta")

# Kinds of kernels: types that differ from a timed one by their name or function alone are with it.
register("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum _FusedMatMul", kind="product")
register("Conv2D Conv3D _FusedConv2D", kind="convolution")
register("Conv2DBackpropInput Conv3DBackpropInputV2", kind="gradient of the input")
register("Conv2DBackpropFilter Conv3DBackpropFilterV2", kind="gradient of the filter")
register(
    "Conv2D _FusedConv2D Conv2DBackpropInput Conv2DBackpropFilter", windows=(1, 3, 5))
register(
    "Add AddV2 AddN Sub Mul RealDiv Maximum Minimum Neg Abs Square Sqrt Rsqrt Exp Log "
    "SquaredDifference BiasAdd Cast Select SelectV2 Relu ReluGrad Relu6 Relu6Grad LeakyRelu "
    "LeakyReluGrad Elu EluGrad Tanh TanhGrad Sigmoid SigmoidGrad Pow Greater GreaterEqual Less "
    "LessEqual Equal NotEqual Reciprocal Unique UniqueWithCounts", kind="element-wise")
register("Sum Mean Prod Max Min BiasAddGrad L2Loss", kind="reduction")
register("Softmax LogSoftmax", kind="softmax")
register("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits", kind="loss")
register("MaxPool AvgPool", kind="pooling")
register("MaxPoolGrad AvgPoolGrad", kind="gradient of pooling")
register(
    "Transpose Concat ConcatV2 Split SplitV Pack Unpack Slice StridedSlice StridedSliceGrad Pad "
    "PadV2 Tile Fill ZerosLike OnesLike BroadcastTo", kind="move")
register("Gather GatherV2 GatherNd ResourceGather ResourceGatherNd", kind="lookup")
register(
    "ResourceSparseApplyMomentum ResourceSparseApplyKerasMomentum ResourceSparseApplyAdagrad "
    "ResourceSparseApplyAdagradV2 ResourceSparseApplyFtrl ResourceScatterAdd ResourceScatterSub "
    "ResourceScatterUpdate ScatterNd TensorScatterAdd SegmentSum SparseSegmentSum "
    "SparseSegmentMean SparseSegmentSqrtN UnsortedSegmentSum", kind="update of rows")
register(
    "ResourceApplyMomentum ResourceApplyKerasMomentum ResourceApplyAdam ResourceApplyRMSProp "
    "ResourceApplyGradientDescent ResourceApplyAdagrad ResourceApplyAdagradV2 ResourceApplyFtrl",
    kind="update")
register(
    "RandomUniform RandomStandardNormal TruncatedNormal StatelessRandomUniformV2 "
    "StatelessRandomNormalV2 StatelessTruncatedNormalV2", kind="random")
