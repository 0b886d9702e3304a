"""The phases of an algorithm: which variables move, on which data, for how long, by which rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Union

from fedpersonal.data.splits import check_part, dividing_part
from fedpersonal.errors import check_choice
from fedpersonal.model.names import CLUSTER
from fedpersonal.optimizers import convert_optimizers

if TYPE_CHECKING:
    import tensorflow as tf

    from fedpersonal.model.variables import VariableSpec
    from fedpersonal.optimizers import AnyOptimizer

# Options describe a phase before anything slow is imported.

VARIABLES = ("global", "local", "all", "personal")
# The states that correct gradients: the client's and the server's.
STATES = ("personal", "server")
# Over whom the server takes the mean of updates of one of several models.
MEANS = ("cluster", "cohort")


def check_least(owner: object, **bounds: int) -> None:
    """Raises a ValueError unless an object's attributes are None or at least as large."""
    for name, least in bounds.items():
        value = getattr(owner, name)
        if value is not None and not value >= least:
            kind = type(owner).__name__
            raise ValueError(f"{kind}: {name} must be at least {least}, not {value}.")


def check_positive(owner: object, *names: str) -> None:
    """Raises a ValueError unless an object's attributes are None or positive."""
    for name in names:
        value = getattr(owner, name)
        if value is not None and not value > 0:
            raise ValueError(f"{type(owner).__name__}: {name} must be positive, not {value}.")


@dataclasses.dataclass(frozen=True)
class LookAhead:
    """What precedes each step of a phase: steps on a copy of what moves, to look ahead from.

    Attributes:
        optimizer: Takes these steps; its state starts anew each time.
        steps: How many, all on one batch.
        data: The part whose batches they take, one after another; None for the phase's own batch.
        envelope: 0: the phase then steps along the loss' gradient where the copy is (Per-FedAvg,
            first order). Above 0: lambda of the loss' Moreau envelope (pFedMe). It pulls the copy
            to what it copies, and the phase steps along the envelope's gradient instead, lambda
            times the distance from the copy.
    """

    optimizer: AnyOptimizer
    steps: int = 1
    data: str | None = None
    envelope: float = 0.0

    def __post_init__(self):
        if self.data is not None:
            check_part("LookAhead", self.data)
        check_least(self, steps=1, envelope=0)
        convert_optimizers(self, "optimizer")


@dataclasses.dataclass(frozen=True)
class GradientPhase:
    """Steps of an optimizer on batches of the client's data.

    Attributes:
        variables: Which variables move: `global`, `local`, or `all`, jointly; or names, of layers,
            nested layers (`encoder/head`) or single variables (`dense/bias`); or `personal`, the
            client's `PersonalCopies`. A phase that moves these applies the model with them, and
            one that moves them and what they copy does both, side by side; with offsets, both
            move along the gradient of their sum.
        data: Which batches: `support` (the even ones), `query` (the odd ones), `first_half`,
            `second_half`, `all`, or one of `fedpersonal.data.splits.split_parts`.
        optimizer: One of `tff.learning.optimizers`, or of Keras' where TFF has its counterpart,
            which takes its place; its state starts anew in each phase.
        optimizers: Others for some variables, by such a name, or `local` for all local ones; the
            most specific name counts.
        epochs: Passes over those batches.
        max_steps: Bound on the steps of all epochs together, or None.
        proximal: Weight mu of FedProx' term, mu / 2 times the squared distance of the global
            variables that move from where the phase found them (Li et al., "Federated Optimization
            in Heterogeneous Networks", 2020); and of personal copies from what the server sent (Li
            et al., "Ditto", 2021); 0 for none.
        ahead: What precedes each step, or None.
        corrections: What is added to the gradients of the global variables that move: `personal`,
            the client's state, or `server`, the server's, to its factor (SCAFFOLD).
        grows: Whether round n, from 1, makes at most n of these passes. Outside a round, in
            evaluation, there are all of them.
        passes: Those of a round, int32, which `Algorithm.at_round` gives it; None for `epochs`.

    Examples:
        With `model` of `PartitionedModel`'s example, whose head moves faster than a part of the
        body:

        >>> slow, fast = tf.keras.optimizers.SGD(0.01), tf.keras.optimizers.SGD(0.1)
        >>> names = ("head", "body/bias")
        >>> phase = fp.GradientPhase(names, "support", slow, epochs=2, optimizers={"head": fast})
        >>> [variable.name for variable in model.variables if phase.moves(variable)]
        ['body/bias', 'head/kernel', 'head/bias']
    """

    variables: str | tuple[str, ...]
    data: str
    optimizer: AnyOptimizer
    epochs: int = 1
    max_steps: int | None = None
    optimizers: Mapping[str, AnyOptimizer] = dataclasses.field(default_factory=dict, hash=False)
    proximal: float = 0.0
    ahead: LookAhead | None = None
    corrections: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    grows: bool = False
    passes: tf.Tensor | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self):
        if isinstance(self.variables, str):
            check_choice("GradientPhase", "variables", self.variables, VARIABLES)
        check_part("GradientPhase", self.data)
        check_least(self, epochs=0, max_steps=0, proximal=0)
        for term in self.corrections:
            check_choice("GradientPhase", "corrections", term, STATES)
        convert_optimizers(self, "optimizer", "optimizers")

    def moves(self, variable: VariableSpec) -> bool:
        """Tells whether the phase moves a variable of a model, which is not a frozen one."""
        if variable.is_replaced or variable.is_state:
            return False
        if self.variables == "personal":
            return variable.is_personal
        if isinstance(self.variables, str):
            return self.variables in ("all", "local" if variable.is_local else "global")
        return variable.first_name(self.variables) is not None


