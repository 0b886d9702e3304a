"""The optimizers of `tff.learning.optimizers` with the same operations, as functions of a state.

A step computes the same operations in the same order as TFF's, so that weights are equal to the
bit. States have the same names.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

State = collections.OrderedDict
Numbers = Mapping[str, Any]
Values = Any
_RATE = "learning_rate"
# Maps the numbers, a weight, its gradient and its slots to the next weight and slots.
_Step = Callable[..., tuple]


@dataclasses.dataclass(frozen=True, eq=False)
class SlotOptimizer:
    """An optimizer whose state consists of numbers, and of slots of each weight's shape.

    Attributes:
        step: The function that steps one weight.
        numbers: Name to number, such as the learning rate.
        slots: Slot to its initial value.
        last: Numbers that follow the slots in the state.
    """

    step: _Step
    numbers: Mapping[str, Any]
    slots: Mapping[str, float] = dataclasses.field(default_factory=dict)
    last: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def initialize(self, specs: Any) -> Any:
        """Returns the state before the first step, of values of these shapes."""

        def fill(start: float) -> Any:
            if not start:
                return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
            return tf.nest.map_structure(
                lambda s: tf.ones(s.shape, s.dtype) * tf.cast(start, s.dtype), specs
            )

        slots = {name: fill(start) for name, start in self.slots.items()}
        return State({**self.numbers, **slots, **self.last})

    def next(
        self,
        state: Any,
        weights: Values,
        gradients: Values,
        *,
        align: Callable[[Any, Any], Any] = lambda number, weight: number,
    ) -> tuple[Any, Values]:
        """Returns the next state, and the values after a step.

        `align` reshapes a number of the state so that it broadcasts against a weight, if both are
        stacked over clients.
        """
        tf.nest.assert_same_structure(weights, gradients)
        new = State(state)
        if "step" in state:
            new["step"] = state["step"] + 1
        leaves = [weights, gradients, *(state[name] for name in self.slots)]
        numbers = {name: value for name, value in new.items() if name not in self.slots}
        stepped = [
            self._step_weight({n: align(v, leaf[0]) for n, v in numbers.items()}, *leaf)
            for leaf in zip(*map(tf.nest.flatten, leaves))
        ]
        columns = [list(column) for column in zip(*stepped)] or [[] for _ in leaves[1:]]
        for name, column in zip(self.slots, columns[1:]):
            new[name] = tf.nest.pack_sequence_as(state[name], column)
        return new, tf.nest.pack_sequence_as(weights, columns[0])

    def _step_weight(self, numbers: Numbers, weight: Any, gradient: Any, *slots: Any) -> tuple:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = tf.convert_to_tensor(gradient)
        return self.step(numbers, weight, gradient, *slots)


def build_sgdm(learning_rate: Any = 0.01, momentum: Any = None) -> SlotOptimizer:
    """Returns SGD, with momentum unless `momentum` is None or 0."""
    if momentum:
        numbers = {_RATE: learning_rate, "momentum": momentum}
        return SlotOptimizer(_momentum_step, numbers, {"accumulator": 0.0})
    return SlotOptimizer(_sgd_step, {_RATE: learning_rate})


def build_adam(
    learning_rate: Any, beta_1: Any = 0.9, beta_2: Any = 0.999, epsilon: Any = 1e-7
) -> SlotOptimizer:
    """Returns Adam (Kingma and Ba, 2015)."""
    return SlotOptimizer(_adam_step, _moments(learning_rate, beta_1, beta_2, epsilon), _slots(0.0))


def build_adamw(
    learning_rate: Any,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-7,
    weight_decay: Any = 0.004,
) -> SlotOptimizer:
    """Returns Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
    numbers, last = _moments(learning_rate, beta_1, beta_2, epsilon), {"weight_decay": weight_decay}
    return SlotOptimizer(_adamw_step, numbers, _slots(0.0), last)


def build_yogi(
    learning_rate: Any,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-3,
    initial_preconditioner_value: float = 1e-6,
) -> SlotOptimizer:
    """Returns Yogi (Zaheer et al., 2018)."""
    numbers = _moments(learning_rate, beta_1, beta_2, epsilon)
    return SlotOptimizer(_yogi_step, numbers, _slots(initial_preconditioner_value))


