"""Which batch every client of a stack takes at each step of a phase."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from fedpersonal.algorithm import GradientPhase
from fedpersonal.client.values import Examples, count_client_batches
from fedpersonal.data.parts import count_batches, find_batch


class Schedule(NamedTuple):
    """The steps of a phase, for `C` clients.

    Attributes:
        batches: int32 (S, C): each client's batch at each step.
        active: float32 (S, C): 1 where the client takes the step, 0 beyond its last one.
        num_steps: int32: how many steps the client with the most takes, at most S.
        num_examples: float32 (C,): examples that all its steps process.
    """

    batches: tf.Tensor
    active: tf.Tensor
    num_steps: tf.Tensor
    num_examples: tf.Tensor


def schedule_phase(phase: GradientPhase, examples: Examples) -> Schedule:
    """Lays out the steps of a phase for a stack of clients."""
    num_batches = count_client_batches(examples)
    in_part = count_batches(phase.data, num_batches)
    steps = (phase.epochs if phase.passes is None else phase.passes) * in_part
    if phase.max_steps is not None:
        steps = tf.minimum(steps, phase.max_steps)
    # A bound that follows from shapes alone: XLA would compile again for each number of steps.
    bound = phase.epochs * tf.shape(examples.mask)[1]
    if phase.max_steps is not None:
        bound = tf.minimum(bound, phase.max_steps)
    step = tf.range(bound)[:, tf.newaxis]
    active = step < steps
    batches = find_batch(phase.data, step % tf.maximum(in_part, 1), num_batches)
    batches, active = tf.where(active, batches, 0), tf.cast(active, tf.float32)
    sizes = tf.gather(tf.reduce_sum(examples.mask, -1), tf.transpose(batches), batch_dims=1)
    num_examples = tf.reduce_sum(sizes * tf.transpose(active), axis=1)
    return Schedule(batches, active, tf.reduce_max(steps), num_examples)
