"""Examples and variables of a stack of clients; every tensor has a leading client axis.

A single client is a stack of one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fedpersonal.data.splits import is_in_part
from fedpersonal.methods.phases import GradientPhase, Phase, count_passes
from fedpersonal.model.noise import fold
from fedpersonal.model.partition import PartitionedModel, Values


class Examples(NamedTuple):
    """Padded examples of `C` clients: `N` batches of `B` examples each.

    Attributes:
        features: Input name to tensor of shape (C, N, B, ...).
        labels: Tensor of shape (C, N, B, ...).
        mask: float32 of shape (C, N, B): 1 for an example, 0 for padding, which comes last.
        rows: Lookup table's variable name to int32 (C, R): the rows that a client touches, then
            padding.
        positions: Lookup table's variable name to int32 (C, N, B, ...): the index in `rows` of
            each id of the input.
        order: int32 (C, P, N, B): the places, of N * B, that each batch of each of P passes takes;
            None if passes are not shuffled. Batch numbers run through a phase's passes: batch n of
            pass p has the number p * N + n.
    """

    features: dict[str, tf.Tensor]
    labels: tf.Tensor
    mask: tf.Tensor
    rows: dict[str, tf.Tensor]
    positions: dict[str, tf.Tensor]
    order: tf.Tensor | None = None

    @property
    def exists(self) -> tf.Tensor:
        """float32 (C,): 1 for a client with examples, 0 for one without, even if N is 0."""
        return tf.maximum(tf.reduce_max(self.mask, [1, 2]), 0.0)

    def in_phase(self, phases: Sequence[Phase], number: int) -> Examples:
        """Returns the examples with the pass order of phase `number` of a round."""
        if self.order is None:
            return self
        counts = [count_passes(phase) for phase in phases]
        first, count = sum(counts[:number]), counts[number]
        return self._replace(order=self.order[:, first : first + count] if count else None)

    def find_places(self, index: tf.Tensor) -> tf.Tensor:
        """Returns the places of the examples of each client's batch `index[c]`, int32 (C, B)."""
        size = tf.shape(self.mask)[2]
        if self.order is None:
            return index[:, tf.newaxis] * size + tf.range(size)
        shape = tf.shape(self.order)
        batches = tf.reshape(self.order, [shape[0], shape[1] * shape[2], size])
        return tf.gather(batches, index, batch_dims=1)

    def take(self, columns: Any, index: tf.Tensor) -> Any:
        """Takes each client's batch `index[c]` of columns (C, N, B, ...): (C, B, ...)."""
        if self.order is None:
            return tf.nest.map_structure(lambda t: tf.gather(t, index, batch_dims=1), columns)
        places = self.find_places(index)
        return tf.nest.map_structure(lambda t: tf.gather(_flat(t), places, batch_dims=1), columns)


def _flat(column: tf.Tensor) -> tf.Tensor:
    """Joins a column's batches: (C, N, B, ...) to (C, N * B, ...)."""
    shape = tf.shape(column)
    flat = tf.reshape(column, tf.concat([[shape[0], shape[1] * shape[2]], shape[3:]], 0))
    return tf.ensure_shape(flat, [column.shape[0], None, *column.shape[3:]])


class ClientValues(NamedTuple):
    """Values of a model's variables for a stack of clients.

    Attributes:
        shared: Variable name to the value that all clients start from.
        per_client: Variable name to values of shape (C, ...), of variables that differ between
            clients. A lookup table has only its touched rows: (C, R, ...).
        noise: uint64 (C,): each client's seed for the next random numbers of layers such as
            Dropout, or None if the model has no such layers.
    """

    shared: Values
    per_client: Values
    noise: tf.Tensor | None = None

    def fold_noise(self, number: tf.Tensor | int) -> ClientValues:
        """Returns the values with noise seeds that depend on a number, such as a step's."""
        return self if self.noise is None else self._replace(noise=fold(self.noise, number))


class Kept(NamedTuple):
    """Local variables that clients have kept since they last took part.

    Attributes:
        has_kept: bool (C,): whether a client has kept any; if not, it starts with fresh ones.
        values: Local variable's name to (C, ...); arbitrary for clients that have kept none.
    """

    has_kept: tf.Tensor
    values: Values


def over_clients(fn: Callable[[Any], Any], elements: Any) -> Any:
    """Applies `fn` to each client's slice of `elements` and stacks the results."""
    if tf.nest.flatten(elements)[0].shape[0] == 1:
        alone = tf.nest.map_structure(lambda t: tf.squeeze(t, 0), elements)
        return tf.nest.map_structure(lambda t: t[tf.newaxis], fn(alone))
    return tf.vectorized_map(fn, elements)


