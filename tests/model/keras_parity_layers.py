"""Cases of layers, variables, starting weights, optimizers and what a model captures."""

from __future__ import annotations

import tempfile

import numpy as np
import tensorflow as tf

from tests.model.keras_parity import Case

KERAS = tf.keras
LAYERS = tf.keras.layers
OPTIMIZERS = tf.keras.optimizers
RANDOM = np.random.default_rng(1)
NUM = 7
X = RANDOM.normal(size=[NUM, 4]).astype(np.float32)
Y = RANDOM.normal(size=NUM).astype(np.float32)
IDS = RANDOM.integers(1, 5, [NUM, 3]).astype(np.int32)
IMAGES = RANDOM.uniform(size=[NUM, 6, 6, 2]).astype(np.float32)
SERIES = RANDOM.normal(size=[NUM, 5, 3]).astype(np.float32)
WEIGHTS = tf.constant([0.5, 2.0])
FACTOR = tf.Variable(0.7)
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
        tf.constant([1, 2, 3], tf.int64), tf.constant([0.1, 0.2, 0.3])
    ),
    0.5,
)
TEACHER = KERAS.Sequential([KERAS.Input([1]), LAYERS.Dense(3, "tanh"), LAYERS.Dense(1)])


def take_small_steps():
    """Returns an optimizer whose steps suit many features."""
    return OPTIMIZERS.SGD(0.001)


MSE = KERAS.losses.mean_squared_error
FLOAT64 = "float64; models are trained in float32"


class Multiple(LAYERS.Layer):
    """Multiplies by a number that is no weight."""

    number = 2.0

    def call(self, inputs):
        return self.number * inputs


def changed(change):
    """Returns what builds a model and has a function change it, and its first layer."""

    def build():
        first = LAYERS.Dense(3, name="first")
        model = KERAS.Sequential([KERAS.Input([4], name="x"), first, Multiple(), LAYERS.Dense(1)])
        change(model, first)
        return model

    return build


def add_loss_to_model(model, first):
    model.add_loss(lambda: 0.3 * tf.reduce_sum(first.kernel**2))


def add_loss_to_layer(model, first):
    first.add_loss(lambda: 0.3 * tf.reduce_sum(first.kernel**2))


def add_regularizer(model, first):
    first.kernel_regularizer = KERAS.regularizers.L2(0.3)


def add_constraint(model, first):
    first.kernel_constraint = KERAS.constraints.NonNeg()


def stop_bias(model, first):
    first.bias._trainable = False


def change_number(model, first):
    model.layers[1].number = 3.0


def change_call(model, first):
    call = first.call
    first.call = lambda inputs: tf.tanh(call(inputs))


def compile_with_weight(model, first):
    model.compile(
        "sgd", lambda y, output: tf.square(y - output)[:, 0] + tf.reduce_sum(first.kernel**2)
    )


def tied(x):
    outward = LAYERS.Dense(5, name="outward")
    hidden = outward(x)
    return LAYERS.Lambda(lambda h: tf.matmul(h, outward.kernel, transpose_b=True)[:, :1])(hidden)


def around(*make, inputs=X, dtype=None, head=True):
    """Returns what builds a Sequential of new layers, with a dense one last."""
    dtype = dtype or inputs.dtype.name

    def build():
        last = [LAYERS.Flatten(), LAYERS.Dense(1)] if head else []
        first = KERAS.Input(inputs.shape[1:], dtype=dtype, name="x")
        return KERAS.Sequential([first, *(one() for one in make), *last])

    return build


def functional(call, inputs=X, cls=KERAS.Model):
    """Returns what builds a functional model of a function of its input."""

    def build():
        given = KERAS.Input(inputs.shape[1:], dtype=inputs.dtype.name, name="x")
        return cls(given, call(given))

    return build


def layer(name, make, inputs=X, **options):
    """Returns the case of a layer within a model."""
    # Where only the layer is of note, it may share a model with others.
    part = None if {*options} - {"optimizer"} or make in (Penalty, Branch, Report) else make
    build = around(make, inputs=inputs)
    return Case(name, build, inputs, Y, metrics=["mae"], part=part, **options)


def optimizer(name, make, **options):
    """Returns the case of an optimizer of Keras'."""
    return Case(name, around(), X, Y, optimizer=make, **options)


def without_biases():
    """AdamW that lets biases be."""
    made = OPTIMIZERS.AdamW(0.05)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


