"""What the description of a model in a file may name: parts that compute, and use no file."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fedpersonal.errors import UserError, quoted

# Left out are layers that hold code or read files: Lambda, DenseFeatures, methods of classes.
_LAYERS = frozenset(
    """
    Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average
    AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Bidirectional
    CategoryEncoding CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D
    Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D Cropping3D Dense
    DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Flatten
    GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D
    GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
    GroupNormalization HashedCrossing Hashing Identity InputLayer IntegerLookup LSTM LSTMCell
    LayerNormalization LeakyReLU LocallyConnected1D LocallyConnected2D Masking MaxPooling1D
    MaxPooling2D MaxPooling3D Maximum Minimum MultiHeadAttention Multiply Normalization PReLU
    Permute RNN RandomBrightness RandomContrast RandomCrop RandomFlip RandomHeight RandomRotation
    RandomTranslation RandomWidth RandomZoom ReLU RepeatVector Rescaling Reshape Resizing
    SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D
    SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup Subtract
    TextVectorization ThresholdedReLU TimeDistributed UnitNormalization UpSampling1D UpSampling2D
    UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    """.split()
)
_OPERATION_LAYERS = ("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer")
# Functions of TensorFlow, as Keras names them; some have `compat.v1.` before their names.
_OPERATIONS = frozenset(
    """
    __operators__.add __operators__.eq __operators__.getitem __operators__.ne argsort boolean_mask
    broadcast_to cast clip_by_norm clip_by_value concat convert_to_tensor einsum ensure_shape
    expand_dims eye fill floor_div gather gather_nd identity linspace norm one_hot ones ones_like
    pad range rank realdiv repeat reshape reverse reverse_sequence roll scatter_nd searchsorted
    sequence_mask shape size slice sort split squeeze stack stop_gradient strided_slice
    tensor_scatter_nd_add tensor_scatter_nd_update tensordot tile transpose truncatediv truncatemod
    unstack where zeros zeros_like

    linalg.adjoint linalg.band_part linalg.cholesky linalg.cross linalg.det linalg.diag
    linalg.diag_part linalg.inv linalg.logdet linalg.matmul linalg.matrix_transpose linalg.matvec
    linalg.norm linalg.normalize linalg.set_diag linalg.solve linalg.trace

    math.abs math.acos math.acosh math.add math.add_n math.argmax math.argmin math.asin math.asinh
    math.atan math.atan2 math.atanh math.bincount math.ceil math.cos math.cosh math.count_nonzero
    math.cumprod math.cumsum math.cumulative_logsumexp math.digamma math.divide
    math.divide_no_nan math.equal math.erf math.erfc math.exp math.expm1 math.floor math.floordiv
    math.floormod math.greater math.greater_equal math.in_top_k math.invert_permutation
    math.is_finite math.is_inf math.is_nan math.l2_normalize math.less math.less_equal math.lgamma
    math.log math.log1p math.log_sigmoid math.log_softmax math.logical_and math.logical_not
    math.logical_or math.logical_xor math.maximum math.minimum math.mod math.multiply
    math.multiply_no_nan math.negative math.not_equal math.pow math.reciprocal
    math.reciprocal_no_nan math.reduce_all math.reduce_any math.reduce_euclidean_norm
    math.reduce_logsumexp math.reduce_max math.reduce_mean math.reduce_min math.reduce_prod
    math.reduce_std math.reduce_sum math.reduce_variance math.rint math.round math.rsqrt
    math.scalar_mul math.segment_max math.segment_mean math.segment_min math.segment_sum
    math.sigmoid math.sign math.sin math.sinh math.softmax math.softplus math.softsign math.sqrt
    math.square math.squared_difference math.subtract math.tan math.tanh math.top_k math.truediv
    math.unsorted_segment_max math.unsorted_segment_mean math.unsorted_segment_min
    math.unsorted_segment_sum math.xdivy math.xlogy math.zero_fraction

    nn.avg_pool nn.avg_pool1d nn.avg_pool2d nn.batch_normalization nn.bias_add nn.conv1d nn.conv2d
    nn.convolution nn.depthwise_conv2d nn.dropout nn.elu nn.embedding_lookup nn.gelu nn.l2_loss
    nn.l2_normalize nn.leaky_relu nn.log_softmax nn.max_pool nn.max_pool1d nn.max_pool2d nn.moments
    nn.relu nn.relu6 nn.selu nn.sigmoid nn.sigmoid_cross_entropy_with_logits nn.silu nn.softmax
    nn.softmax_cross_entropy_with_logits nn.softplus nn.softsign
    nn.sparse_softmax_cross_entropy_with_logits nn.swish nn.tanh

    random.normal random.uniform strings.as_string strings.join strings.length strings.lower
    strings.regex_replace strings.split strings.strip strings.substr strings.to_hash_bucket_fast
    strings.to_hash_bucket_strong strings.to_number strings.upper
    """.split()
)
# Kinds of operations of a graph: Keras writes these of a model that was built in one.
_KINDS = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin AsString Asin Asinh Atan Atan2 Atanh AvgPool
    BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpaceND BiasAdd Bincount BroadcastArgs
    BroadcastTo Bucketize Cast Ceil Cholesky ClipByValue Concat ConcatV2 Conv2D Cos Cosh Cumprod
    Cumsum CumulativeLogsumexp DenseBincount DepthwiseConv2dNative Digamma Div DivNoNan Einsum Elu
    EnsureShape Equal Erf Erfc Exp ExpandDims Expm1 Fill Floor FloorDiv FloorMod Gather GatherNd
    GatherV2 Greater GreaterEqual Identity IdentityN InvertPermutation IsFinite IsInf IsNan L2Loss
    LeakyRelu Less LessEqual Lgamma LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV3 MatrixDiagV3
    MatrixInverse MatrixSetDiagV3 MatrixSolve Max MaxPool MaxPoolV2 Maximum Mean Min Minimum
    MirrorPad Mul MulNoNan Neg NotEqual OneHot OnesLike Pack Pad PadV2 Pow Prod Range Rank RealDiv
    Reciprocal Relu Relu6 Reshape ReverseSequence ReverseV2 Rint Roll Round Rsqrt ScatterNd
    SegmentMax SegmentMean SegmentMin SegmentSum Select SelectV2 Selu Shape Sigmoid Sign Sin Sinh
    Size Slice Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign SpaceToBatchND
    SparseSoftmaxCrossEntropyWithLogits Split SplitV Sqrt Square SquaredDifference Squeeze
    StaticRegexReplace StopGradient StridedSlice StringJoin StringLength StringLower StringStrip
    StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr Sum Tan
    Tanh TensorScatterAdd TensorScatterUpdate Tile TopKV2 Transpose TruncateDiv TruncateMod Unpack
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum Xdivy Xlogy ZerosLike
    """.split()
)
# Of these modules of Keras every class is allowed, and no function: they compute.
_MODULES = ("constraints", "initializers", "losses", "metrics", "mixed_precision", "regularizers")
_INSTEAD = "give load_run the model itself (model=)"


