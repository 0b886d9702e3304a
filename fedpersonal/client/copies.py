"""Copies of lookup tables, reduced to the rows that a client touches while its phases run.

A row that no example of a client looks up has no gradient: all that a step of SGD does to it is
what the phase's pull does, v - rate * lambda * (v - w), with w as the server sent it. After n steps
that is w + (1 - rate * lambda)^n * (v - w), and without a pull it is v.
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
    count_touched_rows,
    join_axes,
)
from fedpersonal.methods.phases import GradientPhase, Phase
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec


def touched_copies(
    model: PartitionedModel, phases: Sequence[Phase], values: ClientValues, *parts: Examples
) -> tuple[ClientValues, list[Examples]]:
    """Cuts clients' copies of tables, (C, rows, ...), down to the touched rows, (C, R, ...).

    A copy that phases pull by another optimizer than plain SGD stays whole.

    Args:
        model: The partitioned model.
        phases: Those that are to run.
        values: The values before them.
        *parts: Parts of the same clients' examples, which share the touched rows.

    Returns:
        The values; and the parts, with rows and positions of the copies that are cut down.
    """
    copied = _copied_tables(model, phases)
    if not copied:
        return values, list(parts)
    rows = {name: parts[0].rows[source] for name, source in copied.items()}
    own = {k: tf.gather(values.own[k], of, batch_dims=1) for k, of in rows.items()}

    def with_copies(part: Examples) -> Examples:
        positions = {name: part.positions[source] for name, source in copied.items()}
        return part._replace(rows={**part.rows, **rows}, positions={**part.positions, **positions})

    return values._replace(own={**values.own, **own}), list(map(with_copies, parts))


def whole_copies(
    model: PartitionedModel,
    phases: Sequence[Phase],
    start: ClientValues,
    values: ClientValues,
    examples: Examples,
) -> ClientValues:
    """Undoes `touched_copies` after the phases, which started from `start`, on these examples."""
    own = {
        name: _all_rows(
            start.own[name],
            values.own[name],
            examples.rows[name],
            count_touched_rows(examples.positions[name]),
            model.copied(start.shared[source]),
            _left_of_pull(model, phases, name, examples),
        )
        for name, source in _copied_tables(model, phases).items()
    }
    return values._replace(own={**values.own, **own})


def _copied_tables(model: PartitionedModel, phases: Sequence[Phase]) -> dict[str, str]:
    """Returns the copies of tables that can be cut down, to what they copy."""
    return {
        v.name: model.copies[v.name]
        for v in model.local_variables
        if v.name in model.tables
        and v.name in model.copies
        and v.name not in model.own_rows
        and all(plain_sgd_rate(optimizer_of(p, v)) is not None for p in _pulling(phases, v))
    }


def _pulling(phases: Sequence[Phase], variable: VariableSpec) -> list[GradientPhase]:
    """Returns the phases that pull on all rows of a copy.

    An envelope pulls to where looking ahead has led: rows that are not looked up are there.
    """
    return [
        phase
        for phase in phases
        if isinstance(phase, GradientPhase)
        and phase.moves(variable)
        and phase.proximal
        and not (phase.ahead and phase.ahead.envelope)
    ]


def _left_of_pull(
    model: PartitionedModel, phases: Sequence[Phase], name: str, examples: Examples
) -> tf.Tensor | None:
    """Returns how much of the distance of each client's untouched rows is left, float32 (C,)."""
    variable = next(v for v in model.local_variables if v.name == name)
    left = None
    for phase in _pulling(phases, variable):
        rate = plain_sgd_rate(optimizer_of(phase, variable))
        assert rate is not None  # Else the copy is not cut down.
        steps = tf.reduce_sum(schedule_phase(phase, examples).active, 0)
        of_phase = tf.pow(1.0 - rate * phase.proximal, steps)
        left = of_phase if left is None else left * of_phase
    return left


def _all_rows(
    whole: tf.Tensor,
    touched: tf.Tensor,
    rows: tf.Tensor,
    counts: tf.Tensor,
    sent: tf.Tensor,
    remaining: tf.Tensor | None,
) -> tf.Tensor:
    """Puts touched rows, (C, R, ...), back among all of them, (C, rows, ...), which are pulled."""
    if remaining is not None:
        whole = sent + align(remaining, whole.shape.rank) * (whole - sent)
    # Padding would be row 0: it repeats the client's first row instead, with its value.
    is_row = tf.range(tf.shape(rows)[1]) < counts[:, tf.newaxis]
    place = tf.where(is_row, tf.range(tf.shape(rows)[1]), 0)
    rows, touched = (tf.gather(t, place, batch_dims=1) for t in (rows, touched))
    rows += tf.shape(whole)[1] * tf.range(tf.shape(whole)[0])[:, tf.newaxis]
    flat = tf.tensor_scatter_nd_update(
        join_axes(whole, 2), tf.reshape(rows, [-1, 1]), join_axes(touched, 2)
    )
    return tf.ensure_shape(tf.reshape(flat, tf.shape(whole)), whole.shape)