def head(x):
    return LAYERS.Dense(1)(x)


def overriding(name):
    """Returns what builds a model of a class that overrides a method, to the same effect."""

    def method(self, *args, **kwargs):
        return getattr(KERAS.Model, name)(self, *args, **kwargs)

    return functional(head, cls=type("Model", (KERAS.Model,), {name: method}))


@KERAS.utils.register_keras_serializable("fedpersonal_tests")
class Clip(KERAS.constraints.Constraint):
    """Holds values between two bounds."""

    def __call__(self, w):
        return tf.clip_by_value(w, -0.2, 0.3)


class Scale(LAYERS.Layer):
    """Has a variable that is trained, under a constraint, and one that is not."""

    def build(self, shape):
        self.scale = self.add_weight(
            "scale", shape[-1:], initializer="ones", constraint=lambda w: tf.minimum(w, 0.99)
        )
        self.shift = self.add_weight("shift", shape[-1:], initializer="ones", trainable=False)

    def call(self, x):
        return x * self.scale + self.shift


class Penalty(LAYERS.Layer):
    """Adds a loss of what it is called with."""

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(x**2))
        return x


class Report(LAYERS.Layer):
    """Adds a metric."""

    def call(self, x):
        self.add_metric(tf.reduce_mean(x), name="size")
        return x


class Counter(LAYERS.Layer):
    """Counts its calls."""

    def build(self, shape):
        del shape
        self.count = self.add_weight("count", (), initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        return x * self.count


class Branch(LAYERS.Layer):
    """Branches on a tensor."""

    def call(self, x):
        if tf.reduce_sum(x) > 0.0:
            return x
        return -2.0 * x


class Tied(KERAS.Model):
    """Uses a layer's variable in two places."""

    def __init__(self):
        super().__init__()
        self.encode, self.head = LAYERS.Dense(3), LAYERS.Dense(1)

    def call(self, x):
        return self.head(tf.matmul(tf.tanh(self.encode(x)), self.encode.kernel, transpose_b=True))


def adapted(kind, data, **options):
    """Returns a preprocessing layer that has seen data."""
    made = kind(**options)
    made.adapt(data)
    return made


# Named here: after a reset Keras would give the names of these two to other layers.
NORMALIZATION = adapted(LAYERS.Normalization, X, name="adapted")
VOCABULARY = adapted(LAYERS.IntegerLookup, IDS, output_mode="multi_hot", name="vocabulary")


def adapted_within():
    return around(lambda: adapted(LAYERS.Normalization, X))()


def nested(x):
    inner = KERAS.Input([4])
    encoder = KERAS.Model(inner, LAYERS.Dense(3, "tanh")(inner), name="encoder")
    return head(encoder(x) + encoder(2.0 * x))


def shared(x):
    twice = LAYERS.Dense(4, "tanh")
    return head(twice(twice(x)))


def operations(x):
    return head(tf.concat([tf.nn.relu(x)[:, :2], tf.reduce_sum(x, 1, keepdims=True), 2.0 * x], 1))


def attend(x):
    return head(LAYERS.Flatten()(LAYERS.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)))


@tf.custom_gradient
def halved_gradient(x):
    return tf.identity(x), lambda upstream: 0.5 * upstream


def with_weights():
    model = around(lambda: LAYERS.Dense(3))()
    model.set_weights([np.full_like(w.numpy(), 0.1 * i) for i, w in enumerate(model.weights, 1)])
    return model


def with_constants():
    model = around(lambda: LAYERS.Dense(3))()
    values = [np.full(w.shape, 0.1 * i, np.float32) for i, w in enumerate(model.weights, 1)]
    model.set_weights(values)
    return model


def assigned():
    model = around()()
    model.layers[-1].kernel.assign(tf.fill([4, 1], 0.25))
    model.layers[-1].bias.assign_add([1.0])
    return model


def read_and_doubled():
    model = with_constants()
    model.set_weights([2.0 * w for w in model.get_weights()])
    return model


def saved(name):
    """Returns what loads weights from a file of a format."""
    path = f"{tempfile.mkdtemp()}/{name}"
    with_constants().save_weights(path)

    def build():
        model = around(lambda: LAYERS.Dense(3))()
        model.load_weights(path)
        return model

    return build


