"""An algorithm of partially local federated learning as a short list of phases.

A new method is a new list of phases; `fedpersonal.methods` holds one file per paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedpersonal import former
from fedpersonal.data.shuffle import SHUFFLES, Shuffle
from fedpersonal.errors import check_choice
from fedpersonal.methods.phases import (
    STATES,
    BlendPhase,
    ChoicePhase,
    GradientPhase,
    Phase,
    RidgePhase,
    check_positive,
    count_passes,
    dividing_parts,
    restrict,
)
from fedpersonal.model.names import MIXING
from fedpersonal.optimizers import ScheduledOptimizer, convert_optimizers

if TYPE_CHECKING:
    import tensorflow as tf

    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.optimizers import AnyOptimizer

LOCAL_VARIABLES = ("none", "rebuilt", "kept")
# The local variables with which a client that has kept some predicts.
STARTS = ("kept", "rebuilt", "updated")
# Personal copies replace the variables that they copy, are added to them, or correct gradients.
ROLES = ("model", "offset", "state")
# The terms of an assignment's sum.
TERMS = (*STATES, "sent", "shared", "slope")
WEIGHTINGS = ("num_examples", "uniform")


@dataclasses.dataclass(frozen=True)
class PersonalCopies:
    """A client's personal copies of global variables, in the same shapes.

    They are local variables with the names `personal_copy/...`.

    Attributes:
        layers: Names of the copied layers or variables; empty for all global variables.
        role: `model`: the client predicts with the copies, which start at the values that the
            server sends. `offset`: the client predicts with the sum of the server's values and the
            copies, which start at 0 (FedRoD). `state`: the client predicts with the server's
            values; copies start at 0 and correct gradients (SCAFFOLD), so that the client's update
            depends on its state, too.
        has_server_state: Whether the server has such a state, too, which starts at 0 and is sent.
            Clients assign it. The sum of their changes, divided by the number of all clients that
            may take part, moves it.
        blends: Whether a `BlendPhase` moves copies towards the server's values (FedALA).
        mixing: Initial value of alpha, if a client mixes its copies with the server's values:
            alpha * copy + (1 - alpha) * shared (APFL). Alpha is a local variable, too,
            `personal_mixing`, which phases keep between 0 and 1. None if the client predicts with
            the copies alone.
        are_sent: Whether a client sends the distance of its copies from the server's values, in
            place of an update of the copied variables (MR-MTL). The copies are no secret then.
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
            raise ValueError(f"PersonalCopies: role {self.role!r} allows no mixing or are_sent.")
        if self.blends and (self.role != "model" or self.mixing is not None):
            raise ValueError("PersonalCopies: blends requires role 'model' without mixing.")
        if self.has_server_state and self.role != "state":
            raise ValueError(
                f"PersonalCopies: has_server_state requires role 'state', not {self.role!r}."
            )
        if self.mixing is not None and not 0 <= self.mixing <= 1:
            raise ValueError(f"PersonalCopies: mixing must be from 0 to 1, not {self.mixing}.")

    @property
    def reveals_copies(self) -> bool:
        """Whether clients' messages depend on their copies, as the algorithm declares."""
        return self.are_sent or self.role == "state"


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A weighted sum that a client assigns to its state, or the server's, after its phases.

    Attributes:
        of: The assigned state: `personal`, the client's, or `server`, whose change the client
            sends.
        terms: Term to factor. Terms are `personal` and `server`, the states at the start of the
            round; `sent`, the global variables as sent by the server; `shared`, the global
            variables after the phases; and `slope`, the mean gradient of the last phase's plain SGD
            steps, (sent - shared) / (steps * rate).

    Examples:
        The assignment of the client's state in SCAFFOLD, option II:

        >>> drift = fp.Assignment("personal", {"personal": 1.0, "server": -1.0, "slope": 1.0})
    """

    of: str
    terms: Mapping[str, float] = dataclasses.field(hash=False)

    def __post_init__(self):
        check_choice("Assignment", "of", self.of, STATES)
        for term in self.terms:
            check_choice("Assignment", "terms", term, TERMS)


@dataclasses.dataclass(frozen=True)
class Rebuilding:
    """How a client that has kept nothing builds its local variables before it predicts.

    Attributes:
        optimizer: The optimizer of the steps; None if there are none.
        epochs: Passes over the support set.
        max_steps: Bound on the number of steps of all epochs, or None.
        ridge: The phase that solves for the Keras model's local variables exactly, or None.
            Personal copies take gradient steps in any case.

    Examples:
        >>> sgd = tf.keras.optimizers.SGD(0.1)
        >>> algorithm = fp.furl(client_optimizer=sgd, reconstruction_optimizer=sgd)
        >>> algorithm.rebuilding.epochs
        5
    """

    optimizer: AnyOptimizer | None
    epochs: int
    max_steps: int | None = None
    ridge: RidgePhase | None = None

    def __post_init__(self):
        if self.optimizer is not None:
            convert_optimizers(self, "optimizer")

    @property
    def phase(self) -> Phase:
        """The phase that moves the local variables of the Keras model, not personal copies."""
        if self.ridge:
            return self.ridge
        assert self.optimizer is not None
        return GradientPhase("local", "all", self.optimizer, self.epochs, self.max_steps)

    def copy_rebuilding_phase(
        self, training: GradientPhase, variables: str | tuple[str, ...]
    ) -> Phase:
        """Returns the phase that builds personal copies, made from one that trains them.

        Args:
            training: The phase that trains the copies in a round.
            variables: The copies, and the variables that move together with them.
        """
        phase = dataclasses.replace(training, variables=variables)
        if self.optimizer is None:
            return phase
        return dataclasses.replace(
            phase,
            optimizer=self.optimizer,
            optimizers={k: v for k, v in phase.optimizers.items() if k == MIXING},
            epochs=self.epochs,
            max_steps=self.max_steps,
        )


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """The phases of a client's round, and how the server combines clients' updates.

    Attributes:
        name: Name in tables and flags.
        phases: The phases, in order. The last one yields the client's training metrics. The number
            of examples that it processes is the client's weight.
        local_variables: `none`; `rebuilt` from their initial value in every round; or `kept` by
            the client from round to round.
        weighting: Weight of a client's update: `num_examples` of the last phase, or `uniform`.
        max_update_norm: Bound on the Euclidean norm of a client's whole update, which is scaled
            down to it; None for no bound. States are no part of the update.
        max_local_update_norm: Bound on the Euclidean norm of a round's change of the local
            variables that a client keeps, except states.
        personal: A client's personal copies of global variables, or None.
        assignments: Assignments of states after the phases; all use the states before the round.
        server_has_memory: Whether the server adds to each mean update the sum of all clients'
            updates so far, divided by the number of all clients, for variables with a personal
            state (FedDyn).
        trains: Whether there are rounds. Without rounds nothing is ever sent: each client runs the
            phases on the initial weights before it predicts.
        rebuilding: How a client that has kept nothing builds its local variables before it
            predicts, see `personalization`; None to build them as the phases train them.

    Examples:
        The phases of `fed_recon`: a client rebuilds local variables, then trains global ones.

        >>> sgd = tf.keras.optimizers.SGD(0.1)
        >>> rebuilding = fp.GradientPhase("local", "support", sgd, epochs=5)
        >>> training = fp.GradientPhase("global", "query", sgd)
        >>> algorithm = fp.Algorithm("mine", (rebuilding, training), local_variables="rebuilt")
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
    server_has_memory: bool = False
    trains: bool = True
    rebuilding: Rebuilding | None = None

    server_remembers = former.FormerAttribute("server_has_memory")

    def __post_init__(self):
        check_positive(self, "max_update_norm", "max_local_update_norm")
        check_choice("Algorithm", "local_variables", self.local_variables, LOCAL_VARIABLES)
        check_choice("Algorithm", "weighting", self.weighting, WEIGHTINGS)
        if not self.phases or not isinstance(self.phases[-1], GradientPhase):
            raise ValueError(f"Algorithm {self.name!r}: the last phase must be a GradientPhase.")
        if self.personal and self.local_variables == "none":
            raise ValueError(
                f"Algorithm {self.name!r}: with personal copies, local_variables must be 'rebuilt' "
                "or 'kept'."
            )
        choices = [phase for phase in self.phases if isinstance(phase, ChoicePhase)]
        if choices and (len(choices) > 1 or self.personal or self.local_variables == "none"):
            raise ValueError(
                f"Algorithm {self.name!r}: there can be one ChoicePhase, without personal copies, "
                "and local_variables must be 'rebuilt' or 'kept'."
            )
        self._check_states()

    def _check_states(self) -> None:
        """Raises a ValueError if a phase or an assignment requires a missing state."""
        copies = self.personal
        has = {"personal": bool(copies and copies.role == "state")}
        has["server"] = bool(copies and copies.has_server_state)
        has_blend_phase = any(isinstance(phase, BlendPhase) for phase in self.phases)
        if has_blend_phase and not (copies and copies.blends):
            raise ValueError(f"Algorithm {self.name!r}: a BlendPhase needs PersonalCopies(blends).")
        if self.server_has_memory and not has["personal"]:
            raise ValueError(
                f"Algorithm {self.name!r}: server_has_memory needs PersonalCopies(role='state')."
            )
        required = [term for phase in self.phases for term in getattr(phase, "corrections", {})]
        for one in self.assignments:
            required += [one.of, *(term for term in one.terms if term in has)]
        for term in required:
            if not has[term]:
                raise ValueError(
                    f"Algorithm {self.name!r} has no {term} state; give it "
                    "PersonalCopies(role='state', has_server_state=...)."
                )

    @property
    def last_phase(self) -> GradientPhase:
        """The phase that yields the client's metrics and weight."""
        phase = self.phases[-1]
        assert isinstance(phase, GradientPhase)
        return phase

    @property
    def keeps(self) -> bool:
        """Whether clients keep their local variables from round to round."""
        return self.local_variables == "kept"

    @property
    def choice(self) -> ChoicePhase | None:
        """The phase that chooses or weights the server's models, or None."""
        return next((phase for phase in self.phases if isinstance(phase, ChoicePhase)), None)

    def finetuning(self, requested: Sequence[Phase] = ()) -> tuple[Phase, ...]:
        """Returns the phases before a prediction: the requested ones or, without rounds, all."""
        return tuple(requested) or (() if self.trains else self.phases)

    def prepare(self, model: PartitionedModel) -> PartitionedModel:
        """Returns a model with the personal copies or clusters that the algorithm requires."""
        if self.choice is not None and not model.num_clusters:
            from fedpersonal.model.clusters import ClusteredModel

            choice = self.choice
            return ClusteredModel(
                model,
                choice.clusters,
                choice.layers,
                has_shares=choice.mean_over == "cluster",
                mixes=choice.mixes,
            )
        if self.personal is None or model.copies:
            return model
        from fedpersonal.model.personal import PersonalModel

        copies = self.personal
        return PersonalModel(
            model,
            copies.layers,
            mixing=copies.mixing,
            replaces=copies.are_sent,
            role=copies.role,
            has_server_state=copies.has_server_state,
            blends=copies.blends,
        )

    def at_round(self, round_number: tf.Tensor) -> Algorithm:
        """Returns the algorithm with the learning rates and passes of a round, an int32 tensor."""
        import tensorflow as tf

        scheduled: dict[int, AnyOptimizer] = {}

        def at_rate(optimizer: AnyOptimizer) -> AnyOptimizer:
            if not isinstance(optimizer, ScheduledOptimizer):
                return optimizer
            # One object per original optimizer: variables with equal optimizers step together.
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

    def shuffle(self, when: str, *, batch_size: int, seed: int) -> Shuffle | None:
        """Returns the shuffle that orders clients' examples in a round; None for none.

        Args:
            when: `never`, `rounds` or `epochs`, as in `Trainer`.
            batch_size: Examples per batch.
            seed: The run's seed.
        """
        check_choice(f"Algorithm {self.name!r}", "shuffle", when, SHUFFLES)
        if when == "never":
            return None
        phases = [(count_passes(phase), dividing_parts(phase)) for phase in self.phases]
        if when == "rounds":
            every = dict.fromkeys(part for _, parts in phases for part in parts)
            phases = [(1, tuple(every))]
        passes: list[tuple[int, tuple[str, ...]]] = []
        for count, parts in phases:
            if passes and passes[-1][1] == parts:
                count += passes.pop()[0]
            passes += [(count, parts)] if count else []
        return Shuffle(tuple(passes), when == "epochs", batch_size, seed) if passes else None

    def stateless_twin(self) -> Algorithm:
        """Returns the same phases with local variables that are rebuilt in every round."""
        return dataclasses.replace(self, name=f"{self.name}_stateless", local_variables="rebuilt")

    @property
    def touched_data(self) -> str:
        """The part of a client's data for whose lookups the client needs its copies of rows."""
        if self.personal is not None:
            return "all"
        moving = [p for p in self.phases if p.variables != "local"]
        ahead = self.last_phase.ahead
        is_alone = moving == [self.phases[-1]] and (ahead is None or ahead.data is None)
        return moving[0].data if is_alone else "all"

    def personalization(self, model: PartitionedModel) -> tuple[Phase, ...]:
        """Returns the phases by which a client that has kept nothing builds its local variables.

        With `rebuilding`, a choice among the server's models comes first. The phase of `rebuilding`
        then builds the Keras model's local variables. Finally the phases that train personal copies
        build the copies together with the local variables, with the optimizer, epochs and steps of
        `rebuilding`.

        Without `rebuilding`, clients build local variables as they train them: by the phases that
        move only local variables (FedRep's head). If the algorithm trains local and global
        variables together (FURL, FedPer), it is by those phases restricted to the local variables,
        with the same optimizers and as many epochs, without looking ahead.

        Args:
            model: The model that evaluation applies, with its personal copies or clusters.
        """
        training = self._local_training_phases(model)
        if self.rebuilding is None:
            return training
        names = tuple(v.name for v in model.base.local_variables)
        phases = (self.rebuilding.phase,) if names else ()
        if self.personal:
            phases = tuple(restrict(phase, names) for phase in phases)
            # A user vector is part of the personal model, too.
            local: str | tuple[str, ...] = "personal"
            if names:
                local = tuple(v.name for v in model.local_variables)
            steps = [phase for phase in training if isinstance(phase, GradientPhase)]
            phases += tuple(self.rebuilding.copy_rebuilding_phase(phase, local) for phase in steps)
        return (self.choice, *phases) if self.choice else phases

    def _local_training_phases(self, model: PartitionedModel) -> tuple[Phase, ...]:
        """Returns the phases, restricted to local variables."""
        if self.local_variables == "none":
            return ()
        # A copy that starts at the server's values has nothing to blend.
        phases = [phase for phase in self.phases if not isinstance(phase, BlendPhase)]
        moving = [[v for v in model.variables if phase.moves(v)] for phase in phases]
        local_only = [p for p, vs in zip(phases, moving) if vs and all(v.is_local for v in vs)]
        if local_only:
            return tuple(local_only)
        restricted = []
        for phase, moved in zip(phases, moving):
            names = tuple(v.name for v in moved if v.is_local)
            # A ridge phase moves local variables only, and has been returned above.
            if names and isinstance(phase, GradientPhase):
                is_all = len(names) == len(model.local_variables)
                variables: str | tuple[str, ...] = "local" if is_all else names
                pull = phase.proximal if model.copies else 0.0
                restricted.append(
                    dataclasses.replace(phase, variables=variables, proximal=pull, ahead=None)
                )
        return tuple(restricted)


Algorithm.__init__ = former.renamed_arguments(  # type: ignore[method-assign]
    server_remembers="server_has_memory"
)(Algorithm.__init__)
