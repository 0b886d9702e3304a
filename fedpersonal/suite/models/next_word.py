"""Recurrent layers that compute the gradients of their weights as one matrix product.

In the functions below the layers, tensors may have further axes before the batch, (time, ...,
batch, size) and (..., size, units): independent recurrences in one loop, such as two directions.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fedpersonal.model.keras import keras
from fedpersonal.suite.models.tokens import custom_gradient


class LSTM(keras.layers.Layer):
    """A faster LSTM with the weights, outputs and gradients of Keras' LSTM that returns sequences.

    The input's share of the gates is one product over all time steps, and so are the gradients of
    the weights. Keras' loop sums a small product per step (Hochreiter & Schmidhuber 1997; gates in
    Keras' order: input, forget, candidate, output).
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.supports_masking = True

    def build(self, input_shape):
        """Creates `kernel`, `recurrent_kernel` and `bias`, with Keras' initializers."""
        self.kernel, self.recurrent_kernel, self.bias = _add_lstm_weights(
            self, input_shape[-1], self.units
        )
        self.built = True

    def call(self, inputs, mask=None, training=None):
        """Maps (batch, time, size) and a bool mask (batch, time) to (batch, time, units).

        Where the mask is False, state and output are those of the step before. With `training`
        False no states are stored for a gradient; TensorFlow can still compute it.
        """
        if mask is None:
            mask = tf.ones(tf.shape(inputs)[:2], tf.bool)
        # Time first: each step then reads and writes a block of memory.
        is_real = tf.transpose(mask)[..., tf.newaxis]
        sequence = _swap(inputs)
        weights = (self.kernel, self.recurrent_kernel, self.bias)
        kernel, recurrent_kernel, bias = map(tf.convert_to_tensor, weights)
        run = _predict if training is False else _run
        return _swap(run(sequence, kernel, recurrent_kernel, bias, is_real))


class BidirectionalEnds(keras.layers.Layer):
    """The last states of a forward and a backward LSTM, as of Keras' `Bidirectional(LSTM)`.

    Both run in one loop, so that small LSTMs take half as many operations.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        """Creates a `kernel`, a `recurrent_kernel` and a `bias` for each direction."""
        self._directions = [
            _add_lstm_weights(self, input_shape[-1], self.units, prefix=f"{direction}_")
            for direction in ("forward", "backward")
        ]
        self.built = True

    def call(self, inputs, mask=None, training=None):
        """Maps (batch, time, size) and a mask whose padding comes last to (batch, 2 * units)."""
        if mask is None:
            mask = tf.ones(tf.shape(inputs)[:2], tf.bool)
        lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        both = tf.stack([inputs, tf.reverse_sequence(inputs, lengths, seq_axis=1)])
        kernel, recurrent_kernel, bias = (tf.stack(pair) for pair in zip(*self._directions))
        run = _predict if training is False else _run
        outputs = run(
            tf.transpose(both, [2, 0, 1, 3]),
            kernel,
            recurrent_kernel,
            bias[:, tf.newaxis],
            tf.transpose(mask)[:, tf.newaxis, :, tf.newaxis],
        )
        # Places after a sequence's end repeat its last state.
        return tf.concat(tf.unstack(outputs[-1], num=2), axis=-1)


def _add_lstm_weights(layer, size, units, *, prefix=""):
    """Adds the weights of an LSTM to a layer, with Keras' initializers."""
    return (
        layer.add_weight(f"{prefix}kernel", [size, 4 * units], initializer="glorot_uniform"),
        layer.add_weight(f"{prefix}recurrent_kernel", [units, 4 * units], initializer="orthogonal"),
        layer.add_weight(f"{prefix}bias", [4 * units], initializer=_unit_forget_bias),
    )


def _unit_forget_bias(shape, dtype=None, **kwargs):
    del kwargs
    units = shape[0] // 4
    return tf.concat([tf.zeros(units), tf.ones(units), tf.zeros(2 * units)], 0)


def _begin(sequence, kernel, recurrent_kernel, bias):
    """Returns the number of steps, the input's share of all their gates, and the first states."""
    steps = tf.shape(sequence)[0]
    share = tf.matmul(_steps_as_rows(sequence), kernel) + bias
    batch = [*sequence.shape[1:-2], tf.shape(sequence)[-2]]
    return steps, _rows_as_steps(share, steps), tf.zeros([*batch, recurrent_kernel.shape[-2]])


def _steps_as_rows(sequence):
    """Reshapes (time, ..., batch, size) to (..., time * batch, size), for one product."""
    inner = sequence.shape.rank - 3
    order = [*range(1, 1 + inner), 0, 1 + inner, 2 + inner]
    rows = tf.transpose(sequence, order) if inner else sequence
    return tf.reshape(rows, [*sequence.shape[1 : 1 + inner], -1, sequence.shape[-1]])


