"""One client's round as one pure TensorFlow function.

The function carries a leading client axis throughout: clients stacked on it take their steps
together, and a single client is a stack of one. Where clients of different sizes meet, a step
beyond a client's last one leaves its variables and its optimizer's state alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.lookups import count_ids, fetch_rows
from fedpersonal.partition import PartitionedModel, Values
from fedpersonal.ridge import solve_local_values


class Examples(NamedTuple):
    """Padded examples of `C` clients: `N` batches of `B` examples each.

    Attributes:
        features: Input name to tensor of shape (C, N, B, ...).
        labels: Tensor of shape (C, N, B, ...).
        mask: float32 of shape (C, N, B): 1 for an example, 0 for padding, which comes last.
        rows: Lookup table's variable name to int32 (C, R): the rows that a client touches.
        positions: Likewise to int32 (C, N, B, ...): where in `rows` each id of the input stands.
    """

    features: dict[str, tf.Tensor]
    labels: tf.Tensor
    mask: tf.Tensor
    rows: dict[str, tf.Tensor]
    positions: dict[str, tf.Tensor]


class ClientValues(NamedTuple):
    """Values of a model's variables for a stack of clients.

    Attributes:
        shared: Variable name to the value that all clients start from.
        own: Variable name to values of shape (C, ...) where a client has one of its own; of a
            lookup table only its touched rows: (C, R, ...).
    """

    shared: Values
    own: Values


class ClientOutput(NamedTuple):
    """What a stack of clients hands to aggregation; no local variable is among it.

    Attributes:
        updates: Global variable's name to final - initial value, of shape (C, ...); of a lookup
            table, of its touched rows: (C, R, ...).
        weights: float32 (C,): weight in the average.
        num_examples: float32 (C,): examples processed in the last phase.
        metric_sums: Metric name, and `loss`, to float32 (C,): sums over those examples.
        dropped: float32 (C,): 1 where the update was not finite and was set to zero.
    """

    updates: Values
    weights: tf.Tensor
    num_examples: tf.Tensor
    metric_sums: dict[str, tf.Tensor]
    dropped: tf.Tensor


def over_clients(fn: Callable[[Any], Any], elements: Any) -> Any:
    """Applies `fn` to each client's slice of `elements` and stacks the results."""
    if tf.nest.flatten(elements)[0].shape[0] == 1:
        alone = tf.nest.map_structure(lambda t: tf.squeeze(t, 0), elements)
        return tf.nest.map_structure(lambda t: t[tf.newaxis], fn(alone))
    return tf.vectorized_map(fn, elements)


def train_clients(
    model: PartitionedModel,
    algorithm: Algorithm,
    global_values: Values,
    examples: Examples,
    seed: tf.Tensor,
) -> ClientOutput:
    """Runs all phases of an algorithm on a stack of clients (FedRecon, Algorithm 1, ClientUpdate).

    Args:
        model: The partitioned model.
        algorithm: The phases.
        global_values: Global variable's name to the value that the server broadcast.
        examples: The clients' examples.
        seed: int32 of shape (2,), from which local variables start.

    Returns:
        The clients' output.
    """
    values = starting_values(model, global_values, examples, seed)
    for phase in algorithm.phases[:-1]:
        values = run_phase(model, phase, values, examples)
    values, sums, num_examples = run_gradient_phase(
        model, algorithm.phases[-1], values, examples, with_metrics=True
    )
    start = own_copies(model, global_values, examples)
    updates = {name: values.own.get(name, start[name]) - start[name] for name in start}
    finite = tf.reduce_all(
        [_all_finite(u) for u in updates.values()] + [tf.math.is_finite(sums["loss"])], axis=0
    )
    if algorithm.max_update_norm is not None:
        updates = _clip(updates, algorithm.max_update_norm)
    keep = tf.cast(finite, tf.float32)
    # A stack may be filled up with clients that do not exist.
    exists = tf.reduce_max(examples.mask, [1, 2])
    weights = num_examples if algorithm.weighting == "num_examples" else exists
    return ClientOutput(
        updates={k: _where_client(finite, u, tf.zeros_like(u)) for k, u in updates.items()},
        weights=weights * keep,
        num_examples=num_examples * keep,
        metric_sums={k: tf.where(finite, s, 0.0) for k, s in sums.items()},
        dropped=exists * (1.0 - keep),
    )


