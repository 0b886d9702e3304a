"""An algorithm of partially local federated learning as a short list of phases.

A new method is a new list of phases; `fedpersonal.methods` holds one file a paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
# What a client that has kept local variables predicts with.
STARTS = ("kept", "rebuilt", "updated")
# What personal copies are: in place of what they copy, added to it, or beside the model.
ROLES = ("model", "offset", "state")
# Of what assignments are made.
TERMS = (*STATES, "sent", "shared", "slope")
WEIGHTINGS = ("num_examples", "uniform")


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
            clients assign it, and the sum of their changes, over the number of all clients that
            may take part, moves it.
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
        check_choice("Assignment", "of", self.of, STATES)
        for term in self.terms:
            check_choice("Assignment", "terms", term, TERMS)


@dataclasses.dataclass(frozen=True)
class Rebuilding:
    """How a client that has kept nothing builds its local variables before it predicts.

    Attributes:
        optimizer: The optimizer of the steps; None where there are none.
        epochs: Passes over its support set.
        max_steps: Bound on the steps of all epochs together, or None.
        ridge: The phase that solves the Keras model's local variables exactly, or None. Personal
            copies take steps in any case.

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
        """The phase that moves local variables, but copies."""
        if self.ridge:
            return self.ridge
        assert self.optimizer is not None
        return GradientPhase("local", "all", self.optimizer, self.epochs, self.max_steps)

    def of_copies(self, trained: GradientPhase, variables: str | tuple[str, ...]) -> Phase:
        """Returns the phase that moves copies, and what moves with them, as a phase trains them."""
        phase = dataclasses.replace(trained, variables=variables)
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
    """What a client does in a round.

    Attributes:
        name: Name in tables and flags.
        phases: The phases, in order. The last one gives the client's training metrics and, by the
            examples it processed, its weight.
        local_variables: `none`; `rebuilt` from their initial value in every round; or `kept` by
            the client, from round to round.
        weighting: Weight of a client's update: `num_examples` of the last phase, or `uniform`.
        max_update_norm: Bound on the Euclidean norm of a client's whole update, which is scaled
            down to it; None for no bound. States are no part of the update.
        max_local_update_norm: The same of what a round changes in the local variables that a client
            keeps, but for states.
        personal: The copies of global variables that a client has for itself, or None.
        assignments: What is made of states after the phases, all of it from what they were before.
        server_remembers: Whether the server adds to each mean update the sum of all clients'
            updates so far over the number of all clients, of variables with a personal state
            (FedDyn).
        trains: Whether there are rounds. Where there are none, nothing is ever sent: the phases are
            what a client does with the initial weights before it predicts.
        rebuilding: How a client that has kept nothing builds its local variables before it
            predicts, see `personalization`; None: as the phases train them.

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
    trains: bool = True
    rebuilding: Rebuilding | None = None

    def __post_init__(self):
        check_positive(self, "max_update_norm", "max_local_update_norm")
        check_choice("Algorithm", "local_variables", self.local_variables, LOCAL_VARIABLES)
        check_choice("Algorithm", "weighting", self.weighting, WEIGHTINGS)
        if not self.phases or not isinstance(self.phases[-1], GradientPhase):
            raise ValueError(f"Algorithm {self.name!r}: the last phase must be a GradientPhase.")
        if self.personal and self.local_variables == "none":
            raise ValueError(f"Algorithm {self.name!r}: personal copies are rebuilt or kept.")
        choices = [phase for phase in self.phases if isinstance(phase, ChoicePhase)]
        if choices and (len(choices) > 1 or self.personal or self.local_variables == "none"):
            raise ValueError(
                f"Algorithm {self.name!r}: a ChoicePhase is the only one, goes with no personal "
                "copies, and makes a choice that is rebuilt or kept."
            )
        self._check_states()

    def _check_states(self) -> None:
        """Raises a ValueError where a phase or an assignment asks for a state that there is not."""
        own = self.personal
        has = {"personal": bool(own and own.role == "state")}
        has["server"] = bool(own and own.has_server_state)
        if any(isinstance(phase, BlendPhase) for phase in self.phases) and not (own and own.blends):
            raise ValueError(f"Algorithm {self.name!r}: a BlendPhase needs PersonalCopies(blends).")
        if self.server_remembers and not has["personal"]:
            raise ValueError(
                f"Algorithm {self.name!r}: server_remembers needs PersonalCopies(role='state')."
            )
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

    @property
    def choice(self) -> ChoicePhase | None:
        """The phase by which a client chooses or weighs the server's models, or None."""
        return next((phase for phase in self.phases if isinstance(phase, ChoicePhase)), None)

    def finetuning(self, given: Sequence[Phase] = ()) -> tuple[Phase, ...]:
        """Returns what a client does before it predicts: what is given, or, without rounds, all."""
        return tuple(given) or (() if self.trains else self.phases)

    def prepare(self, model: PartitionedModel) -> PartitionedModel:
        """Returns a model with the personal copies or clusters that the algorithm asks for."""
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

    def shuffle(self, when: str, *, batch_size: int, seed: int) -> Shuffle | None:
        """Returns what draws the orders in which clients take their examples; None for none.

        Args:
            when: `never`, `rounds` or `epochs`, as of `Trainer`.
            batch_size: Examples of a batch.
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
        """Returns the phases by which a client that has kept nothing builds its local variables.

        With `rebuilding`, a choice among the server's models comes first. Local variables of the
        Keras model follow, by its phase; then personal copies, together with them: in the phases
        that train copies, with the optimizer, epochs and steps of `rebuilding`.

        Without `rebuilding`, clients build local variables as they train them: by the phases that
        move local variables alone (FedRep's head); or, where the algorithm trains both kinds
        together (FURL, FedPer), by those phases restricted to the local variables, with the same
        optimizers and as many epochs, without looking ahead.

        Args:
            model: The model that evaluation applies, with its personal copies or clusters.
        """
        trained = self._training_of_local(model)
        if self.rebuilding is None:
            return trained
        names = tuple(v.name for v in model.base.local_variables)
        phases = (self.rebuilding.phase,) if names else ()
        if self.personal:
            phases = tuple(restrict(phase, names) for phase in phases)
            # A user's vector is of its personal model, too.
            local: str | tuple[str, ...] = "personal"
            if names:
                local = tuple(v.name for v in model.local_variables)
            steps = [phase for phase in trained if isinstance(phase, GradientPhase)]
            phases += tuple(self.rebuilding.of_copies(phase, local) for phase in steps)
        return (self.choice, *phases) if self.choice else phases

    def _training_of_local(self, model: PartitionedModel) -> tuple[Phase, ...]:
        """Returns the phases as they train local variables alone."""
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
