"""Cases of masks, losses and metrics."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from tests.model.keras_parity import Case

LAYERS, LOSSES, METRICS = tf.keras.layers, tf.keras.losses, tf.keras.metrics
STACKED = "Use packing='stacked'"
RANDOM = np.random.default_rng(0)
NUM, TIME = 8, 5
X = RANDOM.normal(size=[NUM, 4]).astype(np.float32)
REAL = RANDOM.normal(size=NUM).astype(np.float32)
PAIRS = RANDOM.normal(size=[NUM, 2]).astype(np.float32)
BITS = np.array([0, 1, 1, 0, 1, 1, 0, 1], np.float32)
CLASSES = np.array([0, 2, 1, 1, 2, 0, 0, 2], np.int32)
ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
SHARES = RANDOM.dirichlet([1, 1, 1], NUM).astype(np.float32)
# Padded sequences, whose padding has labels of its own.
LENGTHS = np.array([5, 2, 3, 1, 4, 2, 5, 3])
IS_REAL = np.arange(TIME) < LENGTHS[:, np.newaxis]
TOKENS = np.where(IS_REAL, RANDOM.integers(1, 5, [NUM, TIME]), 0).astype(np.int32)
TAGS = RANDOM.integers(0, 3, [NUM, TIME]).astype(np.int32)
SERIES = (RANDOM.normal(size=[NUM, TIME, 2]) * IS_REAL[..., np.newaxis]).astype(np.float32)
CURVES = RANDOM.normal(size=[NUM, TIME, 1]).astype(np.float32)


def dense(units=1, activation=None, scale=None, **options):
    """Returns what builds a model of one dense layer."""
    initializer = scale and tf.keras.initializers.RandomNormal(stddev=scale, seed=1)
    options = {**options, **({"kernel_initializer": initializer} if scale else {})}
    return lambda: tf.keras.Sequential(
        [tf.keras.Input([4], name="x"), LAYERS.Dense(units, activation, **options)]
    )


def flat():
    """Returns a model with an output of shape (batch,)."""
    x = tf.keras.Input([4], name="x")
    return tf.keras.Model(x, LAYERS.Dense(1)(x)[:, 0])


def tagger(*layers, units=3, activation=None, mask_zero=True):
    """Returns what builds a model with an output for each token."""

    def build():
        embedding = LAYERS.Embedding(5, 3, mask_zero=mask_zero)
        made = [layer() for layer in layers]
        head = LAYERS.Dense(units, activation)
        return tf.keras.Sequential(
            [tf.keras.Input([TIME], name="x", dtype="int32"), embedding, *made, head]
        )

    return build


def masking(*layers):
    """Returns what builds a model of masked series."""
    return lambda: tf.keras.Sequential(
        [
            tf.keras.Input([TIME, 2], name="x"),
            LAYERS.Masking(),
            *(layer() for layer in layers),
            LAYERS.Dense(1),
        ]
    )


class SkipsThree(tf.keras.layers.Layer):
    """Masks a token in addition to the mask that it is given."""

    supports_masking = True

    def call(self, inputs):
        """Returns embedded tokens."""
        return tf.one_hot(inputs, 5)

    def compute_mask(self, inputs, mask=None):
        """Returns where tokens are not 3."""
        return tf.not_equal(inputs, 3)


def skips_three():
    """Returns a tagger whose mask is a layer's own."""
    return tf.keras.Sequential(
        [tf.keras.Input([TIME], name="x", dtype="int32"), SkipsThree(), LAYERS.Dense(3)]
    )


def without_mask():
    """Returns a tagger with a layer that ends the mask."""

    class Ends(tf.keras.layers.Layer):
        supports_masking = True

        def call(self, inputs):
            return inputs

        def compute_mask(self, inputs, mask=None):
            del inputs, mask

    return tagger(Ends)()


class Centres(tf.keras.layers.Layer):
    """Subtracts the batch's mean."""

    supports_masking = True

    def call(self, inputs):
        """Returns what differs from the mean."""
        return inputs - tf.reduce_mean(inputs, 0, keepdims=True)


def sparse(**options):
    """Returns the usual loss of taggers."""
    return LOSSES.SparseCategoricalCrossentropy(from_logits=True, **options)


def tag_metrics():
    """Returns metrics of sparse classes."""
    return [
        "accuracy",
        METRICS.SparseCategoricalCrossentropy(name="ce", from_logits=True),
        METRICS.SparseTopKCategoricalAccuracy(k=2),
    ]