def pretrained_part():
    inner = KERAS.Sequential([KERAS.Input([4]), LAYERS.Dense(3)], name="inner")
    inner.set_weights([np.full([4, 3], 0.1, np.float32), np.ones(3, np.float32)])
    inner.trainable = False
    return around(lambda: inner)()


def fitted():
    model = around()()
    model.set_weights([np.full([4, 1], 0.3, np.float32), np.zeros(1, np.float32)])
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=NUM, epochs=1, shuffle=False, verbose=0)
    return model


def two_inputs(kind):
    one, other = KERAS.Input([4], name="a"), KERAS.Input([4], name="b")
    given = {"a": one, "b": other} if kind is dict else [one, other]
    return KERAS.Model(given, head(LAYERS.Concatenate()([one, 2.0 * other])))


BOTH = {"a": X, "b": X[::-1].copy()}

CONSTRAINTS = [
    *(
        layer(
            f"kernel constraint {name}", lambda name=name: LAYERS.Dense(3, kernel_constraint=name)
        )
        for name in ("non_neg", "unit_norm", "max_norm")
    ),
    layer("bias constraint", lambda: LAYERS.Dense(3, bias_constraint="non_neg"), start="drawn"),
    layer("constraint class", lambda: LAYERS.Dense(3, kernel_constraint=Clip())),
    layer(
        "embeddings constraint",
        lambda: LAYERS.Embedding(5, 2, embeddings_constraint=KERAS.constraints.MaxNorm(0.03, 1)),
        IDS,
    ),
    layer(
        "recurrent constraint",
        lambda: LAYERS.SimpleRNN(3, recurrent_constraint="unit_norm"),
        SERIES,
    ),
    layer(
        "radial constraint",
        lambda: LAYERS.Conv2D(1, 3, kernel_constraint="radial_constraint"),
        IMAGES,
        optimizer=take_small_steps,
    ),
    layer(
        "soft constraint",
        lambda: LAYERS.Dense(3, kernel_constraint=KERAS.constraints.MinMaxNorm(0.1, 0.2, 0.5)),
    ),
    layer(
        "constraint, pooled", lambda: LAYERS.Dense(3, kernel_constraint=Clip()), packing="pooled"
    ),
    Case(
        "constraint with Adam",
        around(lambda: LAYERS.Dense(3, kernel_constraint=Clip())),
        X,
        Y,
        optimizer=lambda: OPTIMIZERS.Adam(0.05),
    ),
]

OVERRIDDEN = [
    *(
        Case(f"own {name}", overriding(name), X, Y, refused=f"has its own {name}")
        for name in ("train_step", "test_step", "compute_loss", "compute_metrics", "fit")
    ),
    Case(
        "own make_train_function in a builder",
        overriding("make_train_function"),
        X,
        Y,
        start="drawn",
        refused="has its own make_train_function",
    ),
    layer("add_metric", Report, refused="reports metric 'size' by itself"),
]

DTYPES = [
    Case("float64 input", around(dtype="float64"), X.astype(np.float64), Y),
    Case("float16 input", around(dtype="float16"), X.astype(np.float16), Y),
    Case("bool input", around(lambda: LAYERS.Rescaling(1.0), dtype="bool"), X > 0, Y),
    layer("float64 layer", lambda: LAYERS.Dense(3, dtype="float64"), refused=FLOAT64),
    layer("float16 layer", lambda: LAYERS.Dense(3, dtype="float16"), refused="is float16; models"),
    Case(
        "float64 output",
        around(lambda: LAYERS.Dense(1, dtype="float64"), head=False),
        X,
        Y,
        refused=FLOAT64,
    ),
]

CAPTURED = [
    Case("captured constant in a loss", around(), X, Y, lambda y, p: WEIGHTS[1] * MSE(y, p)),
    Case("captured variable in a loss", around(), X, Y, lambda y, p: FACTOR * MSE(y, p)),
    Case(
        "captured table in a loss",
        around(),
        X,
        Y,
        lambda y, p: TABLE.lookup(tf.cast(2.0 * tf.abs(y[:, 0]), tf.int64)) * MSE(y, p),
    ),
    Case("captured teacher in a loss", around(), X, Y, lambda y, p: MSE(TEACHER(y), p)),
    Case(
        "captured constant in a metric",
        around(),
        X,
        Y,
        metrics=[KERAS.metrics.MeanMetricWrapper(lambda y, p: WEIGHTS[0] * MSE(y, p), name="half")],
    ),
    Case(
        "captured constant in a model",
        functional(lambda x: head(x * WEIGHTS[0])),
        X,
        Y,
        start="drawn",
    ),
    layer("captured variable in a layer", lambda: LAYERS.Lambda(lambda x: x * FACTOR)),
    layer(
        "captured variable in a loop",
        lambda: LAYERS.Lambda(
            lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * FACTOR), (0, x))[1]
        ),
    ),
]