def over_real_examples(
    fn: Callable[[Any, Any], Any], elements: Any, examples: Any, mask: tf.Tensor
) -> Any:
    """Applies `fn` to each client's slice of `elements` and its real examples; stacks results.

    Clients run one after another, so that no example meets padding or another client's examples.

    Args:
        fn: Maps a slice, and examples (n, ...), to tensors, each a number or (n, ...).
        elements: Tensors (C, ...).
        examples: Tensors (C, B, ...).
        mask: (C, B).

    Returns:
        Tensors (C,) or (C, B, ...), with zeros for padding.
    """

    def client_result(element: Any) -> Any:
        client_element, examples, mask = element
        # A batch of padding alone is kept whole: not all code takes an empty batch.
        places = tf.where(mask >= tf.reduce_max(mask))
        real = tf.nest.map_structure(lambda t: tf.gather_nd(t, places), examples)
        results = fn(client_element, real)

        def fill_up(values: tf.Tensor) -> tf.Tensor:
            if not values.shape.rank:
                return values
            shape = tf.concat([tf.shape(mask), tf.shape(values)[1:]], 0)
            filled = tf.scatter_nd(places, values, tf.cast(shape, places.dtype))
            return tf.ensure_shape(filled, [*mask.shape, *values.shape[1:]])

        return tf.nest.map_structure(fill_up, results)

    arguments = (elements, examples, mask)
    if mask.shape[0] == 1:
        return over_clients(client_result, arguments)
    traced = tf.function(client_result, autograph=False).get_concrete_function(
        tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), arguments)
    )
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )
    if not tf.nest.flatten(specs):  # For example, a model without metrics.
        return specs
    return tf.map_fn(
        lambda element: tf.nest.pack_sequence_as(specs, tf.nest.flatten(traced(element))),
        arguments,
        fn_output_signature=specs,
        parallel_iterations=1,
    )


def starting_values(
    model: PartitionedModel,
    global_values: Values,
    examples: Examples,
    seed: tf.Tensor,
    local: Values | None = None,
) -> ClientValues:
    """Joins broadcast global values with local ones, by default `starting_local_values`.

    Personal copies that are not among the local values start anew. A client's noise depends on the
    seed and on its examples alone, as its fresh local values do.
    """
    noise = None
    if model.draws_noise:
        prints = _fingerprints(examples)
        noise = fold(fold(fold(tf.zeros([], tf.uint64), seed[0]), seed[1]), prints)
    if local is None:
        local = starting_local_values(model, examples, seed)
    has_copies = model.copies.keys() <= local.keys()
    copies = {} if has_copies else starting_copies(model, global_values, examples)
    return ClientValues(dict(global_values), {**copies, **local}, noise)


def starting_copies(
    model: PartitionedModel, global_values: Values, examples: Examples, kept: Kept | None = None
) -> Values:
    """Returns clients' personal copies of global values, (C, ...): kept or initial ones."""
    clients = count_clients(examples)
    fresh = {name: starting_copy(model, name, global_values, examples) for name in model.copies}
    fresh = {
        k: v if k in model.per_client_rows else tile_clients(v[0], clients)
        for k, v in fresh.items()
    }
    return _prefer_kept(kept, fresh)


def starting_copy(
    model: PartitionedModel, name: str, global_values: Values, examples: Examples
) -> tf.Tensor:
    """Returns the initial value of a personal copy: (1, ...), or rows, (C, R, ...)."""
    value = model.initial_copy(global_values[model.copies[name]])
    if name in examples.rows:
        return tf.gather(value, examples.rows[name])
    if name not in model.per_client_rows:
        return value[tf.newaxis]
    ids = examples.features[model.per_client_rows[name]]
    return tf.gather(value, tf.reshape(ids, [count_clients(examples), -1])[:, :1])


def starting_local_values(
    model: PartitionedModel, examples: Examples, seed: tf.Tensor, kept: Kept | None = None
) -> Values:
    """Returns clients' local values except copies, (C, ...): kept or freshly sampled ones.

    A client's fresh values depend on the seed and on its examples alone, not on how clients are
    executed.
    """
    variables = model.initialized_locals
    if not variables:
        return {}
    prints = _fingerprints(examples)
    seeds = tf.stack([prints + seed[0], tf.zeros_like(prints) + seed[1]], axis=-1)
    specs = {v.name: tf.TensorSpec(v.shape, v.dtype) for v in variables}
    fresh = _sample_each(lambda part: model.initial_values(variables, part), seeds, specs)
    return _prefer_kept(kept, fresh)