def starting_values(
    model: PartitionedModel, global_values: Values, examples: Examples, seed: tf.Tensor
) -> ClientValues:
    """Joins broadcast global values with fresh local ones, drawn by each client for itself.

    A client's draw depends on the seed and on its own examples, and so on nothing of how clients
    are executed.
    """
    if not model.local_variables:
        return ClientValues(dict(global_values), {})
    prints = _fingerprints(examples)
    seeds = tf.stack([prints + seed[0], tf.zeros_like(prints) + seed[1]], axis=-1)
    # Not over_clients: vectorised random draws do not exist.
    fresh = tf.map_fn(
        lambda own: model.initial_values(model.local_variables, own),
        seeds,
        fn_output_signature={
            v.name: tf.TensorSpec(v.shape, v.dtype) for v in model.local_variables
        },
    )
    fresh = {k: tf.ensure_shape(v, [seeds.shape[0], *v.shape[1:]]) for k, v in fresh.items()}
    return ClientValues(dict(global_values), fresh)


def _fingerprints(examples: Examples) -> tf.Tensor:
    """Returns an int32 for each client that follows from its examples, whatever their padding."""
    total = tf.zeros([_clients(examples)], tf.int32)
    mask = tf.cast(examples.mask, tf.int32)
    for column in tf.nest.flatten((examples.features, examples.labels)):
        is_word = column.dtype.size == 4
        bits = tf.bitcast(column, tf.int32) if is_word else tf.cast(column, tf.int32)
        real = tf.reshape(mask, tf.concat([tf.shape(mask), [1] * (bits.shape.rank - 3)], 0))
        total += tf.reduce_sum(bits * real, axis=list(range(1, bits.shape.rank)))
    return total


def own_copies(model: PartitionedModel, shared: Values, examples: Examples) -> Values:
    """Gives every client a copy of its own of shared values; of tables, of the rows it touches."""
    clients = _clients(examples)
    return {
        name: tf.gather(value, examples.rows[name])
        if name in model.tables
        else _tile(value, clients)
        for name, value in shared.items()
    }


def run_phase(model: PartitionedModel, phase, values: ClientValues, examples: Examples):
    """Runs one phase of either kind and returns the values after it."""
    if isinstance(phase, GradientPhase):
        return run_gradient_phase(model, phase, values, examples, with_metrics=False)[0]
    local = solve_local_values(model, phase, values, examples, phase_mask(phase.data, examples))
    return ClientValues(values.shared, {**values.own, **local})


def phase_mask(data: str, examples: Examples) -> tf.Tensor:
    """Returns the examples' mask with the batches outside of `data` masked out, (C, N, B)."""
    if data == "all":
        return examples.mask
    parity = tf.range(tf.shape(examples.mask)[1]) % 2
    chosen = tf.cast(parity == (0 if data == "support" else 1), tf.float32)
    return examples.mask * chosen[tf.newaxis, :, tf.newaxis]