PREPROCESSING = [
    layer("normalization by numbers", lambda: LAYERS.Normalization(mean=0.5, variance=2.0)),
    layer("adapted normalization", lambda: NORMALIZATION),
    layer("adapted normalization in a builder", lambda: NORMALIZATION, start="drawn"),
    Case("normalization adapted in a builder", adapted_within, X, Y, start="drawn"),
    Case(
        "integer vocabulary",
        around(
            lambda: LAYERS.IntegerLookup(vocabulary=[1, 2, 3]),
            lambda: LAYERS.Embedding(5, 2),
            inputs=IDS,
        ),
        IDS,
        Y,
    ),
    layer("adapted integer vocabulary", lambda: VOCABULARY, IDS, start="drawn"),
    layer("category encoding", lambda: LAYERS.CategoryEncoding(5, output_mode="count"), IDS),
    Case(
        "discretization",
        around(lambda: LAYERS.Discretization([-1.0, 0.0, 1.0]), lambda: LAYERS.Embedding(4, 2)),
        X,
        Y,
    ),
    layer("resizing", lambda: LAYERS.Resizing(3, 4), IMAGES),
    layer(
        "random crop",
        lambda: LAYERS.RandomCrop(4, 4),
        IMAGES,
        refused="samples once for all images",
    ),
]

STARTS = [
    Case(
        "Sequential without an input",
        lambda: KERAS.Sequential([LAYERS.Dense(3), LAYERS.Dense(1)]),
        X,
        Y,
        refused="has no weights yet: make tf.keras.Input its first layer",
        options={"input_spec": tf.TensorSpec([None, 4])},
    ),
    Case("set_weights in a builder", with_constants, X, Y, start="builder"),
    Case("values read in a builder", with_weights, X, Y, start="builder"),
    Case("assign in a builder", assigned, X, Y, start="builder"),
    Case("get_weights in a builder", read_and_doubled, X, Y, start="builder"),
    Case("load_weights of HDF5 in a builder", saved("weights.h5"), X, Y, start="builder"),
    Case("load_weights of TensorFlow in a builder", saved("weights"), X, Y, start="builder"),
    Case("pretrained part in a builder", pretrained_part, X, Y, start="drawn"),
    Case("fit in a builder", fitted, X, Y, start="builder"),
    layer(
        "weights of an embedding",
        lambda: LAYERS.Embedding(5, 2, weights=[np.linspace(0, 1, 10).reshape(5, 2)]),
        IDS,
        start="drawn",
    ),
]

CHANGED = [
    Case("function added to the loss", changed(add_loss_to_model), X, Y, start="drawn"),
    *(
        Case(f"built model: {name}", changed(change), X, Y, loss, refused=words)
        for name, change, words, loss in [
            ("function added to the loss", add_loss_to_model, "adds 1 value to the loss", "mse"),
            ("function added to a layer's", add_loss_to_layer, "adds 1 value to the loss", "mse"),
            ("later regularizer", add_regularizer, "0 values to the loss, its copy 1", "mse"),
            ("later constraint", add_constraint, "constraint was set after 'first/kernel'", "mse"),
            ("one variable that is not trained", stop_bias, "set on variable 'first/bias'", "mse"),
            ("other numbers in a layer", change_number, "changed after it was made", "mse"),
            ("another call", change_call, "changed after it was made", "mse"),
            ("loss reads a weight", compile_with_weight, "loss reads variable 'first/ke", None),
        ]
    ),
    Case(
        "built model: layer reads another's weight",
        functional(tied),
        X,
        Y,
        refused="reads variable 'outward/kernel' of the built",
    ),
]