def _prefer_kept(kept: Kept | None, fresh: Values) -> Values:
    if kept is None:
        return fresh
    return {k: where_client(kept.has_kept, kept.values[k], v) for k, v in fresh.items()}


def _sample_each(sample: Callable[[tf.Tensor], Values], seeds: tf.Tensor, specs: Any) -> Values:
    """Samples values from each seed (C, 2); `over_clients` cannot vectorise random numbers."""
    # A loop's step costs more than one seed's samples, so each step takes several seeds.
    static, count = seeds.shape[0], tf.shape(seeds)[0]
    size = min(static or 1, 32)
    groups = tf.reshape(tf.pad(seeds, [[0, -count % size], [0, 0]]), [-1, size, 2])

    if static == size:
        fresh = sample(seeds)
    else:
        grouped = {k: tf.TensorSpec([size, *s.shape], s.dtype) for k, s in specs.items()}
        fresh = tf.map_fn(sample, groups, fn_output_signature=grouped)
        fresh = {k: join_axes(v, 2)[:count] for k, v in fresh.items()}
    return {k: tf.ensure_shape(v, [static, *specs[k].shape]) for k, v in fresh.items()}


def _fingerprints(examples: Examples) -> tf.Tensor:
    """Returns an int32 for each client that depends on its examples alone, not on padding."""
    total = tf.zeros([count_clients(examples)], tf.int32)
    mask = tf.cast(examples.mask, tf.int32)
    for column in tf.nest.flatten((examples.features, examples.labels)):
        is_word = column.dtype.size == 4
        bits = tf.bitcast(column, tf.int32) if is_word else tf.cast(column, tf.int32)
        real = tf.reshape(mask, tf.concat([tf.shape(mask), [1] * (bits.shape.rank - 3)], 0))
        total += tf.reduce_sum(bits * real, axis=list(range(1, bits.shape.rank)))
    return total


def per_client_copies(model: PartitionedModel, shared: Values, examples: Examples) -> Values:
    """Copies shared values for every client, (C, ...); of tables, only the rows it touches."""
    clients = count_clients(examples)
    return {
        name: tf.gather(value, examples.rows[name])
        if name in model.global_tables
        else tile_clients(value, clients)
        for name, value in shared.items()
    }


def add_missing_rows(model: PartitionedModel, examples: Examples) -> Examples:
    """Returns examples with rows and positions of packed tables, if packing left them out.

    Rows are then all ids of a client. A repeated id fills another row, to which no position points.
    """
    tables = model.packed_tables
    clients = count_clients(examples)
    if not tables:
        return examples

    def missing() -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        rows, positions = {}, {}
        for name, feature in tables.items():
            ids = tf.cast(examples.features[feature], tf.int32)
            flat = tf.reshape(ids, [clients, -1])
            rows[name] = tf.sort(flat, axis=1)
            positions[name] = tf.reshape(tf.searchsorted(rows[name], flat), tf.shape(ids))
        return rows, positions

    packed = ({k: examples.rows[k] for k in tables}, {k: examples.positions[k] for k in tables})
    is_packed = tf.reduce_all([tf.shape(rows)[1] > 0 for rows in packed[0].values()])
    rows, positions = tf.cond(is_packed, lambda: packed, missing)
    return examples._replace(
        rows={**examples.rows, **rows}, positions={**examples.positions, **positions}
    )


def constrain(model: PartitionedModel, values: Values, active: tf.Tensor) -> Values:
    """Applies the variables' constraints to values, (C, ...), after a step.

    `active` is float32 (C,): 1 where a client has taken the step.
    """
    values = dict(model.clamped(values))
    for variable in model.variables:
        if variable.constraint is not None and variable.name in values:
            before = values[variable.name]
            after = tf.ensure_shape(over_clients(variable.constraint, before), before.shape)
            values[variable.name] = where_client(active > 0, after, before)
    return values


def moving_names(model: PartitionedModel, phase: Phase) -> list[str]:
    """Returns the names of the variables that a phase moves."""
    return [v.name for v in model.variables if phase.moves(v)]


def model_views(model: PartitionedModel, phase: GradientPhase) -> list[PartitionedModel]:
    """Returns the views of the model whose losses a phase adds up.

    They are the model as it is, the model with personal copies, or both.
    """
    if not model.copies:
        return [model]
    moving, copied = set(moving_names(model, phase)), set(model.copies.values())
    is_personal = any(v.is_personal and v.name in moving for v in model.local_variables)
    # Offsets and the variables that they are added to move by one gradient.
    is_shared = not is_personal or bool(copied & moving) and model.role == "model"
    return [model] * is_shared + [model.personal] * is_personal