class OwnCall(LOSSES.Loss):
    """An own function of labels and outputs."""

    def call(self, y_true, y_pred):
        """Returns one number an example."""
        return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


class ScalarCall(LOSSES.Loss):
    """A function with one number for a batch."""

    def call(self, y_true, y_pred):
        """Returns a number."""
        return tf.reduce_max(tf.square(y_true - y_pred))


class OwnMethod(LOSSES.MeanSquaredError):
    """Doubles a loss, and adds the batch's size."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        """Returns a number for a batch."""
        found = super().__call__(y_true, y_pred, sample_weight)
        return found * tf.cast(tf.shape(y_true)[0], tf.float32) + 1.0


class OverridesCall(LOSSES.SparseCategoricalCrossentropy):
    """A Keras loss with another function."""

    def call(self, y_true, y_pred):
        """Returns one number an example."""
        return super().call(y_true % 2, y_pred) + tf.reduce_mean(y_pred**2, -1)


class IgnoresInCall(LOSSES.Loss):
    """A loss that masks some labels by itself."""

    def call(self, y_true, y_pred):
        """Returns one number an example, masked."""
        return LOSSES.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True, ignore_class=2
        )


def places(labels, predictions):
    """Returns one number a place."""
    return tf.square(labels - predictions)


def scalar(labels, predictions):
    """Returns one number for a batch."""
    return tf.sqrt(tf.reduce_mean(tf.square(labels - predictions)))


def columns(labels, predictions):
    """Returns one number an example, of labels (batch, 1) and outputs of classes."""
    picked = tf.gather(predictions, tf.cast(labels[:, 0], tf.int32), batch_dims=1)
    return tf.square(1.0 - picked) + 0.1 * tf.reduce_sum(predictions**2, -1)


def branches(labels, predictions):
    """Returns one number a place, with Python's `if` of a tensor."""
    if tf.reduce_mean(labels) > 100.0:
        return tf.abs(labels - predictions)
    return tf.square(labels - predictions)


def contrasts(labels, predictions):
    """Returns one number an example, which compares examples."""
    apart = tf.square(predictions - tf.transpose(labels))
    return tf.reduce_mean(apart, -1) - tf.square(labels - predictions)[:, 0]


class OwnUpdate(METRICS.MeanAbsoluteError):
    """A metric that sums up twice its values."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch."""
        return super().update_state(2.0 * y_true, 2.0 * y_pred, sample_weight)


class OwnResult(METRICS.MeanSquaredError):
    """A metric that reports the root."""

    def result(self):
        """Returns the root of the mean."""
        return tf.sqrt(super().result())


class OwnReset(METRICS.MeanSquaredError):
    """A metric that keeps what it has summed."""

    def reset_state(self):
        """Keeps everything."""


class RelativeRoot(METRICS.RootMeanSquaredError):
    """Half of the root mean squared error."""

    def result(self):
        """Returns half of it."""
        return 0.5 * super().result()


class Counts(METRICS.Metric):
    """Counts examples."""

    def __init__(self):
        super().__init__(name="counts")
        self.total = self.add_weight("total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch."""
        self.total.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self):
        """Returns the count."""
        return self.total


def adds(make_loss, build=None):
    """Returns what builds a model that adds a loss."""

    class Adds(LAYERS.Layer):
        def call(self, inputs):
            self.add_loss(make_loss(inputs))
            return inputs

        supports_masking = True

    def made():
        model = (build or dense())()
        return tf.keras.Model(model.inputs, Adds()(model.output))

    return made


def compiled_without_loss():
    """Returns a model that Keras trains by the loss that it adds alone."""
    model = adds(lambda t: tf.reduce_mean(t**2))()
    model.compile(tf.keras.optimizers.SGD(0.1))
    return model