def _rows_as_steps(rows, steps):
    """Reshapes (..., time * batch, size) to (time, ..., batch, size)."""
    inner = rows.shape.rank - 2
    apart = tf.reshape(rows, [*rows.shape[:inner], steps, -1, rows.shape[-1]])
    return tf.transpose(apart, [inner, *range(inner), inner + 1, inner + 2]) if inner else apart


def _advance(pre, cell):
    """Returns the next hidden state and cell from gates before activation, (..., 4 * units)."""
    let_in, keep, candidate, let_out = _gates(pre)
    cell = keep * cell + let_in * candidate
    return let_out * tf.tanh(cell), cell


def _gates(pre):
    let_in, keep, candidate, let_out = tf.split(pre, 4, axis=-1)
    return tf.sigmoid(let_in), tf.sigmoid(keep), tf.tanh(candidate), tf.sigmoid(let_out)


@tf.autograph.experimental.do_not_convert  # Nothing here branches on tensors.
def _predict(sequence, kernel, recurrent_kernel, bias, is_real):
    """Runs the recurrence over (time, ..., batch, size) with a mask (time, ..., batch, 1)."""
    steps, from_input, zeros = _begin(sequence, kernel, recurrent_kernel, bias)

    def advance(step, hidden, cell, outputs):
        pre = from_input[step] + tf.matmul(hidden, recurrent_kernel)
        new_hidden, new_cell = _advance(pre, cell)
        hidden = tf.where(is_real[step], new_hidden, hidden)
        cell = tf.where(is_real[step], new_cell, cell)
        return step + 1, hidden, cell, outputs.write(step, hidden)

    outputs = tf.TensorArray(tf.float32, steps, element_shape=zeros.shape)
    *_, outputs = tf.while_loop(
        lambda step, *_: step < steps, advance, (0, zeros, zeros, outputs), parallel_iterations=1
    )
    return outputs.stack()


@tf.autograph.experimental.do_not_convert
def _run(sequence, kernel, recurrent_kernel, bias, is_real):
    """Runs the recurrence, and stores the states and gates of all steps for the gradient.

    The number of operations limits the speed of small steps: values that do not depend on the step
    before are computed for all steps at once.
    """

    @custom_gradient
    def recurrence(sequence, kernel, recurrent_kernel, bias):
        steps, from_input, zeros = _begin(sequence, kernel, recurrent_kernel, bias)
        units = zeros.shape[-1]

        def array(width):
            return tf.TensorArray(tf.float32, steps, element_shape=[*zeros.shape[:-1], width])

        def advance(step, hidden, cell, hiddens, cells, pres):
            pre = from_input[step] + tf.matmul(hidden, recurrent_kernel)
            new_hidden, new_cell = _advance(pre, cell)
            real = is_real[step]
            hidden, cell = tf.where(real, new_hidden, hidden), tf.where(real, new_cell, cell)
            hiddens, cells = hiddens.write(step, hidden), cells.write(step, cell)
            return step + 1, hidden, cell, hiddens, cells, pres.write(step, pre)

        *_, hiddens, cells, pres = tf.while_loop(
            lambda step, *_: step < steps,
            advance,
            (0, zeros, zeros, array(units), array(units), array(4 * units)),
            parallel_iterations=1,
        )
        outputs = hiddens.stack()

        def gradient(d_outputs):
            new_cells = cells.stack()
            old_cells = tf.concat([zeros[tf.newaxis], new_cells[:-1]], 0)
            slopes, by_hidden, kept = _slopes(pres.stack(), old_cells, new_cells, is_real)
            is_padding = 1.0 - tf.cast(is_real, tf.float32)

            def retreat(step, d_hidden, d_cell, d_gates):
                d_hidden += d_outputs[step]
                d_cell += d_hidden * by_hidden[step]
                d_pre = tf.concat([d_cell, d_cell, d_cell, d_hidden], -1) * slopes[step]
                back = tf.matmul(d_pre, recurrent_kernel, transpose_b=True)
                d_hidden = d_hidden * is_padding[step] + back
                return step - 1, d_hidden, d_cell * kept[step], d_gates.write(step, d_pre)

            *_, d_gates = tf.while_loop(
                lambda step, *_: step >= 0,
                retreat,
                (steps - 1, zeros, zeros, array(4 * units)),
                parallel_iterations=1,
            )
            d_pres = d_gates.stack()
            d_pre = _steps_as_rows(d_pres)
            # The first step's state before it is zero.
            before, after = _steps_as_rows(outputs[:-1]), _steps_as_rows(d_pres[1:])
            return (
                _rows_as_steps(tf.matmul(d_pre, kernel, transpose_b=True), steps),
                tf.matmul(_steps_as_rows(sequence), d_pre, transpose_a=True),
                tf.matmul(before, after, transpose_a=True),
                tf.reduce_sum(d_pre, -2, keepdims=bias.shape.rank > 1),
            )

        return outputs, gradient

    return recurrence(sequence, kernel, recurrent_kernel, bias)


