"""Recurrent layers whose weight gradients are one matrix product.

Below the layers everything may have further axes before the batch, (time, ..., batch, size) and
(..., size, units): recurrences that share nothing but their loop, such as two directions.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fedpersonal.model.keras import keras
from fedpersonal.models.tokens import custom_gradient


class LSTM(keras.layers.Layer):
    """Keras' LSTM that returns sequences: the same weights, outputs and gradients, in less time.

    The input's share of the gates is one product over all time steps, and so are the gradients of
    the weights, where Keras' loop adds up one small product a step (Hochreiter & Schmidhuber 1997;
    gates in Keras' order: input, forget, candidate, output).
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
        False nothing is kept for a gradient, which can be taken all the same.
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
    """The last states of two LSTMs, of which one reads backward: Keras' `Bidirectional(LSTM)`.

    Both run in one loop, so that small ones take half the operations.
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
        # What follows a sequence's end repeats its last state.
        return tf.concat(tf.unstack(outputs[-1], num=2), axis=-1)


def _add_lstm_weights(layer, size, units, *, prefix=""):
    """Gives a layer the weights of an LSTM, with Keras' initializers."""
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
    """Turns (time, ..., batch, size) into (..., time * batch, size), for one product."""
    inner = sequence.shape.rank - 3
    order = [*range(1, 1 + inner), 0, 1 + inner, 2 + inner]
    rows = tf.transpose(sequence, order) if inner else sequence
    return tf.reshape(rows, [*sequence.shape[1 : 1 + inner], -1, sequence.shape[-1]])


def _rows_as_steps(rows, steps):
    """Turns (..., time * batch, size) into (time, ..., batch, size)."""
    inner = rows.shape.rank - 2
    apart = tf.reshape(rows, [*rows.shape[:inner], steps, -1, rows.shape[-1]])
    return tf.transpose(apart, [inner, *range(inner), inner + 1, inner + 2]) if inner else apart


def _advance(pre, cell):
    """Returns the next hidden state and cell of gates before their squashing, (..., 4 * units)."""
    let_in, keep, candidate, let_out = _gates(pre)
    cell = keep * cell + let_in * candidate
    return let_out * tf.tanh(cell), cell


def _gates(pre):
    let_in, keep, candidate, let_out = tf.split(pre, 4, axis=-1)
    return tf.sigmoid(let_in), tf.sigmoid(keep), tf.tanh(candidate), tf.sigmoid(let_out)


@tf.autograph.experimental.do_not_convert  # Nothing here branches on tensors.
def _predict(sequence, kernel, recurrent_kernel, bias, is_real):
    """Runs the recurrence over (time, ..., batch, size), a mask (time, ..., batch, 1) beside it."""
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
    """Does the same, and keeps the states and gates of all steps for the gradient.

    Small steps are bound by their number of operations: what does not depend on the step before is
    computed of all steps at once.
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
    """Returns how all steps' gates and cells depend on what is before them.

    Returns:
        The slopes of a step's new cell, three times, and of its hidden state, as the last, in its
        gates before their squashing; of its hidden state in its new cell; and of its new cell in
        the old one. Where a step is none, these are 0, 0 and 1.
    """
    let_in, keep, candidate, let_out = _gates(pres)
    squashed = tf.tanh(new_cells)
    slopes = tf.concat(
        [
            candidate * let_in * (1.0 - let_in),
            old_cells * keep * (1.0 - keep),
            let_in * (1.0 - candidate * candidate),
            squashed * let_out * (1.0 - let_out),
        ],
        -1,
    )
    by_hidden = let_out * (1.0 - squashed * squashed)
    return (
        tf.where(is_real, slopes, 0.0),
        tf.where(is_real, by_hidden, 0.0),
        tf.where(is_real, keep, 1.0),
    )


@tf.autograph.experimental.do_not_convert
def _swap(tensor):
    """Turns (a, b, size) into (b, a, size), row by row.

    TensorFlow's own transpose of floats takes a quarter of a millisecond to begin.
    """

    def swapped(tensor):
        shape = tf.shape(tensor)
        places = tf.transpose(tf.reshape(tf.range(shape[0] * shape[1]), shape[:2]))
        rows = tf.gather(tf.reshape(tensor, [-1, tensor.shape[-1]]), places)
        return tf.ensure_shape(rows, [tensor.shape[1], tensor.shape[0], tensor.shape[2]])

    return custom_gradient(lambda tensor: (swapped(tensor), swapped))(tensor)


PAD = 0


class JoinedEmbeddings(keras.layers.Layer):
    """The sum of two embeddings, each of its own tokens alone; padding is zero and masked."""

    def __init__(self, num_known: int, **kwargs):
        super().__init__(**kwargs)
        self._num_known = num_known

    def call(self, inputs):
        """Maps tokens (batch, time) and two embeddings (batch, time, size) to one."""
        token, known, out_of_vocabulary = inputs
        is_known = (token < self._num_known) & tf.not_equal(token, PAD)
        is_other = token >= self._num_known

        def only(condition, vectors):
            return vectors * tf.cast(condition, vectors.dtype)[..., tf.newaxis]

        return only(is_known, known) + only(is_other, out_of_vocabulary)

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

    Its inputs are int32 (batch, time): `token`, and where each token stands in the two embeddings,
    `known_token` and `oov_token`, as `fedpersonal.data.vocabulary` makes them. Layers:
    `known_embedding`, `oov_embedding` (the local one of federated reconstruction), `lstm`,
    `projection` and `logits`. The output are logits (batch, time, num_known + num_oov_buckets).

    Args:
        num_known: Ids that are no bucket: special tokens and the vocabulary.
        num_oov_buckets: Buckets of all other words; their ids follow.
        embedding_dim: Size of an embedding.
        lstm_units: Units of the LSTM.
        projection_dim: Size of the projection before the softmax.
        recurrent_layer: Builds the LSTM from `units` and `name`.
        oov_initializer: That of `oov_embedding`.
    """

    def build() -> keras.Model:
        inputs = {
            name: keras.Input([None], dtype=tf.int32, name=name)
            for name in ("token", "known_token", "oov_token")
        }
        known = keras.layers.Embedding(num_known, embedding_dim, name="known_embedding")
        other = keras.layers.Embedding(
            num_oov_buckets, embedding_dim, oov_initializer, name="oov_embedding"
        )
        hidden = JoinedEmbeddings(num_known, name="embedding")(
            [inputs["token"], known(inputs["known_token"]), other(inputs["oov_token"])]
        )
        hidden = recurrent_layer(lstm_units, name="lstm")(hidden)
        hidden = keras.layers.Dense(projection_dim, name="projection")(hidden)
        logits = keras.layers.Dense(num_known + num_oov_buckets, name="logits")(hidden)
        return keras.Model(inputs, logits)

    return build
