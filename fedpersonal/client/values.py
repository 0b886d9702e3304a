"""Examples and variables of a stack of clients: everything has a leading client axis.

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
        positions: Likewise to int32 (C, N, B, ...): where in `rows` each id of the input stands.
        order: int32 (C, P, N, B): which of the N * B places each batch of each of P passes takes;
            None where all passes take batches as they are. A phase's batches are counted through
            its passes: that of pass p is p * N + n.
    """

    features: dict[str, tf.Tensor]
    labels: tf.Tensor
    mask: tf.Tensor
    rows: dict[str, tf.Tensor]
    positions: dict[str, tf.Tensor]
    order: tf.Tensor | None = None

    @property
    def exists(self) -> tf.Tensor:
        """float32 (C,): 1 for a client with examples; 0 for one without, even of no batches."""
        return tf.maximum(tf.reduce_max(self.mask, [1, 2]), 0.0)

    def in_phase(self, phases: Sequence[Phase], number: int) -> Examples:
        """Returns the examples with the order of the passes of one of a round's phases."""
        if self.order is None:
            return self
        counts = [count_passes(phase) for phase in phases]
        first, count = sum(counts[:number]), counts[number]
        return self._replace(order=self.order[:, first : first + count] if count else None)

    def find_places(self, index: tf.Tensor) -> tf.Tensor:
        """Returns where the examples of batch `index[c]` of each client are, int32 (C, B)."""
        size = tf.shape(self.mask)[2]
        if self.order is None:
            return index[:, tf.newaxis] * size + tf.range(size)
        shape = tf.shape(self.order)
        batches = tf.reshape(self.order, [shape[0], shape[1] * shape[2], size])
        return tf.gather(batches, index, batch_dims=1)

    def take(self, columns: Any, index: tf.Tensor) -> Any:
        """Takes batch `index[c]` of each client of columns (C, N, B, ...), (C, B, ...)."""
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
        own: Variable name to values of shape (C, ...) where a client has one of its own; of a
            lookup table only its touched rows: (C, R, ...).
        noise: uint64 (C,): each client's seed of what layers such as Dropout draw next, or None
            where the model has none.
    """

    shared: Values
    own: Values
    noise: tf.Tensor | None = None

    def fold_noise(self, number: tf.Tensor | int) -> ClientValues:
        """Returns the same with other seeds of noise, one for each number."""
        return self if self.noise is None else self._replace(noise=fold(self.noise, number))


class Kept(NamedTuple):
    """Local variables that clients have kept since they last took part.

    Attributes:
        known: bool (C,): whether a client has kept any; if not, it starts with fresh ones.
        values: Local variable's name to (C, ...); anything where nothing is known.
    """

    known: tf.Tensor
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
    """Applies `fn` to each client's slice of `elements` and to its real examples, and stacks.

    One client comes after the other, so that no example meets another client's, or padding.

    Args:
        fn: Maps a slice, and examples (n, ...), to tensors, each a number or (n, ...).
        elements: Tensors (C, ...).
        examples: Tensors (C, B, ...).
        mask: (C, B).

    Returns:
        Tensors (C,) or (C, B, ...), zeros where there is padding.
    """

    def client_result(element: Any) -> Any:
        own, examples, mask = element
        # All of padding where there is no more: not all code takes an empty batch.
        places = tf.where(mask >= tf.reduce_max(mask))
        results = fn(own, tf.nest.map_structure(lambda t: tf.gather_nd(t, places), examples))

        def fill_up(values: tf.Tensor) -> tf.Tensor:
            if not values.shape.rank:
                return values
            shape = tf.concat([tf.shape(mask), tf.shape(values)[1:]], 0)
            filled = tf.scatter_nd(places, values, tf.cast(shape, places.dtype))
            return tf.ensure_shape(filled, [*mask.shape, *values.shape[1:]])

        return tf.nest.map_structure(fill_up, results)

    given = (elements, examples, mask)
    if mask.shape[0] == 1:
        return over_clients(client_result, given)
    traced = tf.function(client_result, autograph=False).get_concrete_function(
        tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape[1:], t.dtype), given)
    )
    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )
    if not tf.nest.flatten(specs):  # Such as the metrics of a model without any.
        return specs
    return tf.map_fn(
        lambda element: tf.nest.pack_sequence_as(specs, tf.nest.flatten(traced(element))),
        given,
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
    """Joins broadcast global values with local ones, those of `starting_local_values` for None.

    Copies of global values that are not among the local ones start anew. A client's noise depends
    on the seed and on its own examples, as its draws do.
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
    """Returns clients' copies of global values, (C, ...): kept, or what they start at."""
    clients = count_clients(examples)
    fresh = {name: start_of_copy(model, name, global_values, examples) for name in model.copies}
    fresh = {k: v if k in model.own_rows else tile_clients(v[0], clients) for k, v in fresh.items()}
    return _kept_or(kept, fresh)