MASKS = [
    Case("mask_zero", tagger(), TOKENS, TAGS, sparse(), tag_metrics()),
    Case("mask_zero from a builder", tagger(), TOKENS, TAGS, sparse(), ["acc"], start="drawn"),
    Case(
        "mask_zero without labels' padding being told apart by the loss' name",
        tagger(activation="softmax"),
        TOKENS,
        TAGS,
        "sparse_categorical_crossentropy",
        ["sparse_categorical_crossentropy"],
    ),
    Case(
        "mask through recurrent layers",
        tagger(lambda: LAYERS.SimpleRNN(2, return_sequences=True, unroll=True)),
        TOKENS,
        TAGS,
        sparse(),
        tag_metrics(),
    ),
    Case(
        "mask through TimeDistributed and Dropout",
        tagger(lambda: LAYERS.TimeDistributed(LAYERS.Dense(2)), lambda: LAYERS.Dropout(0.0)),
        TOKENS,
        TAGS,
        sparse(),
        ["accuracy"],
    ),
    Case(
        "Masking",
        masking(),
        SERIES,
        CURVES,
        "mse",
        ["mae", METRICS.RootMeanSquaredError(), METRICS.LogCoshError()],
    ),
    Case(
        "Masking of a series with one label",
        masking(LAYERS.GlobalAveragePooling1D),
        SERIES,
        REAL,
        "mse",
        ["mae"],
    ),
    Case("mask of one number a place", masking(), SERIES, CURVES[..., 0], "mse", refused="loss"),
    Case("layer with compute_mask", skips_three, TOKENS, TAGS, sparse(), tag_metrics()),
    Case(
        "layer that returns its input and no mask",
        without_mask,
        TOKENS,
        TAGS,
        sparse(),
        ["accuracy"],
    ),
    Case("mask with sum", tagger(), TOKENS, TAGS, sparse(reduction="sum"), ["accuracy"]),
    Case("mask with ignore_class", tagger(), TOKENS, TAGS, sparse(ignore_class=1), ["accuracy"]),
    Case(
        "mask with ignore_class in a metric",
        tagger(),
        TOKENS,
        TAGS,
        sparse(),
        [METRICS.SparseCategoricalCrossentropy(name="c", from_logits=True, ignore_class=1)],
    ),
    Case(
        "mask with one-hot labels",
        tagger(activation="softmax"),
        TOKENS,
        np.eye(3, dtype=np.float32)[TAGS],
        LOSSES.CategoricalCrossentropy(label_smoothing=0.2),
        [
            "accuracy",
            "crossentropy",
            METRICS.CosineSimilarity(),
            METRICS.TopKCategoricalAccuracy(2),
        ],
    ),
    Case("mask with own __call__", masking(), SERIES, CURVES, OwnMethod(), ["mae"]),
    Case("mask with a scalar loss", masking(), SERIES, CURVES, scalar, [scalar]),
    Case(
        "mask with a loss that a layer adds",
        adds(lambda t: 0.1 * tf.reduce_mean(t**2), tagger()),
        TOKENS,
        TAGS,
        sparse(),
        ["accuracy"],
    ),
    Case("mask with batch statistics", tagger(Centres), TOKENS, TAGS, sparse(), ["accuracy"]),
    Case("mask, pooled", tagger(), TOKENS, TAGS, sparse(), packing="pooled", refused=STACKED),
    Case(
        "weighted_metrics", tagger(), TOKENS, TAGS, sparse(), compiled={"weighted_metrics": ["acc"]}
    ),
]

