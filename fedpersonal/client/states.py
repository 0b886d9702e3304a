"""Updates of clients' states, such as control variates, after their phases."""

from __future__ import annotations

import tensorflow as tf

from fedpersonal.client.batches import schedule_phase
from fedpersonal.client.optimizer import optimizer_of, plain_sgd_rate
from fedpersonal.client.values import ClientValues, Examples, align
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel


def check_slopes(model: PartitionedModel, algorithm: Algorithm) -> None:
    """Raises a UserError if an assignment needs a slope, but steps are not plain SGD's."""
    if not any("slope" in one.terms for one in algorithm.assignments):
        return
    for variable in model.global_variables:
        if variable.name in model.copies.values():
            phase = algorithm.last_phase
            if not phase.moves(variable):
                raise UserError(f"{algorithm.name}: its last phase must move {variable.name!r}.")
            if plain_sgd_rate(optimizer_of(phase, variable)) is None:
                raise UserError(
                    f"{algorithm.name}: {variable.name!r} must be moved by plain SGD, since its "
                    "change over steps and rate is taken for the mean gradient."
                )


def assign_states(
    model: PartitionedModel,
    algorithm: Algorithm,
    start: ClientValues,
    values: ClientValues,
    examples: Examples,
) -> ClientValues:
    """Returns values after the phases with the states that an algorithm assigns.

    Args:
        model: The partitioned model.
        algorithm: The phases and the assignments.
        start: The values before the phases.
        values: The values after the phases.
        examples: The clients' examples.
    """
    if not algorithm.assignments:
        return values
    phase, assigned = algorithm.last_phase, {}
    optimizers = {v.name: optimizer_of(phase, v) for v in model.global_variables if phase.moves(v)}
    states = {"personal": model.copies, "server": model.server_states}
    steps = tf.reduce_sum(schedule_phase(phase, examples).active, 0)

    def term(name: str, source: str) -> tf.Tensor:
        sent = start.shared[source][tf.newaxis]
        if name == "sent":
            return sent
        if name in ("shared", "slope"):
            moved = values.per_client.get(source, sent)
            if name == "shared":
                return moved
            rate = plain_sgd_rate(optimizers[source])
            assert rate is not None  # Else `check_slopes` has refused it.
            share = tf.math.divide_no_nan(1.0, steps * rate)
            return (sent - moved) * align(share, moved.shape.rank)
        state = next(k for k, v in states[name].items() if v == source)
        if state in start.per_client:
            return start.per_client[state]
        return start.shared[state][tf.newaxis]

    # A client that takes no step has no new slope.
    has_steps = steps > 0
    for one in algorithm.assignments:
        for state, source in states[one.of].items():
            after = sum(factor * term(name, source) for name, factor in one.terms.items())
            before = term(one.of, source)  # All clients share a server's state.
            assigned[state] = tf.where(align(has_steps, before.shape.rank), after, before)
    return values._replace(per_client={**values.per_client, **assigned})