def start_of_copy(
    model: PartitionedModel, name: str, global_values: Values, examples: Examples
) -> tf.Tensor:
    """Returns what a copy starts at: (1, ...), or rows, (C, R, ...)."""
    value = model.copied(global_values[model.copies[name]])
    if name in examples.rows:
        return tf.gather(value, examples.rows[name])
    if name not in model.own_rows:
        return value[tf.newaxis]
    ids = examples.features[model.own_rows[name]]
    return tf.gather(value, tf.reshape(ids, [count_clients(examples), -1])[:, :1])


def starting_local_values(
    model: PartitionedModel, examples: Examples, seed: tf.Tensor, kept: Kept | None = None
) -> Values:
    """Returns clients' local values but copies, (C, ...): kept, or drawn by each for itself.

    A client's draw depends on the seed and on its own examples, and so on nothing of how clients
    are executed.
    """
    variables = model.drawn_variables
    if not variables:
        return {}
    prints = _fingerprints(examples)
    seeds = tf.stack([prints + seed[0], tf.zeros_like(prints) + seed[1]], axis=-1)
    specs = {v.name: tf.TensorSpec(v.shape, v.dtype) for v in variables}
    fresh = _draw_each(lambda some: model.initial_values(variables, some), seeds, specs)
    return _kept_or(kept, fresh)


def _kept_or(kept: Kept | None, fresh: Values) -> Values:
    if kept is None:
        return fresh
    return {k: where_client(kept.known, kept.values[k], v) for k, v in fresh.items()}


def _draw_each(draw: Callable[[tf.Tensor], Values], seeds: tf.Tensor, specs: Any) -> Values:
    """Returns what each seed (C, 2) draws; `over_clients` has no vectorised random draws."""
    # A step of a loop costs more than a draw: it takes several of them.
    static, count = seeds.shape[0], tf.shape(seeds)[0]
    together = min(static or 1, 32)
    groups = tf.reshape(tf.pad(seeds, [[0, -count % together], [0, 0]]), [-1, together, 2])

    if static == together:
        fresh = draw(seeds)
    else:
        grouped = {k: tf.TensorSpec([together, *s.shape], s.dtype) for k, s in specs.items()}
        fresh = tf.map_fn(draw, groups, fn_output_signature=grouped)
        fresh = {k: join_axes(v, 2)[:count] for k, v in fresh.items()}
    return {k: tf.ensure_shape(v, [static, *specs[k].shape]) for k, v in fresh.items()}


def _fingerprints(examples: Examples) -> tf.Tensor:
    """Returns an int32 for each client that follows from its examples, whatever their padding."""
    total = tf.zeros([count_clients(examples)], tf.int32)
    mask = tf.cast(examples.mask, tf.int32)
    for column in tf.nest.flatten((examples.features, examples.labels)):
        is_word = column.dtype.size == 4
        bits = tf.bitcast(column, tf.int32) if is_word else tf.cast(column, tf.int32)
        real = tf.reshape(mask, tf.concat([tf.shape(mask), [1] * (bits.shape.rank - 3)], 0))
        total += tf.reduce_sum(bits * real, axis=list(range(1, bits.shape.rank)))
    return total


def own_copies(model: PartitionedModel, shared: Values, examples: Examples) -> Values:
    """Gives every client a copy of its own of shared values; of tables, of the rows it touches."""
    clients = count_clients(examples)
    return {
        name: tf.gather(value, examples.rows[name])
        if name in model.global_tables
        else tile_clients(value, clients)
        for name, value in shared.items()
    }


def with_rows(model: PartitionedModel, examples: Examples) -> Examples:
    """Returns examples with rows and positions of packed tables, where they came without any.

    Rows are then all ids of a client: one that comes again is another row, which no id stands at.
    """
    tables = model.packed_tables
    clients = count_clients(examples)
    if not tables:
        return examples

    def found() -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        rows, positions = {}, {}
        for name, feature in tables.items():
            ids = tf.cast(examples.features[feature], tf.int32)
            flat = tf.reshape(ids, [clients, -1])
            rows[name] = tf.sort(flat, axis=1)
            positions[name] = tf.reshape(tf.searchsorted(rows[name], flat), tf.shape(ids))
        return rows, positions

    given = ({k: examples.rows[k] for k in tables}, {k: examples.positions[k] for k in tables})
    is_given = tf.reduce_all([tf.shape(rows)[1] > 0 for rows in given[0].values()])
    rows, positions = tf.cond(is_given, lambda: given, found)
    return examples._replace(
        rows={**examples.rows, **rows}, positions={**examples.positions, **positions}
    )


def constrain(model: PartitionedModel, values: Values, active: tf.Tensor) -> Values:
    """Applies the variables' constraints to values, (C, ...), after a step.

    `active` is float32 (C,): 1 where a client has taken the step.
    """
    values = dict(model.bounded(values))
    for variable in model.variables:
        if variable.constraint is not None and variable.name in values:
            before = values[variable.name]
            after = tf.ensure_shape(over_clients(variable.constraint, before), before.shape)
            values[variable.name] = where_client(active > 0, after, before)
    return values


