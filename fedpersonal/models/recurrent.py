"""A recurrent layer whose weight gradients are one matrix product."""

from __future__ import annotations

import tensorflow as tf


class LSTM(tf.keras.layers.Layer):
    """Keras' LSTM that returns sequences: the same weights, outputs and gradients, in less time.

    The input's share of the gates is one product over all time steps, and so are the gradients of
    the weights, where Keras' loop adds up one small product a step (Hochreiter & Schmidhuber 1997;
    gates in Keras' order: input, forget, candidate, output).
    """

    def __init__(self, units: int, **kwargs):
        """Takes the number of units."""
        super().__init__(**kwargs)
        self.units = units
        self.supports_masking = True

    def build(self, input_shape):
        """Creates `kernel`, `recurrent_kernel` and `bias`, with Keras' initializers."""
        units = self.units
        self.kernel = self.add_weight(
            "kernel", [input_shape[-1], 4 * units], initializer="glorot_uniform"
        )
        self.recurrent_kernel = self.add_weight(
            "recurrent_kernel", [units, 4 * units], initializer="orthogonal"
        )
        self.bias = self.add_weight("bias", [4 * units], initializer=_unit_forget_bias)
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
        run = _predict if training is False else _run
        outputs = run(
            sequence,
            tf.convert_to_tensor(self.kernel),
            tf.convert_to_tensor(self.recurrent_kernel),
            tf.convert_to_tensor(self.bias),
            is_real,
        )
        return tf.transpose(outputs, [1, 0, 2])


def _unit_forget_bias(shape, dtype=None, **kwargs):
    del kwargs
    units = shape[0] // 4
    return tf.concat([tf.zeros(units), tf.ones(units), tf.zeros(2 * units)], 0)


def _input_share(sequence, kernel, bias):
    """Returns the input's share of all gates at all steps: (time, batch, 4 * units)."""
    flat = tf.matmul(tf.reshape(sequence, [-1, sequence.shape[2]]), kernel) + bias
    return tf.reshape(flat, [*tf.unstack(tf.shape(sequence)[:2]), flat.shape[1]])


def _open_gates(from_input, hidden, recurrent_kernel):
    """Returns the four gates of a step, each (batch, units)."""
    pre = from_input + tf.matmul(hidden, recurrent_kernel)
    let_in, keep, candidate, let_out = tf.split(pre, 4, axis=1)
    return tf.sigmoid(let_in), tf.sigmoid(keep), tf.tanh(candidate), tf.sigmoid(let_out)


def _predict(sequence, kernel, recurrent_kernel, bias, is_real):
    """Runs the recurrence over (time, batch, size); `is_real` is bool (time, batch, 1)."""
    units, steps = recurrent_kernel.shape[0], tf.shape(sequence)[0]
    from_input = _input_share(sequence, kernel, bias)
    zeros = tf.zeros([tf.shape(sequence)[1], units])

    def advance(step, hidden, cell, outputs):
        let_in, keep, candidate, let_out = _open_gates(from_input[step], hidden, recurrent_kernel)
        new_cell = keep * cell + let_in * candidate
        hidden = tf.where(is_real[step], let_out * tf.tanh(new_cell), hidden)
        cell = tf.where(is_real[step], new_cell, cell)
        return step + 1, hidden, cell, outputs.write(step, hidden)

    outputs = tf.TensorArray(tf.float32, steps, element_shape=[None, units])
    *_, outputs = tf.while_loop(
        lambda step, *_: step < steps, advance, (0, zeros, zeros, outputs), parallel_iterations=1
    )
    return outputs.stack()


def _run(sequence, kernel, recurrent_kernel, bias, is_real):
    """Does the same, and keeps the states and gates of all steps for the gradient."""
    size, units = sequence.shape[2], recurrent_kernel.shape[0]

    @tf.custom_gradient
    def recurrence(sequence, kernel, recurrent_kernel, bias):
        steps, batch = tf.shape(sequence)[0], tf.shape(sequence)[1]
        from_input = _input_share(sequence, kernel, bias)
        zeros = tf.zeros([batch, units])

        def array(width):
            return tf.TensorArray(tf.float32, steps, element_shape=[None, width])

        def advance(step, hidden, cell, hiddens, cells, gates):
            hiddens, cells = hiddens.write(step, hidden), cells.write(step, cell)
            opened = _open_gates(from_input[step], hidden, recurrent_kernel)
            gates = gates.write(step, tf.concat(opened, 1))
            let_in, keep, candidate, let_out = opened
            new_cell = keep * cell + let_in * candidate
            new_hidden = let_out * tf.tanh(new_cell)
            cell = tf.where(is_real[step], new_cell, cell)
            hidden = tf.where(is_real[step], new_hidden, hidden)
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
                let_in, keep, candidate, let_out = tf.split(gates[step], 4, axis=1)
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
                    1,
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
            d_pre = tf.reshape(d_gates.stack(), [-1, 4 * units])
            flat, before = tf.reshape(sequence, [-1, size]), tf.reshape(hiddens, [-1, units])
            return (
                tf.reshape(tf.matmul(d_pre, kernel, transpose_b=True), tf.shape(sequence)),
                tf.matmul(flat, d_pre, transpose_a=True),
                tf.matmul(before, d_pre, transpose_a=True),
                tf.reduce_sum(d_pre, 0),
            )

        return outputs, gradient

    return recurrence(sequence, kernel, recurrent_kernel, bias)