def proximal_anchors(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    moving: Values,
    examples: Examples,
) -> Values:
    """Returns the anchors of a phase's proximal term: (C, ...), or (1, ...) for all clients."""
    if not phase.proximal:
        return {}
    local = {v.name for v in model.local_variables}
    anchors = {k: v for k, v in moving.items() if k not in local}
    # A copy's anchor is its initial value, even after the variable that it copies has moved.
    copies = [name for name in moving if name in model.copies]
    initial = {name: starting_copy(model, name, values.shared, examples) for name in copies}
    return {**anchors, **initial}


def corrections(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    moving: Container[str],
    rows: Mapping[str, tf.Tensor],
) -> Values:
    """Returns the corrections that a phase adds to gradients: (C, ...), or (1, ...).

    Args:
        model: The partitioned model.
        phase: The phase.
        values: The clients' values, with the states that correct.
        moving: The names of the variables to correct.
        rows: Table's name to int32 (C, R): a correction of such a table has these rows alone.
    """
    added: Values = {}
    states = {"personal": model.copies, "server": model.server_states}
    for term, factor in phase.corrections.items():
        for name, source in states[term].items():
            if source not in moving:
                continue
            is_per_client = name in values.per_client
            state = values.per_client[name] if is_per_client else values.shared[name]
            if source in rows:
                state = tf.gather(state, rows[source], batch_dims=int(is_per_client))
            elif not is_per_client:
                state = state[tf.newaxis]
            added[source] = added.get(source, 0.0) + factor * state
    return added


def split_values(
    model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples
) -> tuple[ClientValues, Values]:
    """Returns the values that a phase leaves alone, and each client's, (C, ...), that it moves."""
    moving = moving_names(model, phase)
    shared = {k: v for k, v in values.shared.items() if k in moving and k not in values.per_client}
    per_client = {**values.per_client, **per_client_copies(model, shared, examples)}
    frozen = ClientValues(
        {k: v for k, v in values.shared.items() if k not in per_client},
        {k: v for k, v in per_client.items() if k not in moving},
        values.noise,
    )
    return frozen, {name: per_client[name] for name in moving}


def sent_copies(model: PartitionedModel, values: Values) -> Values:
    """Returns the copies that clients send in place of the variables that they copy.

    Keys are the names of the copied variables.
    """
    replaced = {v.name for v in model.global_variables if v.is_replaced}
    return {source: values[name] for name, source in model.copies.items() if source in replaced}


def phase_mask(data: str, examples: Examples) -> tf.Tensor:
    """Returns the examples' mask, (C, N, B), with the batches outside of `data` set to 0."""
    if data == "all":
        return examples.mask
    index = tf.range(tf.shape(examples.mask)[1])[tf.newaxis]
    chosen = is_in_part(data, index, count_client_batches(examples)[:, tf.newaxis])
    return examples.mask * tf.cast(chosen, tf.float32)[..., tf.newaxis]


def count_client_batches(examples: Examples) -> tf.Tensor:
    """Returns each client's number of batches, int32 (C,)."""
    return tf.reduce_sum(tf.cast(tf.reduce_any(examples.mask > 0, -1), tf.int32), -1)


def count_touched_rows(positions: tf.Tensor) -> tf.Tensor:
    """Returns each client's number of touched rows, at least 1, int32 (C,)."""
    return tf.reduce_max(positions, list(range(1, positions.shape.rank))) + 1


def join_axes(tensor: tf.Tensor, count: int) -> tf.Tensor:
    """Joins the first `count` axes to one."""
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[count:]], 0))


def align(column: tf.Tensor, rank: int) -> tf.Tensor:
    """Reshapes (C,) to (C, 1, ...), to be broadcast against a tensor of a rank."""
    return tf.reshape(column, [-1] + [1] * (rank - 1))


def tile_clients(value: tf.Tensor, clients: int | tf.Tensor) -> tf.Tensor:
    """Repeats a value for every client: (...) to (clients, ...)."""
    return tf.tile(value[tf.newaxis], [clients] + [1] * value.shape.rank)


def count_clients(examples: Examples) -> int | tf.Tensor:
    """Returns the number of clients in a stack: an int if it is static, else a tensor."""
    return examples.mask.shape[0] or tf.shape(examples.mask)[0]


def where_client(condition: tf.Tensor, chosen: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Selects whole clients: `condition` is bool (C,), the others (C, ...)."""
    # `Select` copies whole clients. `tf.where`, which chooses each number, takes thrice as long.
    return tf.raw_ops.Select(condition=condition, x=chosen, y=other)