def build_adagrad(
    learning_rate: Any, initial_preconditioner_value: float = 0.1, epsilon: Any = 1e-7
) -> SlotOptimizer:
    """Returns Adagrad (Duchi et al., 2011)."""
    numbers = {_RATE: learning_rate, "epsilon": epsilon}
    return SlotOptimizer(_adagrad_step, numbers, {"preconditioner": initial_preconditioner_value})


def schedule_learning_rate(optimizer: Any, schedule: Callable[[tf.Tensor], Any]) -> _Scheduled:
    """Returns an optimizer with another learning rate in each round.

    Args:
        optimizer: An optimizer whose state has a `learning_rate`.
        schedule: Maps a round's number, int32 from 0, to its rate.
    """
    return _Scheduled(optimizer, schedule)


@dataclasses.dataclass(frozen=True, eq=False)
class _Scheduled:
    optimizer: Any
    schedule: Callable[[tf.Tensor], Any]

    def initialize(self, specs: Any) -> Any:
        """Returns the state before the first round."""
        state, number = self.optimizer.initialize(specs), tf.constant(0)
        state[_RATE] = self.schedule(number)
        return State(round_num=number, optimizer=state)

    def next(self, state: Any, weights: Values, gradients: Values) -> tuple[Any, Values]:
        """Returns the next round's state, and the values after a step."""
        inner, weights = self.optimizer.next(state["optimizer"], weights, gradients)
        number = state["round_num"] + 1
        inner[_RATE] = self.schedule(number)
        return State(round_num=number, optimizer=inner), weights


def _moments(learning_rate: Any, beta_1: Any, beta_2: Any, epsilon: Any) -> dict[str, Any]:
    numbers = {_RATE: learning_rate, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
    return {**numbers, "step": 0}


def _slots(start: float) -> dict[str, float]:
    return {"accumulator": 0.0, "preconditioner": start}


def _sgd_step(n: Numbers, w: Any, g: Any) -> tuple:
    return (w - tf.cast(n[_RATE], g.dtype) * g,)


def _momentum_step(n: Numbers, w: Any, g: Any, a: Any) -> tuple:
    a = n["momentum"] * a + g
    return w - n[_RATE] * a, a


def _adam_step(n: Numbers, w: Any, g: Any, a: Any, p: Any) -> tuple:
    a, p = _first_moment(n, g, a), _second_moment(n, g, p)
    first, second = _corrections(n)
    rate = n[_RATE] * tf.sqrt(second) / first
    return w - tf.cast(rate, a.dtype) * a / _root(n, p), a, p


def _adamw_step(n: Numbers, w: Any, g: Any, a: Any, p: Any) -> tuple:
    a, p = _first_moment(n, g, a), _second_moment(n, g, p)
    first, second = _corrections(n)
    move = tf.cast(tf.sqrt(second) / first, g.dtype) * a / _root(n, p)
    return w - tf.cast(n[_RATE], g.dtype) * (move + n["weight_decay"] * w), a, p


def _yogi_step(n: Numbers, w: Any, g: Any, a: Any, p: Any) -> tuple:
    a, square = _first_moment(n, g, a), tf.square(g)
    p = p + (1 - tf.cast(n["beta_2"], g.dtype)) * tf.sign(square - p) * square
    first, second = _corrections(n)
    rate = n[_RATE] * tf.sqrt(second) / first
    return w - tf.cast(rate, g.dtype) * a / _root(n, p), a, p


def _adagrad_step(n: Numbers, w: Any, g: Any, p: Any) -> tuple:
    p = p + tf.square(g)
    return w - tf.cast(n[_RATE], g.dtype) * g / tf.sqrt(p + tf.cast(n["epsilon"], p.dtype)), p


def _first_moment(n: Numbers, g: Any, a: Any) -> Any:
    return a + (g - a) * (1.0 - tf.cast(n["beta_1"], a.dtype))


def _second_moment(n: Numbers, g: Any, p: Any) -> Any:
    return p + (tf.square(g) - p) * (1.0 - tf.cast(n["beta_2"], p.dtype))


def _corrections(n: Numbers) -> tuple[Any, Any]:
    """Returns the bias corrections of both moments, which start at 0."""
    step = tf.cast(n["step"], tf.float32)
    return 1.0 - tf.pow(n["beta_1"], step), 1.0 - tf.pow(n["beta_2"], step)


def _root(n: Numbers, p: Any) -> Any:
    return tf.sqrt(p) + tf.cast(n["epsilon"], p.dtype)
