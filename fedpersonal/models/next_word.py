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
        sequence = tf.transpose(inputs, [1, 0, 2])
        weights = (self.kernel, self.recurrent_kernel, self.bias)
        kernel, recurrent_kernel, bias = map(tf.convert_to_tensor, weights)
        run = _predict if training is False else _run
        return tf.transpose(run(sequence, kernel, recurrent_kernel, bias, is_real), [1, 0, 2])


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


def _advance(from_input, hidden, cell, recurrent_kernel, is_real):
    """Returns the next states and the four gates of a step, each (..., batch, units)."""
    pre = from_input + tf.matmul(hidden, recurrent_kernel)
    let_in, keep, candidate, let_out = tf.split(pre, 4, axis=-1)
    gates = tf.sigmoid(let_in), tf.sigmoid(keep), tf.tanh(candidate), tf.sigmoid(let_out)
    let_in, keep, candidate, let_out = gates
    new_cell = keep * cell + let_in * candidate
    new_hidden = let_out * tf.tanh(new_cell)
    return tf.where(is_real, new_hidden, hidden), tf.where(is_real, new_cell, cell), gates


@tf.autograph.experimental.do_not_convert  # Nothing here branches on tensors.
def _predict(sequence, kernel, recurrent_kernel, bias, is_real):
    """Runs the recurrence over (time, ..., batch, size), a mask (time, ..., batch, 1) beside it."""
    steps, from_input, zeros = _begin(sequence, kernel, recurrent_kernel, bias)

    def advance(step, hidden, cell, outputs):
        hidden, cell, _ = _advance(from_input[step], hidden, cell, recurrent_kernel, is_real[step])
        return step + 1, hidden, cell, outputs.write(step, hidden)

    outputs = tf.TensorArray(tf.float32, steps, element_shape=zeros.shape)
    *_, outputs = tf.while_loop(
        lambda step, *_: step < steps, advance, (0, zeros, zeros, outputs), parallel_iterations=1
    )
    return outputs.stack()


@tf.autograph.experimental.do_not_convert
def _run(sequence, kernel, recurrent_kernel, bias, is_real):
    """Does the same, and keeps the states and gates of all steps for the gradient."""

    @custom_gradient
    def recurrence(sequence, kernel, recurrent_kernel, bias):
        steps, from_input, zeros = _begin(sequence, kernel, recurrent_kernel, bias)
        units = zeros.shape[-1]

        def array(width):
            return tf.TensorArray(tf.float32, steps, element_shape=[*zeros.shape[:-1], width])

        def advance(step, hidden, cell, hiddens, cells, gates):
            hiddens, cells = hiddens.write(step, hidden), cells.write(step, cell)
            hidden, cell, opened = _advance(
                from_input[step], hidden, cell, recurrent_kernel, is_real[step]
            )
            gates = gates.write(step, tf.concat(opened, -1))
            return step + 1, hidden, cell, hiddens, cells, gates

        _, hidden, cell, *arrays = tf.while_loop(
            lambda step, *_: step < steps,
            advance,
            (0, zeros, zeros, array(units), array(units), array(4 * units)),
            parallel_iterations=1,
        )
        # Of each step the states before it, and its gates.
        hiddens, cells, gates = (a.stack() for a in arrays)
        outputs = tf.concat([hiddens[1:], hidden[tf.newaxis]], 0)
        new_cells = tf.concat([cells[1:], cell[tf.newaxis]], 0)

        def gradient(d_outputs):
            def retreat(step, d_hidden, d_cell, d_gates):
                let_in, keep, candidate, let_out = tf.split(gates[step], 4, axis=-1)
                real = is_real[step]
                d_hidden += d_outputs[step]
                d_new_hidden = tf.where(real, d_hidden, 0.0)
                squashed = tf.tanh(new_cells[step])
                d_new_cell = tf.where(real, d_cell, 0.0) + d_new_hidden * let_out * (
                    1.0 - squashed * squashed
                )
                d_pre = tf.concat(
                    [
                        d_new_cell * candidate * let_in * (1.0 - let_in),
                        d_new_cell * cells[step] * keep * (1.0 - keep),
                        d_new_cell * let_in * (1.0 - candidate * candidate),
                        d_new_hidden * squashed * let_out * (1.0 - let_out),
                    ],
                    -1,
                )
                d_hidden = tf.where(real, 0.0, d_hidden) + tf.matmul(
                    d_pre, recurrent_kernel, transpose_b=True
                )
                d_cell = tf.where(real, 0.0, d_cell) + d_new_cell * keep
                return step - 1, d_hidden, d_cell, d_gates.write(step, d_pre)

            *_, d_gates = tf.while_loop(
                lambda step, *_: step >= 0,
                retreat,
                (steps - 1, zeros, zeros, array(4 * units)),
                parallel_iterations=1,
            )
            d_pre = _steps_as_rows(d_gates.stack())
            flat, before = _steps_as_rows(sequence), _steps_as_rows(hiddens)
            return (
                _rows_as_steps(tf.matmul(d_pre, kernel, transpose_b=True), steps),
                tf.matmul(flat, d_pre, transpose_a=True),
                tf.matmul(before, d_pre, transpose_a=True),
                tf.reduce_sum(d_pre, -2, keepdims=bias.shape.rank > 1),
            )

        return outputs, gradient

    return recurrence(sequence, kernel, recurrent_kernel, bias)


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
