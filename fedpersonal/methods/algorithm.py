"""An algorithm of partially local federated learning as a short list of phases.

A phase says which variables move, on which part of the client's data, for how long and by which
rule. A new method is a new list of phases; `fedpersonal.methods` holds one file a paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Union

from fedpersonal.data.splits import check_part
from fedpersonal.errors import check_choice
from fedpersonal.optimizers import ScheduledOptimizer

if TYPE_CHECKING:
    import tensorflow as tf

    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.model.variables import VariableSpec
    from fedpersonal.optimizers import AnyOptimizer

# Options describe an algorithm before anything slow is imported.

VARIABLES = ("global", "local", "all", "personal")
LOCAL_VARIABLES = ("none", "rebuilt", "kept")
# What a client that has kept local variables predicts with.
STARTS = ("kept", "rebuilt", "updated")
# What personal copies are: in place of what they copy, added to it, or beside the model.
ROLES = ("model", "offset", "state")
# Of what assignments and corrections are made.
TERMS = ("personal", "server", "sent", "shared", "slope")
WEIGHTINGS = ("num_examples", "uniform")


def _check_least(owner: object, **bounds: int) -> None:
    for name, least in bounds.items():
        value = getattr(owner, name)
        if value is not None and not value >= least:
            kind = type(owner).__name__
            raise ValueError(f"{kind}: {name} must be at least {least}, not {value}.")


def _check_positive(owner: object, *names: str) -> None:
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
        _check_least(self, steps=1, envelope=0)


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
        optimizer: One of `tff.learning.optimizers`, or of Keras' where TFF has its counterpart;
            its state starts anew in each phase.
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
        _check_least(self, epochs=0, max_steps=0, proximal=0)
        for term in self.corrections:
            check_choice("GradientPhase", "corrections", term, TERMS[:2])

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
        _check_positive(self, "l2", "bias_l2")

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
        _check_least(self, epochs=0, max_steps=0)
        _check_positive(self, "rate")

    def moves(self, variable: VariableSpec) -> bool:
        """Tells whether the phase moves a variable of a model: copies and their b."""
        return variable.is_personal


Phase = Union[GradientPhase, RidgePhase, BlendPhase]


def restrict(phase: Phase, variables: str | tuple[str, ...]) -> Phase:
    """Returns a gradient phase that moves other variables; others move what they do."""
    if not isinstance(phase, GradientPhase):
        return phase
    return dataclasses.replace(phase, variables=variables)


@dataclasses.dataclass(frozen=True)
class PersonalCopies:
    """What a client has for itself beside global variables, in their shapes.

    They are local variables, under the names `personal_copy/...`.

    Attributes:
        layers: What is copied: names of layers or variables; none for all global variables.
        role: `model`: the client predicts with copies, which start at what the server sends.
            `offset`: it predicts with the sum of what the server sends and of copies, which start
            at 0 (FedRoD). `state`: it predicts with what the server sends; copies start at 0, and
            correct gradients (SCAFFOLD). What a client sends follows from its state, too.
        has_server_state: Whether the server has such a state, too, which starts at 0 and is sent;
            clients assign it, and the mean of their changes, times the share of clients that take
            part in a round, moves it.
        blends: Whether a `BlendPhase` brings copies nearer to what the server sent (FedALA).
        mixing: Where alpha starts, if a client mixes its copies with what the server sent, alpha *
            copy + (1 - alpha) * shared (APFL). Alpha is a local variable, too, `personal_mixing`,
            which phases hold between 0 and 1. None where it predicts with the copies alone.
        are_sent: Whether a client sends its copies' distance from what the server sent, in place
            of an update of what they copy (MR-MTL). They are no secret then.
    """

    layers: tuple[str, ...] = ()
    mixing: float | None = None
    are_sent: bool = False
    role: str = "model"
    has_server_state: bool = False
    blends: bool = False

    def __post_init__(self):
        check_choice("PersonalCopies", "role", self.role, ROLES)
        if self.role != "model" and (self.are_sent or self.mixing is not None):
            raise ValueError(f"PersonalCopies: a {self.role!r} is neither mixed nor sent.")
        if self.blends and (self.role != "model" or self.mixing is not None):
            raise ValueError("PersonalCopies: what blends is a model, and not mixed.")
        if self.has_server_state and self.role != "state":
            raise ValueError(f"PersonalCopies: has_server_state is for a state, not {self.role!r}.")
        if self.mixing is not None and not 0 <= self.mixing <= 1:
            raise ValueError(f"PersonalCopies: mixing must be from 0 to 1, not {self.mixing}.")

    @property
    def are_told(self) -> bool:
        """Whether what clients send follows from their copies, by the algorithm's own word."""
        return self.are_sent or self.role == "state"


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What a client makes of its state, or of the server's, after its phases: a weighted sum.

    Attributes:
        of: `personal`, the client's, or `server`, of which it sends the change.
        terms: What is added up, to its factor: `personal` and `server`, the states as the round
            found them; `sent`, the global variables as they were sent; `shared`, as the phases left
            them; and `slope`, the mean gradient along which the last phase went by plain SGD, (sent
            - shared) / (steps * rate).

    Examples:
        The client's part in SCAFFOLD, option II:

        >>> drift = fp.Assignment("personal", {"personal": 1.0, "server": -1.0, "slope": 1.0})
    """

    of: str
    terms: Mapping[str, float] = dataclasses.field(hash=False)

    def __post_init__(self):
        check_choice("Assignment", "of", self.of, TERMS[:2])
        for term in self.terms:
            check_choice("Assignment", "terms", term, TERMS)


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """What a client does in a round.

    Attributes:
        name: Name in tables and flags.
        phases: The phases, in order. The last one gives the client's training metrics and, by the
            examples it processed, its weight.
        local_variables: `none`; `rebuilt` from their initial value in every round; or `kept` by
            the client, from round to round.
        weighting: Weight of a client's update: `num_examples` of the last phase, or `uniform`.
        max_update_norm: Bound on the Euclidean norm of a client's whole update, which is scaled
            down to it; None for no bound.
        max_local_update_norm: The same of what a round changes in the local variables that a client
            keeps.
        personal: The copies of global variables that a client has for itself, or None.
        assignments: What is made of states after the phases, all of it from what they were before.
        server_remembers: Whether the server adds to each mean update the sum of all so far, each
            times the share of clients that took part (FedDyn).

    Examples:
        What `fed_recon` does: a client rebuilds what is local, and trains what is global from it.

        >>> sgd = tf.keras.optimizers.SGD(0.1)
        >>> rebuilding = fp.GradientPhase("local", "support", sgd, epochs=5)
        >>> training = fp.GradientPhase("global", "query", sgd)
        >>> algorithm = fp.Algorithm("own", (rebuilding, training), local_variables="rebuilt")
        >>> algorithm.keeps, algorithm.last_phase.variables
        (False, 'global')
    """

    name: str
    phases: tuple[Phase, ...]
    local_variables: str
    weighting: str = "num_examples"
    max_update_norm: float | None = None
    max_local_update_norm: float | None = None
    personal: PersonalCopies | None = None
    assignments: tuple[Assignment, ...] = ()
    server_remembers: bool = False

    def __post_init__(self):
        _check_positive(self, "max_update_norm", "max_local_update_norm")
        check_choice("Algorithm", "local_variables", self.local_variables, LOCAL_VARIABLES)
        check_choice("Algorithm", "weighting", self.weighting, WEIGHTINGS)
        if not self.phases or not isinstance(self.phases[-1], GradientPhase):
            raise ValueError(f"Algorithm {self.name!r}: the last phase must be a GradientPhase.")
        if self.personal and self.local_variables == "none":
            raise ValueError(f"Algorithm {self.name!r}: personal copies are rebuilt or kept.")
        self._check_states()

    def _check_states(self) -> None:
        """Raises a ValueError where a phase or an assignment asks for a state that there is not."""
        own = self.personal
        has = {"personal": bool(own and own.role == "state")}
        has["server"] = bool(own and own.has_server_state)
        if any(isinstance(phase, BlendPhase) for phase in self.phases) and not (own and own.blends):
            raise ValueError(f"Algorithm {self.name!r}: a BlendPhase needs PersonalCopies(blends).")
        asked = [term for phase in self.phases for term in getattr(phase, "corrections", {})]
        for one in self.assignments:
            asked += [one.of, *(term for term in one.terms if term in has)]
        for term in asked:
            if not has[term]:
                raise ValueError(
                    f"Algorithm {self.name!r}: it has no {term} state; give it "
                    "PersonalCopies(role='state', has_server_state=...)."
                )

    @property
    def last_phase(self) -> GradientPhase:
        """The phase that gives the metrics and the weight."""
        phase = self.phases[-1]
        assert isinstance(phase, GradientPhase)
        return phase

    @property
    def keeps(self) -> bool:
        """Whether clients keep their local variables from round to round."""
        return self.local_variables == "kept"

    def prepare(self, model: PartitionedModel) -> PartitionedModel:
        """Returns a model with the personal copies that the algorithm asks for."""
        if self.personal is None or model.copies:
            return model
        from fedpersonal.model.personal import PersonalModel

        own = self.personal
        return PersonalModel(
            model,
            own.layers,
            mixing=own.mixing,
            replaces=own.are_sent,
            role=own.role,
            has_server_state=own.has_server_state,
            blends=own.blends,
        )

    def at_round(self, round_number: tf.Tensor) -> Algorithm:
        """Returns the algorithm with the learning rates and passes of a round, an int32 tensor."""
        import tensorflow as tf

        scheduled: dict[int, AnyOptimizer] = {}

        def at_rate(optimizer: AnyOptimizer) -> AnyOptimizer:
            if not isinstance(optimizer, ScheduledOptimizer):
                return optimizer
            # One for each, since equal optimizers step together.
            return scheduled.setdefault(id(optimizer), optimizer.at_round(round_number))

        phases: list[Phase] = []
        for phase in self.phases:
            if isinstance(phase, GradientPhase):
                ahead = phase.ahead
                phase = dataclasses.replace(
                    phase,
                    optimizer=at_rate(phase.optimizer),
                    optimizers={name: at_rate(other) for name, other in phase.optimizers.items()},
                    ahead=ahead and dataclasses.replace(ahead, optimizer=at_rate(ahead.optimizer)),
                    passes=tf.minimum(round_number + 1, phase.epochs) if phase.grows else None,
                )
            phases.append(phase)
        return dataclasses.replace(self, phases=tuple(phases))

    def stateless_twin(self) -> Algorithm:
        """Returns the same phases with local variables that start afresh in every round."""
        return dataclasses.replace(self, name=f"{self.name}_stateless", local_variables="rebuilt")

    @property
    def touched_data(self) -> str:
        """The part of a client's data whose lookups the algorithm needs rows of its own for."""
        if self.personal is not None:
            return "all"
        moving = [p for p in self.phases if p.variables != "local"]
        ahead = self.last_phase.ahead
        is_alone = moving == [self.phases[-1]] and (ahead is None or ahead.data is None)
        return moving[0].data if is_alone else "all"

    def personalization(self, model: PartitionedModel) -> tuple[Phase, ...]:
        """Returns the phases by which a client builds its local variables before it predicts.

        Where the algorithm has phases that move local variables alone (FedRecon's reconstruction,
        FedRep's head), it is these, as in training. Where it trains both kinds together (FURL,
        FedPer), it is those phases restricted to the local variables, with the same optimizers and
        as many epochs, without looking ahead. A client that has kept local variables needs no
        phases.
        """
        if self.local_variables == "none":
            return ()
        # A copy that starts at what was sent has nothing to blend.
        phases = [phase for phase in self.phases if not isinstance(phase, BlendPhase)]
        moving = [[v for v in model.variables if phase.moves(v)] for phase in phases]
        alone = [p for p, own in zip(phases, moving) if own and all(v.is_local for v in own)]
        if alone:
            return tuple(alone)
        restricted = []
        for phase, own in zip(phases, moving):
            names = tuple(v.name for v in own if v.is_local)
            # A ridge phase moves local variables alone.
            if names and isinstance(phase, GradientPhase):
                is_all = len(names) == len(model.local_variables)
                variables: str | tuple[str, ...] = "local" if is_all else names
                pull = phase.proximal if model.copies else 0.0
                restricted.append(
                    dataclasses.replace(phase, variables=variables, proximal=pull, ahead=None)
                )
        return tuple(restricted)