def moving_names(model: PartitionedModel, phase: Phase) -> list[str]:
    """Returns the names of the variables that a phase moves."""
    return [v.name for v in model.variables if phase.moves(v)]


def readings(model: PartitionedModel, phase: GradientPhase) -> list[PartitionedModel]:
    """Returns the model as a phase applies it: as it is, with personal copies, or both ways."""
    if not model.copies:
        return [model]
    moving, copied = set(moving_names(model, phase)), set(model.copies.values())
    is_personal = any(v.is_personal and v.name in moving for v in model.local_variables)
    # Offsets and what they are added to move by one gradient.
    is_shared = not is_personal or bool(copied & moving) and model.role == "model"
    return [model] * is_shared + [model.personal] * is_personal


def proximal_anchors(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    moving: Values,
    examples: Examples,
) -> Values:
    """Returns what a phase's proximal term pulls variables to: (C, ...), or (1, ...) for all."""
    if not phase.proximal:
        return {}
    local = {v.name for v in model.local_variables}
    anchors = {k: v for k, v in moving.items() if k not in local}
    # Of copies, that is what they start at, however what they copy has moved since.
    own = [name for name in moving if name in model.copies]
    pulled = {name: start_of_copy(model, name, values.shared, examples) for name in own}
    return {**anchors, **pulled}


def corrections(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    moving: Container[str],
    rows: Mapping[str, tf.Tensor],
) -> Values:
    """Returns what a phase adds to gradients of variables that move: (C, ...), or (1, ...).

    Of tables among `rows`, (C, R), it is of these rows alone.
    """
    added: Values = {}
    states = {"personal": model.copies, "server": model.server_states}
    for term, factor in phase.corrections.items():
        for name, source in states[term].items():
            if source not in moving:
                continue
            is_own = name in values.own
            state = values.own[name] if is_own else values.shared[name]
            if source in rows:
                state = tf.gather(state, rows[source], batch_dims=int(is_own))
            elif not is_own:
                state = state[tf.newaxis]
            added[source] = added.get(source, 0.0) + factor * state
    return added


def split_values(
    model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples
) -> tuple[ClientValues, Values]:
    """Returns the values that a phase leaves alone; and each client's, (C, ...), that it moves."""
    moving = moving_names(model, phase)
    lent = {k: v for k, v in values.shared.items() if k in moving and k not in values.own}
    own = {**values.own, **own_copies(model, lent, examples)}
    frozen = ClientValues(
        {k: v for k, v in values.shared.items() if k not in own},
        {k: v for k, v in own.items() if k not in moving},
        values.noise,
    )
    return frozen, {name: own[name] for name in moving}


def sent_copies(model: PartitionedModel, own: Values) -> Values:
    """Returns clients' copies that are sent for the variables that they copy, by these' names."""
    replaced = {v.name for v in model.global_variables if v.is_replaced}
    return {source: own[name] for name, source in model.copies.items() if source in replaced}


def phase_mask(data: str, examples: Examples) -> tf.Tensor:
    """Returns the examples' mask with the batches outside of `data` masked out, (C, N, B)."""
    if data == "all":
        return examples.mask
    index = tf.range(tf.shape(examples.mask)[1])[tf.newaxis]
    chosen = is_in_part(data, index, count_client_batches(examples)[:, tf.newaxis])
    return examples.mask * tf.cast(chosen, tf.float32)[..., tf.newaxis]


def count_client_batches(examples: Examples) -> tf.Tensor:
    """Returns how many batches each client has, int32 (C,)."""
    return tf.reduce_sum(tf.cast(tf.reduce_any(examples.mask > 0, -1), tf.int32), -1)


def count_touched_rows(positions: tf.Tensor) -> tf.Tensor:
    """Returns how many rows each client touches, by positions (C, ...); at least 1, int32 (C,)."""
    return tf.reduce_max(positions, list(range(1, positions.shape.rank))) + 1


def join_axes(tensor: tf.Tensor, count: int) -> tf.Tensor:
    """Makes one axis of the first ones."""
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[count:]], 0))


def align(column: tf.Tensor, rank: int) -> tf.Tensor:
    """Gives (C,) axes of one, to be broadcast against a tensor of a rank."""
    return tf.reshape(column, [-1] + [1] * (rank - 1))


def tile_clients(value: tf.Tensor, clients: int | tf.Tensor) -> tf.Tensor:
    """Repeats a value for every client: (...) to (clients, ...)."""
    return tf.tile(value[tf.newaxis], [clients] + [1] * value.shape.rank)


def count_clients(examples: Examples) -> int | tf.Tensor:
    """Returns the number of clients in a stack, as a plain number where it is known."""
    return examples.mask.shape[0] or tf.shape(examples.mask)[0]


def where_client(condition: tf.Tensor, chosen: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Selects whole clients: `condition` is bool (C,), the others (C, ...)."""
    # `Select` copies whole clients, where `tf.where` chooses each number: a third of the time.
    return tf.raw_ops.Select(condition=condition, x=chosen, y=other)