OPTIONS = [
    Case("mse by name", dense(), X, REAL, "mse", ["mae", "mse"], start="drawn"),
    Case("mse, pooled", dense(), X, REAL, "mse", ["mae"], packing="pooled"),
    Case("output (batch,)", flat, X, REAL, "mse", ["mae"]),
    Case("output (batch,) and labels (batch, 1)", flat, X, REAL[:, np.newaxis], "mse", ["mae"]),
    Case("labels (batch, 1)", dense(), X, REAL[:, np.newaxis], "mae", ["mse"]),
    Case("several numbers", dense(2), X, PAIRS, "mse", ["mae", METRICS.RootMeanSquaredError()]),
    Case("labels of float64", dense(), X, REAL.astype(np.float64), OwnCall(), ["mae"]),
    Case("labels of int64", dense(3), X, CLASSES.astype(np.int64), sparse(), ["accuracy"]),
    Case("labels of uint8", dense(3), X, CLASSES.astype(np.uint8), sparse(), ["accuracy"]),
    Case("sparse labels (batch, 1)", dense(3), X, CLASSES[:, np.newaxis], sparse(), ["accuracy"]),
    Case("floats as classes", dense(3), X, CLASSES.astype(np.float32), sparse(), ["accuracy"]),
    Case("ignore_class", dense(3), X, CLASSES, sparse(ignore_class=1), ["accuracy"]),
    Case("ignore_class=-1", dense(3), X, np.where(BITS, CLASSES, -1), sparse(ignore_class=-1)),
    Case("ignore_class of places", tagger(mask_zero=False), TOKENS, TAGS, sparse(ignore_class=0)),
    Case("ignore_class in own call", dense(3), X, CLASSES, IgnoresInCall(), ["accuracy"]),
    Case(
        "ignore_class, pooled",
        dense(3),
        X,
        CLASSES,
        sparse(ignore_class=1),
        packing="pooled",
        refused=STACKED,
    ),
    Case("binary logits", dense(), X, BITS, LOSSES.BinaryCrossentropy(from_logits=True), ["mae"]),
    Case(
        "label_smoothing of two classes",
        dense(1, "sigmoid"),
        X,
        BITS,
        LOSSES.BinaryCrossentropy(label_smoothing=0.3),
        ["accuracy", METRICS.BinaryCrossentropy(label_smoothing=0.1)],
    ),
    Case("saturated sigmoid", dense(1, "sigmoid", 30.0), X, BITS, "binary_crossentropy", ["ce"]),
    Case(
        "saturated softmax",
        dense(3, "softmax", 40.0),
        X,
        CLASSES,
        "sparse_categorical_crossentropy",
        ["sparse_categorical_crossentropy"],
    ),
    Case(
        "axis",
        lambda: tf.keras.Sequential(
            [tf.keras.Input([4], name="x"), LAYERS.Dense(6), LAYERS.Reshape([3, 2])]
        ),
        X,
        np.stack([ONE_HOT, SHARES], -1),
        LOSSES.CategoricalCrossentropy(from_logits=True, axis=1),
    ),
    Case("Huber", dense(), X, REAL, LOSSES.Huber(delta=0.3), ["mae"]),
    Case("LogCosh", dense(), X, REAL, LOSSES.LogCosh(), ["logcosh"]),
    Case("MSLE and MAPE", dense(1, "softplus"), X, REAL**2, "msle", ["mape", "msle"]),
    Case("Poisson", dense(1, "softplus"), X, REAL**2, LOSSES.Poisson(), ["poisson"]),
    Case(
        "KLDivergence",
        dense(3, "softmax"),
        X,
        SHARES,
        LOSSES.KLDivergence(),
        [METRICS.KLDivergence()],
    ),
    Case("CosineSimilarity", dense(2), X, PAIRS, LOSSES.CosineSimilarity(), ["cosine_similarity"]),
    Case(
        "CosineSimilarity along the batch",
        dense(2),
        X,
        PAIRS,
        LOSSES.CosineSimilarity(axis=0),
        refused="must be one number per example",
    ),
    Case("Hinge", dense(), X, BITS, "hinge", ["hinge", "squared_hinge"]),
    Case("CategoricalHinge", dense(3), X, ONE_HOT, "categorical_hinge", ["categorical_hinge"]),
    Case(
        "BinaryFocalCrossentropy",
        dense(1, "sigmoid"),
        X,
        BITS,
        LOSSES.BinaryFocalCrossentropy(gamma=1.5, apply_class_balancing=True),
    ),
    Case("reduction sum", dense(), X, REAL, LOSSES.MeanSquaredError(reduction="sum"), ["mae"]),
    Case("sum of places", masking(), SERIES, CURVES, LOSSES.Huber(reduction="sum")),
    Case("sum of own call", dense(), X, REAL, OwnCall(reduction="sum")),
    Case(
        "sum, pooled",
        dense(),
        X,
        REAL,
        LOSSES.MeanSquaredError(reduction="sum"),
        packing="pooled",
        refused=STACKED,
    ),
    Case("reduction sum_over_batch_size", dense(), X, REAL, OwnCall("sum_over_batch_size")),
    Case("reduction none", dense(), X, REAL, OwnCall("none"), refused="reduction='none'"),
    Case("loss by class", dense(), X, REAL, LOSSES.Huber, refused="Huber is a class"),
    Case("loss of no such name", dense(), X, REAL, "msq", refused="loss: Unknown loss"),
    Case("own call", dense(2), X, PAIRS, OwnCall(), ["mse"]),
    Case("own call of a known loss", dense(3), X, CLASSES, OverridesCall(from_logits=True)),
    Case("own call with a scalar", dense(2), X, PAIRS, ScalarCall()),
    Case("own __call__", dense(), X, REAL, OwnMethod(), ["mae"]),
    Case("function of places", dense(2), X, PAIRS, places, [places]),
    Case("function of a batch", dense(2), X, PAIRS, scalar, [scalar]),
    Case("function of columns", dense(3), X, CLASSES, columns, [columns]),
    Case("function with a branch", dense(), X, REAL, branches, [branches]),
    Case("function that compares examples", dense(), X, REAL, contrasts, ["mae"]),
    Case("added loss", adds(lambda t: tf.reduce_mean(t**4)), X, REAL, "mse", ["mae"]),
    Case("activity regulariser", dense(activity_regularizer="l2"), X, REAL, "mse", ["mae"]),
    Case("compiled without a loss", compiled_without_loss, X, REAL, None, refused="without a loss"),
    Case(
        "loss_weights",
        dense(),
        X,
        REAL,
        compiled={"loss_weights": [0.5]},
        refused="compiled with loss_weights",
    ),
]