def _slopes(pres, old_cells, new_cells, is_real):
    """Returns derivatives for all steps.

    Returns:
        The derivatives of a step's new cell by its first three gates, and of its hidden state by
        the last gate, before activation; of its hidden state by its new cell; and of its new cell
        by the old one. For padding, these are 0, 0 and 1.
    """
    let_in, keep, candidate, let_out = _gates(pres)
    activated = tf.tanh(new_cells)
    slopes = tf.concat(
        [
            candidate * let_in * (1.0 - let_in),
            old_cells * keep * (1.0 - keep),
            let_in * (1.0 - candidate * candidate),
            activated * let_out * (1.0 - let_out),
        ],
        -1,
    )
    by_hidden = let_out * (1.0 - activated * activated)
    return (
        tf.where(is_real, slopes, 0.0),
        tf.where(is_real, by_hidden, 0.0),
        tf.where(is_real, keep, 1.0),
    )


@tf.autograph.experimental.do_not_convert
def _swap(tensor):
    """Transposes (a, b, size) to (b, a, size), row by row.

    TensorFlow's transpose of floats has an overhead of a quarter of a millisecond.
    """

    def swapped(tensor):
        shape = tf.shape(tensor)
        places = tf.transpose(tf.reshape(tf.range(shape[0] * shape[1]), shape[:2]))
        rows = tf.gather(tf.reshape(tensor, [-1, tensor.shape[-1]]), places)
        return tf.ensure_shape(rows, [tensor.shape[1], tensor.shape[0], tensor.shape[2]])

    return custom_gradient(lambda tensor: (swapped(tensor), swapped))(tensor)


PAD = 0


class JoinedEmbeddings(keras.layers.Layer):
    """The embedding of each token, from one of two tables; padding is zero and masked.

    One table is for in-vocabulary tokens, the other for out-of-vocabulary buckets.
    """

    def __init__(self, num_known: int, **kwargs):
        super().__init__(**kwargs)
        self._num_known = num_known

    def call(self, inputs):
        """Maps tokens (batch, time) and two embeddings (batch, time, size) to one."""
        token, in_vocabulary, out_of_vocabulary = inputs
        is_known = (token < self._num_known) & tf.not_equal(token, PAD)
        is_other = token >= self._num_known

        def only(condition, vectors):
            return vectors * tf.cast(condition, vectors.dtype)[..., tf.newaxis]

        return only(is_known, in_vocabulary) + only(is_other, out_of_vocabulary)

    def compute_mask(self, inputs, mask=None):
        """Returns where tokens are no padding, bool (batch, time)."""
        del mask
        return tf.not_equal(inputs[0], PAD)


def next_word_lstm(
    *,
    num_known: int,
    num_oov_buckets: int,
    embedding_dim: int = 96,
    lstm_units: int = 670,
    projection_dim: int = 96,
    recurrent_layer: Callable[..., keras.layers.Layer] = LSTM,
    oov_initializer: str | keras.initializers.Initializer = "uniform",
) -> Callable[[], keras.Model]:
    """Returns a builder of an LSTM language model as a Keras model.

    Its inputs are int32 (batch, time): `token`, and each token's row in the two embeddings,
    `known_token` and `oov_token`, as `fedpersonal.suite.readers.vocabulary` makes them. Layers:
    `known_embedding`, `oov_embedding` (the local one of federated reconstruction), `lstm`,
    `projection` and `logits`. The outputs are logits (batch, time, num_known + num_oov_buckets).

    Args:
        num_known: Number of ids in the vocabulary: special tokens and words.
        num_oov_buckets: Number of buckets of out-of-vocabulary words; their ids follow.
        embedding_dim: Size of an embedding.
        lstm_units: Units of the LSTM.
        projection_dim: Size of the projection before the softmax.
        recurrent_layer: Builds the LSTM from `units` and `name`.
        oov_initializer: Initializer of `oov_embedding`.
    """

    def build() -> keras.Model:
        inputs = {
            name: keras.Input([None], dtype=tf.int32, name=name)
            for name in ("token", "known_token", "oov_token")
        }
        vocabulary = keras.layers.Embedding(num_known, embedding_dim, name="known_embedding")
        buckets = keras.layers.Embedding(
            num_oov_buckets, embedding_dim, oov_initializer, name="oov_embedding"
        )
        hidden = JoinedEmbeddings(num_known, name="embedding")(
            [inputs["token"], vocabulary(inputs["known_token"]), buckets(inputs["oov_token"])]
        )
        hidden = recurrent_layer(lstm_units, name="lstm")(hidden)
        hidden = keras.layers.Dense(projection_dim, name="projection")(hidden)
        logits = keras.layers.Dense(num_known + num_oov_buckets, name="logits")(hidden)
        return keras.Model(inputs, logits)

    return build