def run_gradient_phase(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    examples: Examples,
    *,
    with_metrics: bool,
) -> tuple[ClientValues, dict[str, tf.Tensor], tf.Tensor]:
    """Runs the steps of a gradient phase.

    Args:
        model: The partitioned model.
        phase: The phase.
        values: The values before it.
        examples: The clients' examples.
        with_metrics: Whether to sum metrics, each batch taken before its step.

    Returns:
        The values after it, metric name to sums of shape (C,), and the number of examples
        processed, float32 (C,).
    """
    moving = {
        "global": [v.name for v in model.global_variables],
        "local": [v.name for v in model.local_variables],
        "all": [v.name for v in model.variables],
    }[phase.variables]
    lent = {k: v for k, v in values.shared.items() if k in moving and k not in values.own}
    own = {**values.own, **own_copies(model, lent, examples)}
    frozen = ClientValues(
        {k: v for k, v in values.shared.items() if k not in own},
        {k: v for k, v in own.items() if k not in moving},
    )
    moving_values = {name: own[name] for name in moving}
    optimizer = _ClientOptimizer(phase.optimizer, moving_values, model)
    batches, active = _schedule(phase, examples.mask)
    num_examples = tf.reduce_sum(
        tf.gather(tf.reduce_sum(examples.mask, -1), tf.transpose(batches), batch_dims=1)
        * tf.transpose(active),
        axis=1,
    )
    names = ["loss"] + [m.name for m in model.metrics] if with_metrics else []
    sums = {name: tf.zeros_like(num_examples) for name in names}

    def step_clients(step, moved, state, sums):
        current = ClientValues(frozen.shared, {**frozen.own, **moved})
        batch = take_batch(model, examples, batches[step], current)
        is_active = active[step]
        with tf.GradientTape() as tape:
            variables = {k: batch.minis.get(k, v) for k, v in moved.items()}
            tape.watch(variables)
            minis = {k: variables.get(k, v) for k, v in batch.minis.items()}
            dense = ClientValues(frozen.shared, {**frozen.own, **variables})
            outcome = predict_batch(model, dense, batch._replace(minis=minis), training=True)
            # Clients share no variable here, so the sum's gradient is each client's own.
            shares = (
                batch.mask * (is_active / tf.maximum(tf.reduce_sum(batch.mask, -1), 1.0))[:, None]
            )
            total = tf.reduce_sum(outcome.losses * shares)
        gradients = tape.gradient(
            total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        moved, state = optimizer.next(
            state, moved, variables, gradients, batch.positions, is_active
        )
        if with_metrics:
            batch_sums = batch_metric_sums(model, batch, outcome)
            sums = {k: sums[k] + batch_sums[k] * is_active for k in sums}
        return step + 1, moved, state, sums

    _, moved, _, sums = tf.while_loop(
        lambda step, *_: step < tf.shape(active)[0],
        step_clients,
        (0, optimizer.private_copies(moving_values), optimizer.initial_state, sums),
        parallel_iterations=1,
    )
    return ClientValues(values.shared, {**own, **moved}), sums, num_examples


class Batch(NamedTuple):
    """One batch a client, of `T` ids a lookup.

    Attributes:
        features: Input name to (C, B, ...).
        labels: (C, B, ...).
        mask: (C, B).
        minis: Lookup table's variable name to (C, T, ...): the row of each id of the batch.
        positions: Likewise to int32 (C, T): where those rows stand among the touched ones.
    """

    features: dict[str, tf.Tensor]
    labels: tf.Tensor
    mask: tf.Tensor
    minis: Values
    positions: dict[str, tf.Tensor]


def take_batch(
    model: PartitionedModel, examples: Examples, index: tf.Tensor, values: ClientValues
) -> Batch:
    """Takes batch `index[c]` of each client `c`, with the lookups' rows fetched for it."""

    def take(tensor: tf.Tensor) -> tf.Tensor:
        return tf.gather(tensor, index, batch_dims=1)

    features = {k: take(v) for k, v in examples.features.items()}
    positions = {k: take(v) for k, v in examples.positions.items() if k in values.own}
    minis = fetch_rows(model, values.shared, values.own, features, positions)
    flat = {k: tf.reshape(v, [tf.shape(v)[0], -1]) for k, v in positions.items()}
    return Batch(features, take(examples.labels), take(examples.mask), minis, flat)


class Outcome(NamedTuple):
    """What a stack of clients' models say of a batch each.

    Attributes:
        predictions: (C, B, ...).
        losses: float32 (C, B), with the losses that the model adds.
    """

    predictions: tf.Tensor
    losses: tf.Tensor


def predict_batch(
    model: PartitionedModel, values: ClientValues, batch: Batch, *, training: bool
) -> Outcome:
    """Applies each client's model to its batch.

    Args:
        model: The partitioned model.
        values: Values of all variables; of lookup tables the batch's rows are used instead.
        batch: The batch.
        training: Keras' training flag.
    """
    own = {**_without(values.own, model.tables), **batch.minis}
    shared = _without(values.shared, own)
    # What is equal for all clients stays out of the vectorised arguments.
    counted = {k: v[0] for k, v in count_ids(model, batch.features).items()}

    def client_output(element):
        client_values, features = element
        output, added = model.predict(
            {**shared, **client_values}, {**features, **counted}, training=training
        )
        return model.as_labels(output), tuple(added)

    features = _without(batch.features, counted)
    if not own and not features:
        raise ValueError("a model needs a local variable, a moving variable or an input.")
    predictions, added = over_clients(client_output, (own, features))
    # Losses are example by example: all clients' at once.
    shape = tf.shape(batch.mask)
    flat_labels, flat_predictions = (
        tf.reshape(t, tf.concat([[-1], tf.shape(t)[2:]], 0)) for t in (batch.labels, predictions)
    )
    losses = tf.reshape(model.example_losses(flat_labels, flat_predictions), shape)
    for extra in added:
        losses += extra if extra.shape.rank == 2 else extra[:, tf.newaxis]
    return Outcome(predictions, losses)


def batch_metric_sums(
    model: PartitionedModel, batch: Batch, outcome: Outcome
) -> dict[str, tf.Tensor]:
    """Sums the loss and every metric over each client's examples: name to float32 (C,)."""
    shape = tf.shape(batch.mask)
    labels, predictions = (
        tf.reshape(t, tf.concat([[-1], tf.shape(t)[2:]], 0))
        for t in (batch.labels, outcome.predictions)
    )
    values = {
        m.name: tf.reshape(m.example_value(labels, predictions), shape) for m in model.metrics
    }
    values["loss"] = outcome.losses
    # Not a product with the mask: what padding predicts may be anything, even NaN.
    return {k: tf.reduce_sum(tf.where(batch.mask > 0, v, 0.0), -1) for k, v in values.items()}


class _RunTimeSpec:
    """Stands in for a `tf.TensorSpec`: a table's number of touched rows is known at run time."""

    def __init__(self, value: tf.Tensor):
        is_static = value.shape.is_fully_defined()
        self.shape = value.shape if is_static else tf.shape(value)
        self.dtype = value.dtype


class _ClientOptimizer:
    """A TFF optimizer that steps a stack of clients, each with a state of its own."""

    def __init__(self, optimizer: Any, values: Values, model: PartitionedModel):
        self._optimizer = optimizer
        self._tables = [name for name in values if name in model.tables]
        state = optimizer.initialize({k: _RunTimeSpec(v[0]) for k, v in values.items()})
        if self._tables and "weight_decay" in state:
            raise ValueError(
                f"weight decay moves rows that a client never touches; {self._tables} cannot be "
                "lookups with this optimizer."
            )
        # Plain SGD is linear in the gradient and keeps no state: rows can be stepped one by one.
        self._is_plain_sgd = list(state) == ["learning_rate"]
        clients = tf.shape(next(iter(values.values())))[0]
        self._constant_state = state
        self.initial_state = (
            ()
            if self._is_plain_sgd
            else tf.nest.map_structure(lambda s: _tile(tf.convert_to_tensor(s), clients), state)
        )

    def private_copies(self, values: Values) -> Values:
        """Copies what steps change in place, so that nothing else sees it change."""
        if not self._is_plain_sgd:
            return values
        return {k: tf.raw_ops.DeepCopy(x=v) if k in self._tables else v for k, v in values.items()}

    def next(self, state, values, stepped, gradients, positions, is_active):
        """Takes one step.

        Args:
            state: The clients' optimizer states.
            values: The moving values, (C, ...); of tables the touched rows (C, R, ...).
            stepped: The same, but of tables the batch's rows (C, T, ...).
            gradients: Gradients with respect to `stepped`.
            positions: Table name to int32 (C, T), the batch's rows among the touched ones.
            is_active: float32 (C,), 1 where a client takes this step; gradients are 0 elsewhere.

        Returns:
            The new values and the new states.
        """
        if self._is_plain_sgd:
            _, moved = self._optimizer.next(self._constant_state, stepped, gradients)
            new = dict(moved)
            for name in self._tables:
                new[name] = _add_rows(values[name], positions[name], moved[name] - stepped[name])
            return new, state
        dense = dict(gradients)
        for name in self._tables:
            dense[name] = _sum_rows(values[name], positions[name], gradients[name])
        new_state, new = over_clients(lambda e: self._optimizer.next(*e), (state, values, dense))
        return tf.nest.map_structure(
            lambda after, before: _where_client(is_active > 0, after, before),
            (dict(new), new_state),
            (values, state),
        )


def _add_rows(tables: tf.Tensor, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Adds rows (C, T, ...) to tables (C, R, ...), in place, at positions (C, T).

    TensorFlow's pure scatter copies the whole table at every step. The tables must be the loop's
    own copy, read by nothing that may run after this.
    """
    shape = tf.shape(tables)
    clients = tf.range(shape[0])[:, tf.newaxis] * shape[1]
    flat = tf.reshape(tables, tf.concat([[-1], shape[2:]], 0))
    flat_rows = tf.reshape(rows, tf.concat([[-1], shape[2:]], 0))
    added = tf.raw_ops.InplaceAdd(x=flat, i=tf.reshape(clients + positions, [-1]), v=flat_rows)
    return tf.ensure_shape(tf.reshape(added, shape), tables.shape)


def _sum_rows(tables: tf.Tensor, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Sums rows (C, T, ...) by their positions (C, T) into zeros shaped like tables (C, R, ...)."""
    clients = tf.broadcast_to(tf.range(tf.shape(positions)[0])[:, tf.newaxis], tf.shape(positions))
    return tf.scatter_nd(tf.stack([clients, positions], axis=-1), rows, tf.shape(tables))


def _schedule(phase: GradientPhase, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each client's batch at each step, int32 (S, C), and where it is active."""
    num_batches = tf.reduce_sum(tf.cast(tf.reduce_any(mask > 0, -1), tf.int32), -1)
    in_set = {"support": (num_batches + 1) // 2, "query": num_batches // 2, "all": num_batches}
    count = in_set[phase.data]
    steps = phase.epochs * count
    if phase.max_steps is not None:
        steps = tf.minimum(steps, phase.max_steps)
    step = tf.range(tf.reduce_max(steps))[:, tf.newaxis]
    active = step < steps
    place = step % tf.maximum(count, 1)
    batch = place if phase.data == "all" else 2 * place + (phase.data == "query")
    return tf.where(active, batch, 0), tf.cast(active, tf.float32)


def _tile(value: tf.Tensor, clients: Any) -> tf.Tensor:
    return tf.tile(value[tf.newaxis], [clients] + [1] * value.shape.rank)


def _clients(examples: Examples) -> Any:
    return examples.mask.shape[0] or tf.shape(examples.mask)[0]


def _clip(updates: Values, max_norm: float) -> Values:
    """Scales each client's update, all variables together, down to a norm."""
    squares = [tf.reduce_sum(tf.square(u), list(range(1, u.shape.rank))) for u in updates.values()]
    scale = max_norm / tf.maximum(tf.sqrt(tf.add_n(squares)), max_norm)
    return {k: u * tf.reshape(scale, [-1] + [1] * (u.shape.rank - 1)) for k, u in updates.items()}


def _all_finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values), axis=list(range(1, values.shape.rank)))


def _where_client(condition: tf.Tensor, chosen: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Selects whole clients: `condition` is bool (C,), the others (C, ...)."""
    shape = tf.concat([tf.shape(condition), tf.ones([chosen.shape.rank - 1], tf.int32)], 0)
    return tf.where(tf.reshape(condition, shape), chosen, other)


def _without(values: Values, names: Any) -> Values:
    return {k: v for k, v in values.items() if k not in names}