def check_parts(described: dict[str, Any]) -> None:
    """Makes sure that a description names known layers, operations and other parts of Keras alone.

    Args:
        described: As of `model.description`, its `keras` read from JSON.

    Raises:
        UserError: If it has code, names anything else, or gives a layer a file to read.
    """
    top = described["keras"]
    if top.get("class_name") not in ("Functional", "Model", "Sequential"):
        raise _refusal("the model", top.get("class_name"))
    if {*top} - {"class_name", "config", "keras_version", "backend"}:
        raise UserError(f"the model has entries that Keras does not write; {_INSTEAD}.")
    _check([top.get("config"), described.get("loss"), described.get("metrics")])


def _check(part: Any) -> None:
    if isinstance(part, dict):
        if "class_name" in part:
            _check_class(part)
        if isinstance(part.get("vocabulary"), (str, dict)):
            raise _refusal("a vocabulary of the file", part["vocabulary"])
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        _check(inner)


def _check_class(part: dict[str, Any]) -> None:
    """Checks the object that Keras makes of a dictionary with `class_name`."""
    name, module = part["class_name"], str(part.get("module"))
    if name in ("__ellipsis__", "__numpy__", "__tensor__"):  # Values.
        return
    if name in _OPERATION_LAYERS:
        in_graph = name == "TensorFlowOpLayer"
        config = part["config"]
        operation = config["node_def"]["op"] if in_graph else config["function"]
        if operation not in _KINDS if in_graph else _plain(operation) not in _OPERATIONS:
            raise _refusal("the operation", operation)
        is_known = module.startswith("keras.") and part.get("registered_name") == name
    else:
        keras, _, rest = module.partition(".")
        is_class = rest in _MODULES and isinstance(
            getattr(getattr(tf.keras, rest), str(name), None), type
        )
        is_known = keras == "keras" and (rest == "layers" and name in _LAYERS or is_class)
        # Another name would be that of a class that the program has registered.
        is_known &= part.get("registered_name") is None
    if not is_known:
        is_layer = module == "keras.layers"
        raise _refusal("the layer", name) if is_layer else _refusal("the part", f"{module}.{name}")


def _plain(operation: str) -> str:
    return operation.removeprefix("compat.v1.")


def _refusal(kind: str, name: object) -> UserError:
    return UserError(f"{kind} {quoted(str(name))} is not read from a file; {_INSTEAD}.")
