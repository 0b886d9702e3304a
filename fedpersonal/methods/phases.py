"""The phases of an algorithm. Each says which variables move, on which data, how long and how."""

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

# Options describe a phase before any slow import.

VARIABLES = ("global", "local", "all", "personal")
# The states that correct gradients: the client's and the server's.
STATES = ("personal", "server")
# The clients over which the server averages the updates of one of several models.
MEANS = ("cluster", "cohort")


def check_least(instance: object, **bounds: int) -> None:
    """Raises a ValueError unless each attribute is None or at least its bound."""
    for name, least in bounds.items():
        value = getattr(instance, name)
        if value is not None and not value >= least:
            kind = type(instance).__name__
            raise ValueError(f"{kind}: {name} must be at least {least}, not {value}.")


def check_positive(instance: object, *names: str) -> None:
    """Raises a ValueError unless each attribute is None or positive."""
    for name in names:
        value = getattr(instance, name)
        if value is not None and not value > 0:
            raise ValueError(f"{type(instance).__name__}: {name} must be positive, not {value}.")


@dataclasses.dataclass(frozen=True)
class LookAhead:
    """Inner steps before each step of a phase, on a copy of the variables that move.

    Attributes:
        optimizer: The optimizer of the inner steps; its state is new each time.
        steps: Number of inner steps, all on one batch.
        data: The part of the data whose batches the inner steps take in turn; None for the batch of
            the phase's step.
        envelope: 0: the phase then steps along the loss' gradient at the copy (Per-FedAvg, first
            order). Above 0: lambda of the loss' Moreau envelope (pFedMe). It pulls the copy to the
            copied variables. The phase then steps along the envelope's gradient, lambda times the
            distance from the copy.
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
        variables: The variables that move: `global`, `local`, or `all`, jointly; or names of
            layers, nested layers (`encoder/head`) or single variables (`dense/bias`); or
            `personal`, the client's `PersonalCopies`. A phase that moves personal copies applies
            the model with them. One that moves both the copies and the copied variables applies
            both models, one after the other. With offsets, both move along the gradient of their
            sum.
        data: The batches: `support` (the even ones), `query` (the odd ones), `first_half`,
            `second_half`, `all`, or one of `fedpersonal.data.splits.split_parts`.
        optimizer: An optimizer of `tff.learning.optimizers`, or one of Keras that has a counterpart
            in TFF, which replaces it. Its state is new in each phase.
        optimizers: Other optimizers of single variables or layers, by name; `local` names all local
            variables. The most specific name counts.
        epochs: Passes over the batches.
        max_steps: Bound on the number of steps of all epochs, or None.
        proximal: Weight mu of FedProx' term, mu / 2 times the squared distance of the moving global
            variables from their values at the start of the phase (Li et al., "Federated
            Optimization in Heterogeneous Networks", 2020); for personal copies, from the server's
            values (Li et al., "Ditto", 2021). 0 for none.
        ahead: The inner steps before each step, or None.
        corrections: States that are added to the gradients of the moving global variables, to their
            factors: `personal`, the client's state, or `server`, the server's (SCAFFOLD).
        grows: Whether round n, counted from 1, makes at most n of the passes. Evaluation always
            makes all of them.
        passes: The number of passes in a round, int32, set by `Algorithm.at_round`; None for
            `epochs`.

    Examples:
        With `model` of `PartitionedModel`'s example, a head that moves faster than a part of the
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
        """Reports whether the phase moves a variable of a model, which must not be frozen."""
        if variable.is_replaced or variable.is_state:
            return False
        if self.variables == "personal":
            return variable.is_personal
        if isinstance(self.variables, str):
            return self.variables in ("all", "local" if variable.is_local else "global")
        return variable.first_name(self.variables) is not None


@dataclasses.dataclass(frozen=True)
class RidgePhase:
    """An exact solution for the local variables: least squared error + l2 * (their squared norm).

    For models whose output is one number per example and linear in the local variables.

    Attributes:
        data: The batches: `support` (the even ones), `query` (the odd ones), `first_half`,
            `second_half` or `all`.
        l2: Weight of the squared norm against the sum of squared errors; positive.
        bias_l2: The weight for scalar local variables (biases); None for `l2`.
    """

    data: str
    l2: float
    bias_l2: float | None = None

    variables = "local"

    def __post_init__(self):
        check_part("RidgePhase", self.data)
        check_positive(self, "l2", "bias_l2")

    def moves(self, variable: VariableSpec) -> bool:
        """Reports whether the phase moves a variable of a model: local, and no personal copy."""
        return variable.is_local and not variable.is_personal


@dataclasses.dataclass(frozen=True)
class BlendPhase:
    """Moves each weight of personal copies towards the server's value by a learnt share.

    A copy v becomes v + b * (w - v). The share b is between 0 and 1, starts at 1, is kept, and
    first takes SGD steps on the loss of that blend (Zhang et al., "FedALA", 2023, section 3). For
    `PersonalCopies` with `blends`.

    Attributes:
        data: The batches, as in `GradientPhase`.
        rate: The learning rate of b.
        epochs: Passes over the batches.
        max_steps: Bound on the number of steps of all epochs, or None.
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
        """Reports whether the phase moves a variable of a model: a personal copy or its b."""
        return variable.is_personal


