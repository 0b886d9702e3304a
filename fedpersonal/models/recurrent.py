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

    def call(self, inputs, mask=None):
        """Maps (batch, time, size) and a bool mask (batch, time) to (batch, time, units).

        Where the mask is False, state and output are those of the step before.
        """
        if mask is None:
            mask = tf.ones(tf.shape(inputs)[:2], tf.bool)
        # Time first: each step then reads and writes a block of memory.
        is_real = tf.transpose(mask)[..., tf.newaxis]
        sequence = tf.transpose(inputs, [1, 0, 2])
        outputs = _run(
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


def _run(sequence, kernel, recurrent_kernel, bias, is_real):
    """Runs the recurrence over (time, batch, size); `is_real` is bool (time, batch, 1)."""
    size, units = sequence.shape[2], recurrent_kernel.shape[0]

    @tf.custom_gradient
    def recurrence(sequence, kernel, recurrent_kernel, bias):
        steps, batch = tf.shape(sequence)[0], tf.shape(sequence)[1]
        flat = tf.reshape(sequence, [-1, size])
        from_input = tf.reshape(tf.matmul(flat, kernel) + bias, [steps, batch, 4 * units])
        zeros = tf.zeros([batch, units])

        def array(width):
            return tf.TensorArray(tf.float32, steps, element_shape=[None, width])

        def advance(step, hidden, cell, hiddens, cells, gates):
            hiddens, cells = hiddens.write(step, hidden), cells.write(step, cell)
            pre = from_input[step] + tf.matmul(hidden, recurrent_kernel)
            let_in, keep, candidate, let_out = tf.split(pre, 4, axis=1)
            let_in, keep, let_out = map(tf.sigmoid, (let_in, keep, let_out))
            candidate = tf.tanh(candidate)
            gates = gates.write(step, tf.concat([let_in, keep, candidate, let_out], 1))
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
            before = tf.reshape(hiddens, [-1, units])
            return (
                tf.reshape(tf.matmul(d_pre, kernel, transpose_b=True), tf.shape(sequence)),
                tf.matmul(flat, d_pre, transpose_a=True),
                tf.matmul(before, d_pre, transpose_a=True),
                tf.reduce_sum(d_pre, 0),
            )

        return outputs, gradient

    return recurrence(sequence, kernel, recurrent_kernel, bias)
