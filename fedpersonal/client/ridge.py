"""Exact reconstruction of local variables, for models linear in them.

With the global variables frozen, such a model predicts `A l + b` on a client's examples. The local
variables that minimise `|A l + b - y|^2 + l2 |l|^2` then have a closed form, which takes the place
of the paper's gradient steps (Singhal et al., section 4 leaves the algorithm R open).
"""

from __future__ import annotations

import functools

import tensorflow as tf

from fedpersonal.client.values import ClientValues, Examples
from fedpersonal.methods.phases import RidgePhase
from fedpersonal.model.lookups import count_ids, fetch_rows, random_values
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel, Values


def solve_local_values(
    model: PartitionedModel,
    phase: RidgePhase,
    values: ClientValues,
    examples: Examples,
    mask: tf.Tensor,
) -> Values:
    """Solves every client's least-squares problem; local values in `values` give shapes alone.

    The model's output must be one number an example and linear in its local variables
    (`check_linear`). `mask`, float32 (C, N, B), is 1 for the examples to fit.
    """
    clients = tf.shape(mask)[0]
    num_examples = tf.size(mask[0])
    solved = [v for v in model.local_variables if phase.moves(v)]
    local = {v.name: values.per_client[v.name] for v in solved}

    def flat(tensor: tf.Tensor) -> tf.Tensor:
        """Joins batches: (C, N, B, ...) to (C, N * B, ...)."""
        return tf.reshape(tensor, tf.concat([[clients, num_examples], tf.shape(tensor)[3:]], 0))

    def one_each(tensor: tf.Tensor) -> tf.Tensor:
        """Makes a batch of one of every example: (C, N, B, ...) to (C * N * B, 1, ...)."""
        return tf.reshape(tensor, tf.concat([[clients * num_examples, 1], tf.shape(tensor)[3:]], 0))

    def for_each_example(value: tf.Tensor) -> tf.Tensor:
        """Repeats clients' values for their examples: (C, ...) to (C * N * B, ...)."""
        return tf.repeat(value, num_examples, axis=0)

    features = {k: one_each(v) for k, v in examples.features.items()}
    counted = {k: v[0] for k, v in count_ids(model, features).items()}
    features = {k: v for k, v in features.items() if k not in counted}
    excluded = {*local, *model.tables, *model.ignored_locals}
    per_example = {
        k: for_each_example(v) for k, v in values.per_client.items() if k not in excluded
    }
    rows = fetch_rows(
        model,
        values.shared,
        values.per_client,
        {k: flat(v) for k, v in examples.features.items()},
        {k: flat(v) for k, v in examples.positions.items()},
    )
    for name, fetched in rows.items():
        shape = tf.concat([[clients * num_examples, -1], tf.shape(fetched)[2:]], 0)
        per_example[name] = tf.reshape(fetched, shape)
    shared = {k: v for k, v in values.shared.items() if k not in per_example}

    def example_output(element) -> tf.Tensor:
        example_values, local_values, inputs = element
        output, _ = model.predict(
            {**shared, **example_values, **local_values}, {**inputs, **counted}, training=False
        )
        return tf.squeeze(output)

    zeros = {k: tf.zeros_like(for_each_example(v)) for k, v in local.items()}
    with tf.GradientTape() as tape:
        tape.watch(zeros)
        offsets = tf.vectorized_map(example_output, (per_example, zeros, features))
    slopes = tape.gradient(offsets, zeros, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    sizes = [v.size for v in solved]
    flat_slopes = [tf.reshape(slopes[v.name], [clients, num_examples, v.size]) for v in solved]
    design = tf.concat(flat_slopes, axis=-1)
    # Not a product with the mask: the prediction for padding may be anything, even NaN.
    fitted = tf.reshape(mask, [clients, num_examples, 1]) > 0
    design = tf.where(fitted, design, 0.0)
    labels, offsets = (tf.reshape(t, tf.shape(fitted)) for t in (examples.labels, offsets))
    residuals = tf.where(fitted, labels - offsets, 0.0)
    bias_l2 = phase.l2 if phase.bias_l2 is None else phase.bias_l2
    penalty = tf.concat(
        [tf.fill([size], float(bias_l2 if size == 1 else phase.l2)) for size in sizes], axis=0
    )
    normal = tf.matmul(design, design, transpose_a=True) + tf.linalg.diag(penalty)
    moments = tf.matmul(design, residuals, transpose_a=True)
    lower = tf.linalg.cholesky(normal)
    halfway = _substitute(lower, moments[..., 0])
    solution = _substitute(tf.linalg.matrix_transpose(lower), halfway, backwards=True)
    parts = tf.split(solution, sizes, axis=-1)
    return {
        v.name: tf.reshape(part, tf.concat([[clients], v.shape], 0))
        for v, part in zip(solved, parts)
    }


def _substitute(matrices: tf.Tensor, right: tf.Tensor, *, backwards: bool = False) -> tf.Tensor:
    """Solves triangular systems (C, n, n) for (C, n), row by row.

    XLA unrolls `tf.linalg.triangular_solve` if n < 32, which takes half a second to compile.
    """
    count = matrices.shape[-1]

    def solve_row(step: tf.Tensor, solution: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        i = count - 1 - step if backwards else step
        row, value = matrices[:, i], right[:, i]
        value = (value - tf.reduce_sum(row * solution, -1)) / row[:, i]
        return step + 1, solution + tf.one_hot(i, count) * value[:, tf.newaxis]

    rows = (tf.constant(0), tf.zeros_like(right))
    return tf.while_loop(lambda step, _: step < count, solve_row, rows)[1]


@functools.lru_cache(maxsize=8)  # Building a model is slow, and each evaluation calls this.
def check_linear(model: PartitionedModel) -> None:
    """Checks numerically that one example's output is a number, linear in the local variables.

    Raises:
        ValueError: If the output is not so, or there is no local variable to solve for.
    """
    if not model.local_variables:
        raise ValueError("ridge reconstruction needs local variables; the model has none.")
    local_tables = sorted(set(model.tables) - set(model.global_tables))
    if local_tables:
        raise ValueError(f"ridge reconstruction cannot solve for local lookups {local_tables}.")

    @tf.function(autograph=False)
    def second_differences():
        values, others, features = random_values(model), random_values(model, seed=1), {}
        for name, spec in model.input_spec.items():
            shape = [1] + [d or 1 for d in spec.shape[1:]]
            features[name] = tf.zeros(shape, spec.dtype)
            if spec.dtype.is_floating:
                # Zeros would hide the factors that the local variables are multiplied with.
                features[name] = tf.random.stateless_normal(shape, [0, 0], dtype=spec.dtype)

        number = tf.TensorSpec([], tf.float32)

        @tf.function(autograph=False, input_signature=[number, number])  # The model is built once.
        def output(first, second):
            local = {
                v.name: first * values[v.name] + second * others[v.name]
                for v in model.local_variables
            }
            return model.predict({**values, **local}, features, training=False)[0]

        origin, corner = output(0.0, 0.0), output(1.0, 0.0)
        # The first misses one side of a kink, such as relu's; the second misses odd functions.
        additive = output(1.0, 1.0) - corner - output(0.0, 1.0) + origin
        symmetric = corner + output(-1.0, 0.0) - 2.0 * origin
        return tf.stack([additive, symmetric]), tf.stack([origin, corner])

    differences, outputs = (t.numpy() for t in second_differences())
    if outputs[0].size != 1:
        raise ValueError(
            "ridge reconstruction needs one output an example; the model's output for one example "
            f"has shape {outputs[0].shape}."
        )
    if abs(differences).max() > 1e-4 * (1.0 + abs(outputs).max()):
        raise ValueError(
            "ridge reconstruction needs a model that is linear in its local variables "
            f"{[v.name for v in model.local_variables]}; this one is not. Use gradient "
            "reconstruction."
        )
    if find_mixing(model, training=False).rows:
        raise ValueError(
            "ridge reconstruction solves example by example, but this model's output for an "
            "example depends on the others of its batch. Use gradient reconstruction."
        )
