"""Cuts of lookup tables to the rows that a client touches, while its phases run.

Tables of which a client has all rows are cut: personal copies, and tables that a state corrects. A
row that no example of a client looks up has no gradient. A step of SGD then moves it by the phase's
pull and correction alone: v - rate * (lambda * (v - w) + d), with a pull lambda to w and a
correction d. After n steps that is w + r^n * (v - w) - m * d, where r = 1 - rate * lambda and
m = rate * (1 + r + ... + r^(n - 1)).
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from fedpersonal.client.batches import schedule_phase
from fedpersonal.client.optimizer import optimizer_of, plain_sgd_rate
from fedpersonal.client.values import (
    ClientValues,
    Examples,
    align,
    corrections,
    count_clients,
    count_touched_rows,
    join_axes,
    tile_clients,
)
from fedpersonal.methods.phases import GradientPhase, Phase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec


def touched_tables(
    model: PartitionedModel, phases: Sequence[Phase], values: ClientValues, *parts: Examples
) -> tuple[ClientValues, list[Examples]]:
    """Cuts clients' tables, (C, rows, ...), down to the touched rows, (C, R, ...).

    A table stays whole if a phase moves all its rows by another optimizer than plain SGD.

    Args:
        model: The partitioned model.
        phases: The phases to run.
        values: The values before the phases.
        *parts: Parts of the same clients' examples, which share the touched rows.

    Returns:
        The values; and the parts, with rows and positions of the tables that are cut down. A
        corrected table that stays whole has no rows in the parts, and ids are its positions.
    """
    cut, whole = _cut_tables(model, phases), _corrected_tables(model)
    rows = {name: parts[0].rows[source] for name, source in cut.items()}
    touched = {
        name: tf.gather(values.per_client[name], index, batch_dims=1)
        if name in values.per_client
        else tf.gather(values.shared[name], index)
        for name, index in rows.items()
    }

    def with_tables(part: Examples) -> Examples:
        positions = {name: part.positions[source] for name, source in cut.items()}
        # Where a client has all rows, ids are the positions of rows.
        ids = {n: tf.cast(part.features[model.tables[n]], tf.int32) for n in whole if n not in cut}
        other_rows = {name: index for name, index in part.rows.items() if name not in ids}
        places = {**part.positions, **positions, **ids}
        return part._replace(rows={**other_rows, **rows}, positions=places)

    per_client = {**values.per_client, **touched}
    return values._replace(per_client=per_client), list(map(with_tables, parts))


def whole_tables(
    model: PartitionedModel,
    phases: Sequence[Phase],
    start: ClientValues,
    values: ClientValues,
    examples: Examples,
) -> ClientValues:
    """Undoes `touched_tables` after phases that started from `start`, on the same examples."""
    tables = {
        name: _all_rows(
            _untouched_rows(model, phases, name, source, start, examples),
            values.per_client[name],
            examples.rows[name],
            count_touched_rows(examples.positions[name]),
        )
        for name, source in _cut_tables(model, phases).items()
    }
    return values._replace(per_client={**values.per_client, **tables})


def _cut_tables(model: PartitionedModel, phases: Sequence[Phase]) -> dict[str, str]:
    """Returns the tables that can be cut down, each with the table whose rows packing lists."""
    copied = {
        name: source
        for name, source in model.copies.items()
        if name in model.tables and name not in model.per_client_rows
    }
    candidates = {**copied, **{name: name for name in _corrected_tables(model)}}
    specs = {v.name: v for v in model.variables if v.name in candidates}

    def is_cut(variable: VariableSpec) -> bool:
        moved = any(phase.moves(variable) for phase in phases)
        rates = [
            plain_sgd_rate(optimizer_of(phase, variable))
            for phase in _moving_all_rows(phases, variable)
        ]
        return (moved or variable.name in copied) and None not in rates

    return {name: source for name, source in candidates.items() if is_cut(specs[name])}


def _corrected_tables(model: PartitionedModel) -> list[str]:
    """Returns the tables that a state corrects, of which a client moves and sends all rows."""
    replaced = {v.name for v in model.variables if v.is_replaced}
    return [k for k in model.packed_tables if k not in {*model.global_tables, *replaced}]


def _moving_all_rows(phases: Sequence[Phase], variable: VariableSpec) -> list[GradientPhase]:
    """Returns the phases that also move rows of a table that a client does not touch."""
    return [
        phase
        for phase in phases
        if isinstance(phase, GradientPhase)
        and phase.moves(variable)
        and (phase.corrections or _pull(phase))
    ]


def _pull(phase: GradientPhase) -> float:
    """Returns a phase's pull on rows that a client does not touch.

    It is 0 for an envelope: looking ahead leaves such rows at their anchor.
    """
    return 0.0 if phase.ahead and phase.ahead.envelope else phase.proximal


def _untouched_rows(
    model: PartitionedModel,
    phases: Sequence[Phase],
    name: str,
    source: str,
    start: ClientValues,
    examples: Examples,
) -> tf.Tensor:
    """Returns a table of each client, (C, rows, ...), with phases' effect on untouched rows."""
    sent = start.shared[source]
    if name in start.per_client:
        sent, value = model.initial_copy(sent), start.per_client[name]
    else:
        value = tile_clients(sent, count_clients(examples))
    variable = next(v for v in model.variables if v.name == name)
    for phase in _moving_all_rows(phases, variable):
        rate = plain_sgd_rate(optimizer_of(phase, variable))
        assert rate is not None  # Else the table is not cut down.
        active, ratio = schedule_phase(phase, examples).active, 1.0 - rate * _pull(phase)
        # A copy's anchor is the sent value; another variable's is its value before the phase.
        anchor = sent if name in start.per_client else value
        if _pull(phase) and anchor is not value:
            left = tf.pow(ratio, tf.reduce_sum(active, 0))
            value = anchor + align(left, value.shape.rank) * (value - anchor)
        # Not (1 - r^n) / lambda, which loses precision where r is nearly 1.
        powers = tf.pow(ratio, tf.cast(tf.range(tf.shape(active)[0]), active.dtype))
        moved = rate * tf.linalg.matvec(active, powers, transpose_a=True)
        for correction in corrections(model, phase, start, [name], {}).values():
            value -= align(moved, value.shape.rank) * correction
    return value


def _all_rows(
    whole: tf.Tensor, touched: tf.Tensor, rows: tf.Tensor, counts: tf.Tensor
) -> tf.Tensor:
    """Puts touched rows, (C, R, ...), back into whole tables, (C, rows, ...)."""
    # Padding would write row 0: it repeats the client's first row and its value instead.
    is_row = tf.range(tf.shape(rows)[1]) < counts[:, tf.newaxis]
    place = tf.where(is_row, tf.range(tf.shape(rows)[1]), 0)
    rows, touched = (tf.gather(t, place, batch_dims=1) for t in (rows, touched))
    rows += tf.shape(whole)[1] * tf.range(tf.shape(whole)[0])[:, tf.newaxis]
    flat = tf.tensor_scatter_nd_update(
        join_axes(whole, 2), tf.reshape(rows, [-1, 1]), join_axes(touched, 2)
    )
    return tf.ensure_shape(tf.reshape(flat, tf.shape(whole)), whole.shape)