@dataclasses.dataclass(frozen=True)
class RidgePhase:
    """The local variables that minimise squared error + l2 * (their squared norm), solved exactly.

    For models whose output is one number an example and linear in the local variables.

    Attributes:
        data: Which batches: `support` (the even ones), `query` (the odd ones), `first_half`,
            `second_half` or `all`.
        l2: Weight of the squared norm against the sum of squared errors; positive.
        bias_l2: The same for scalar local variables (biases); None stands for `l2`.
    """

    data: str
    l2: float
    bias_l2: float | None = None

    variables = "local"

    def __post_init__(self):
        check_part("RidgePhase", self.data)
        check_positive(self, "l2", "bias_l2")

    def moves(self, variable: VariableSpec) -> bool:
        """Tells whether the phase moves a variable of a model: the local ones, but no copies."""
        return variable.is_local and not variable.is_personal


@dataclasses.dataclass(frozen=True)
class BlendPhase:
    """Brings copies nearer to what the server sent, each weight as far as the client's data want.

    A copy v becomes v + b * (w - v), where b is between 0 and 1, starts at 1, is kept, and takes
    SGD steps on the loss of that blend before (Zhang et al., "FedALA", 2023, section 3). For
    `PersonalCopies` with `blends`.

    Attributes:
        data: Which batches, as of `GradientPhase`.
        rate: The learning rate of b.
        epochs: Passes over those batches.
        max_steps: Bound on the steps of all epochs together, or None.
    """

    data: str
    rate: float
    epochs: int = 1
    max_steps: int | None = None

    variables = "personal"
    passes = None

    def __post_init__(self):
        check_part("BlendPhase", self.data)
        check_least(self, epochs=0, max_steps=0)
        check_positive(self, "rate")

    def moves(self, variable: VariableSpec) -> bool:
        """Tells whether the phase moves a variable of a model: copies and their b."""
        return variable.is_personal