STATES = [
    layer("layer that is not trained", lambda: LAYERS.Dense(3, trainable=False)),
    layer(
        "layer that is not trained, with a regularizer",
        lambda: LAYERS.Dense(3, kernel_regularizer="l2", trainable=False),
    ),
    layer("weight that is not trained", Scale),
    layer("batch normalization", LAYERS.BatchNormalization, refused="not trained by gradient"),
    layer("frozen batch normalization", lambda: LAYERS.BatchNormalization(trainable=False)),
    layer("counter", Counter, refused="count'] are not trained by gradient"),
    Case(
        "stateful recurrent layer",
        lambda: KERAS.Sequential(
            [LAYERS.LSTM(2, stateful=True, batch_input_shape=(7, 5, 3)), LAYERS.Dense(1)]
        ),
        SERIES,
        Y,
        refused="assigns to its variable",
    ),
    layer(
        "spectral normalization",
        lambda: LAYERS.SpectralNormalization(LAYERS.Dense(3)),
        refused="the model ",  # What Keras does there is another thing in its later versions.
    ),
]

WIDE = [
    layer("dropout of nothing", lambda: LAYERS.Dropout(0.0)),
    layer("layer normalization", LAYERS.LayerNormalization),
    layer(
        "group normalization",
        lambda: LAYERS.GroupNormalization(2),
        IMAGES,
        optimizer=take_small_steps,
    ),
    layer(
        "regularizers", lambda: LAYERS.Dense(3, kernel_regularizer="l1", activity_regularizer="l2")
    ),
    layer("loss added by a layer", Penalty),
    layer("PReLU", LAYERS.PReLU),
    layer("EinsumDense", lambda: LAYERS.EinsumDense("ab,bc->ac", 3)),
    layer(
        "depthwise convolution",
        lambda: LAYERS.DepthwiseConv2D(3),
        IMAGES,
        optimizer=take_small_steps,
    ),
    layer("transposed convolution", lambda: LAYERS.Conv1DTranspose(2, 3), SERIES),
    layer("bidirectional", lambda: LAYERS.Bidirectional(LAYERS.SimpleRNN(2)), SERIES),
    layer("over time", lambda: LAYERS.TimeDistributed(LAYERS.Dense(2)), SERIES),
    Case("attention", functional(attend, SERIES), SERIES, Y),
    Case("shared layer", functional(shared), X, Y),
    Case("nested model", functional(nested), X, Y),
    Case("operations", functional(operations), X, Y),
    Case(
        "tied weights", Tied, X, Y, start="drawn", options={"input_spec": tf.TensorSpec([None, 4])}
    ),
    layer("branch on a tensor", Branch),
    layer("custom gradient", lambda: LAYERS.Lambda(halved_gradient), start="drawn"),
    layer(
        "numpy_function",
        lambda: LAYERS.Lambda(
            lambda x: tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32), [None, 4])
        ),
        refused="PyFunc",
    ),
    Case("inputs of a dict", lambda: two_inputs(dict), BOTH, Y),
    Case("inputs of a list", lambda: two_inputs(list), BOTH, Y),
]

STEPS = [
    optimizer("momentum", lambda: OPTIMIZERS.SGD(0.1, momentum=0.9)),
    optimizer("AdamW", lambda: OPTIMIZERS.AdamW(0.05)),
    *(
        optimizer(
            f"optimizer with {key}",
            lambda key=key, value=value: OPTIMIZERS.SGD(0.1, **{key: value}),
            refused=key,
        )
        for key, value in {
            "clipnorm": 0.1,
            "clipvalue": 0.1,
            "global_clipnorm": 0.1,
            "weight_decay": 0.1,
            "use_ema": True,
            "nesterov": True,
        }.items()
    ),
    optimizer("RMSprop", lambda: OPTIMIZERS.RMSprop(0.1), refused="has no counterpart"),
    optimizer(
        "loss scale",
        lambda: KERAS.mixed_precision.LossScaleOptimizer(OPTIMIZERS.SGD(0.1)),
        refused="has no counterpart",
    ),
    optimizer("AdamW without biases", without_biases, refused="exclude_from_weight_decay"),
    optimizer(
        "user-defined optimizer",
        lambda: type("SGD", (OPTIMIZERS.SGD,), {"update_step": lambda *_: None})(0.1),
        refused="is an optimizer of your own",
    ),
    optimizer(
        "learning rate schedule",
        lambda: OPTIMIZERS.SGD(OPTIMIZERS.schedules.ExponentialDecay(0.1, 1, 0.5)),
        refused="a learning rate that changes",
    ),
]

CASES = [
    *(*CONSTRAINTS, *OVERRIDDEN, *DTYPES, *CAPTURED, *PREPROCESSING),
    *(*STARTS, *CHANGED, *STATES, *WIDE, *STEPS),
]