MEASURES = [
    Case(
        "metrics of numbers",
        dense(2),
        X,
        PAIRS,
        "mse",
        [
            METRICS.MeanAbsoluteError(),
            METRICS.MeanAbsolutePercentageError(),
            METRICS.RootMeanSquaredError(),
            METRICS.CosineSimilarity(),
            METRICS.LogCoshError(),
            METRICS.MeanMetricWrapper(LOSSES.huber, name="huber", delta=0.2),
            LOSSES.Huber(name="of_loss"),
        ],
    ),
    Case(
        "metric without a name",
        dense(2),
        X,
        PAIRS,
        "mse",
        [functools.partial(LOSSES.huber, delta=0.2)],
    ),
    Case(
        "metrics of two classes",
        dense(1, "sigmoid"),
        X,
        BITS,
        "binary_crossentropy",
        [
            "accuracy",
            METRICS.BinaryAccuracy(name="strict", threshold=0.7),
            METRICS.BinaryCrossentropy(),
            METRICS.Hinge(),
            METRICS.Poisson(),
        ],
    ),
    Case(
        "metrics of classes",
        dense(3, "softmax"),
        X,
        ONE_HOT,
        "categorical_crossentropy",
        [
            "accuracy",
            METRICS.CategoricalCrossentropy(label_smoothing=0.1),
            METRICS.TopKCategoricalAccuracy(k=2),
            METRICS.KLDivergence(),
            METRICS.Accuracy(name="exact"),
        ],
    ),
    Case(
        "accuracy of one number a place",
        masking(),
        SERIES,
        (CURVES[..., 0] > 0).astype(np.float32)[:, :, np.newaxis],
        LOSSES.BinaryCrossentropy(from_logits=True),
        ["accuracy"],
    ),
    Case(
        "accuracy of labels (batch, time) and outputs (batch, time, 1)",
        tagger(units=1, activation="sigmoid", mask_zero=False),
        TOKENS,
        TAGS % 2,
        "binary_crossentropy",
        ["accuracy"],
    ),
    Case(
        "ignore_class in a metric alone",
        dense(3),
        X,
        CLASSES,
        sparse(),
        [METRICS.SparseCategoricalCrossentropy(name="c", from_logits=True, ignore_class=1)],
    ),
    Case(
        "ignore_class in a metric, pooled",
        tagger(mask_zero=False),
        TOKENS,
        TAGS,
        sparse(),
        [METRICS.SparseCategoricalCrossentropy(name="c", from_logits=True, ignore_class=1)],
        packing="pooled",
    ),
]

REFUSED = [
    Case(f"metric {type(metric).__name__}", dense(), X, BITS, "mse", [metric], refused=words)
    for metric, words in (
        (METRICS.AUC(), "(AUC) is no mean over examples"),
        (METRICS.Precision(), "(Precision) is no mean over examples"),
        (METRICS.MeanIoU(2), "(MeanIoU) is no mean over examples"),
        (METRICS.OneHotIoU(2, [0]), "(OneHotIoU) is no mean over examples"),
        (METRICS.MeanRelativeError([1.0]), "(MeanRelativeError) is no mean over examples"),
        (METRICS.Mean(name="m"), "(Mean) is no mean over examples"),
        (Counts(), "'counts' (Counts) is no mean over examples"),
        (RelativeRoot(), "(RelativeRoot) is no mean over examples"),
        (OwnUpdate(), "(OwnUpdate) overrides update_state"),
        (OwnResult(), "(OwnResult) overrides result"),
        (OwnReset(), "(OwnReset) overrides reset_state"),
    )
]

CASES = [*MASKS, *OPTIONS, *MEASURES, *REFUSED]