@dataclasses.dataclass(frozen=True)
class ChoicePhase:
    """Chooses the server's model of the least loss on the client's data, or weighs several.

    Every global variable, or those of some layers, then has a value for each cluster, and the
    client applies, trains and moves those of the cluster that it has chosen (Ghosh et al., "An
    Efficient Framework for Clustered Federated Learning", 2020).

    With `mixes`, a client weighs all clusters, by a step of expectation and maximisation: one
    weighs more, the likelier it makes the labels (Marfoq et al., "Federated Multi-Task Learning
    under a Mixture of Distributions", 2021). The model then says how likely classes are on average,
    by the weights, and each cluster is trained on the examples that suit it.

    Attributes:
        data: Which batches, as of `GradientPhase`.
        clusters: How many models there are.
        layers: Of which layers or variables; none for all global ones. The others are shared by
            all clusters.
        mean_over: Over whom a server's model moves by the mean of clients' updates: `cluster`,
            those who have chosen it, of which each client tells the server which it is; or
            `cohort`, all who take part, for whom updates of what they have not chosen are 0.
        mixes: Whether a client weighs the clusters in place of choosing one. It is for classes, as
            `NeighboursPhase` is, for a loss that is a cross-entropy, and for a mean over the
            `cohort`.
        epochs: Passes over those batches, each a step of the weights.
    """

    data: str
    clusters: int
    layers: tuple[str, ...] = ()
    mean_over: str = "cluster"
    mixes: bool = False
    epochs: int = 1

    variables = "local"
    passes = max_steps = None

    def __post_init__(self):
        check_part("ChoicePhase", self.data)
        check_choice("ChoicePhase", "mean_over", self.mean_over, MEANS)
        check_least(self, clusters=2, epochs=1)
        if self.mixes and self.mean_over == "cluster":
            raise ValueError("ChoicePhase: who mixes has chosen no cluster; mean_over is 'cohort'.")
        if self.epochs > 1 and not self.mixes:
            raise ValueError("ChoicePhase: a choice is made in one pass; epochs are for mixes.")

    def moves(self, variable: VariableSpec) -> bool:
        """Tells whether the phase moves a variable of a model: the choice, or the weights."""
        return variable.name == CLUSTER


@dataclasses.dataclass(frozen=True)
class NeighboursPhase:
    """Has a client remember its examples, and predict by those nearest to what it is asked, too.

    What it predicts is weight * p + (1 - weight) * q. The model says q. By p, a label is as likely
    as its neighbours weigh, by a softmax over -distance / scale (Marfoq et al., "kNN-Per", 2022,
    section 3). The distance of two examples is the mean squared difference of what the head is
    called with. It is for classes, with an output for each, or a single one of the labels 0 and 1.
    Outputs are logits, unless Keras' softmax or sigmoid makes them. The phase moves nothing, and no
    other phase follows it.

    Attributes:
        head: The last layers, by name. The first of them is called once, with one tensor.
        neighbours: How many of the examples are asked.
        weight: As how much they count beside the model, from 0 to 1. Without examples it is 0.
        scale: What distances are divided by.
        data: The batches that are remembered, as of `GradientPhase`.
    """

    head: tuple[str, ...]
    neighbours: int = 10
    weight: float = 0.5
    scale: float = 1.0
    data: str = "all"

    variables = "local"

    def __post_init__(self):
        check_part("NeighboursPhase", self.data)
        check_least(self, neighbours=1)
        check_positive(self, "scale")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"NeighboursPhase: weight must be from 0 to 1, not {self.weight}.")

    def moves(self, variable: VariableSpec) -> bool:
        """Tells that the phase moves no variable."""
        del variable
        return False


Phase = Union[GradientPhase, RidgePhase, BlendPhase, ChoicePhase, NeighboursPhase]


def count_passes(phase: Phase) -> int:
    """Returns how many passes a phase makes at most in which the order of examples matters."""
    if not isinstance(phase, (GradientPhase, BlendPhase)):
        return 0
    return phase.epochs if phase.max_steps is None else min(phase.epochs, phase.max_steps)


def dividing_parts(phase: Phase) -> tuple[str, ...]:
    """Returns the support parts by which a phase divides a client's data."""
    ahead = getattr(phase, "ahead", None)
    read = [phase.data, *([ahead.data] if ahead and ahead.data else [])]
    return tuple(dict.fromkeys(part for part in map(dividing_part, read) if part))


def restrict(phase: Phase, variables: str | tuple[str, ...]) -> Phase:
    """Returns a gradient phase that moves other variables; others move what they do."""
    if not isinstance(phase, GradientPhase):
        return phase
    return dataclasses.replace(phase, variables=variables)