@dataclasses.dataclass(frozen=True)
class ChoicePhase:
    """Chooses the server's model with the least loss on the client's data, or weights several.

    Each global variable, or each variable of some layers, has a value for each cluster. The client
    applies and trains the values of the cluster that it has chosen (Ghosh et al., "An Efficient
    Framework for Clustered Federated Learning", 2020).

    With `mixes`, a client gives each cluster a weight, by a step of expectation and maximisation:
    the more likely a cluster makes the labels, the larger its weight (Marfoq et al., "Federated
    Multi-Task Learning under a Mixture of Distributions", 2021). The model then predicts the
    weighted mean of the clusters' probabilities, and each cluster is trained on examples weighted
    by how well it explains them.

    Attributes:
        data: The batches, as in `GradientPhase`.
        clusters: Number of clusters.
        layers: The layers or variables with a value for each cluster; empty for all global
            variables. All clusters share the other variables.
        mean_over: The clients whose mean update moves a cluster: `cluster`, those that have chosen
            it, for which each client reports its choice to the server; or `cohort`, all clients of
            the round, whose updates of other clusters are 0.
        mixes: Whether a client weights the clusters in place of choosing one. It requires classes,
            as `NeighboursPhase` does, a cross-entropy loss, and a mean over the `cohort`.
        epochs: Passes over the batches, each a step of the weights.
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
            raise ValueError("ChoicePhase: mixes requires mean_over='cohort'.")
        if self.epochs > 1 and not self.mixes:
            raise ValueError("ChoicePhase: epochs above 1 requires mixes; a choice takes one pass.")

    def moves(self, variable: VariableSpec) -> bool:
        """Reports whether the phase moves a variable of a model: the choice, or the weights."""
        return variable.name == CLUSTER


@dataclasses.dataclass(frozen=True)
class NeighboursPhase:
    """Stores the client's examples, and combines predictions with those of the nearest examples.

    The prediction is weight * p + (1 - weight) * q. The model predicts q. The probability p of a
    label is the share of the neighbours with that label, weighted by a softmax over
    -distance / scale (Marfoq et al., "kNN-Per", 2022, section 3). The distance of two examples is
    the mean squared difference of the head's inputs. Labels are classes, with an output for each,
    or 0 and 1 with a single output. Outputs are logits, unless Keras' softmax or sigmoid makes
    them. The phase moves nothing, and no other phase follows it.

    Attributes:
        head: The last layers, by name. The first of them is called once, with one tensor.
        neighbours: Number of nearest examples.
        weight: Their weight in the prediction, from 0 to 1; without examples it is 0.
        scale: The divisor of distances.
        data: The batches that are stored, as in `GradientPhase`.
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
        """Returns False: the phase moves no variable."""
        del variable
        return False


Phase = Union[GradientPhase, RidgePhase, BlendPhase, ChoicePhase, NeighboursPhase]


def count_passes(phase: Phase) -> int:
    """Returns the largest number of passes of a phase for which the order of examples matters."""
    if not isinstance(phase, (GradientPhase, BlendPhase)):
        return 0
    return phase.epochs if phase.max_steps is None else min(phase.epochs, phase.max_steps)


def dividing_parts(phase: Phase) -> tuple[str, ...]:
    """Returns the support parts into which a phase divides a client's data."""
    ahead = getattr(phase, "ahead", None)
    parts = [phase.data, *([ahead.data] if ahead and ahead.data else [])]
    return tuple(dict.fromkeys(part for part in map(dividing_part, parts) if part))


def restrict(phase: Phase, variables: str | tuple[str, ...]) -> Phase:
    """Returns a gradient phase with other variables; phases of other kinds stay as they are."""
    if not isinstance(phase, GradientPhase):
        return phase
    return dataclasses.replace(phase, variables=variables)
