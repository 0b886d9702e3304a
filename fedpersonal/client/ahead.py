"""Steps on a copy of what a phase moves, ahead of each of its steps."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fedpersonal.algorithm import LookAhead
from fedpersonal.client.optimizer import ClientOptimizer, optimizer_of
from fedpersonal.client.values import ClientValues, Examples, count_client_batches
from fedpersonal.data.parts import count_batches, find_batch
from fedpersonal.model.partition import PartitionedModel, Values


def look_ahead(
    model: PartitionedModel,
    ahead: LookAhead,
    examples: Examples,
    moving: Values,
    differentiate: Callable[..., tuple[Values, Values, Values, Values]],
) -> Callable[..., Values]:
    """Returns what takes the steps that precede one of a phase.

    Args:
        model: The partitioned model.
        ahead: What the steps are.
        examples: The clients' examples.
        moving: What the phase moves, (C, ...).
        differentiate: As of `take_steps`.

    Returns:
        A function of a step's number; the values that the phase leaves alone, whose noise is that
        of the step; those that it moves; and each client's batch and whether it takes the step,
        (C,). It returns where the copy of what moves is then.
    """
    pulled = set(moving) if ahead.envelope else set()
    optimizer = ClientOptimizer(
        optimizer_of(ahead, model.variables[0]),
        moving,
        model,
        pull=ahead.envelope,
        pulled=pulled,
        is_near=True,  # The copy starts where it is pulled to.
    )
    num_batches = count_client_batches(examples)

    def look(
        step: tf.Tensor, rest: ClientValues, moved: Values, batch: tf.Tensor, active: tf.Tensor
    ) -> Values:
        if ahead.data is not None:
            in_part = tf.maximum(count_batches(ahead.data, num_batches), 1)
            batch = find_batch(ahead.data, step % in_part, num_batches)

        def take(number, copy, state):
            current = rest.fold_noise(number)._replace(own={**rest.own, **copy})
            stepped, gradients, places, _ = differentiate(current, copy, batch, active)
            copy, state = optimizer.next(state, copy, stepped, gradients, places, active, moved)
            return number + 1, copy, state

        _, copy, _ = tf.while_loop(
            lambda number, *_: number < ahead.steps,
            take,
            (0, optimizer.private_copies(moved), optimizer.initial_state),
            parallel_iterations=1,
        )
        return copy

    return look
