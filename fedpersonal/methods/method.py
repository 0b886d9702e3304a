"""A method: its name, its options and its phases, declared once.

A file of this folder makes the methods that it declares known to every task whose model has the
layers that they need.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import types
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import fedpersonal.methods
from fedpersonal.data.shuffle import SHUFFLES
from fedpersonal.data.splits import SPLITS
from fedpersonal.errors import UserError, did_you_mean
from fedpersonal.methods.algorithm import (
    STARTS,
    Algorithm,
    Assignment,
    PersonalCopies,
    Rebuilding,
)
from fedpersonal.methods.phases import GradientPhase, Phase, RidgePhase
from fedpersonal.optimizers import optimizer
from fedpersonal.options import Family, Options, join, option


class ClientOptions(Options):
    """What a client does in a round."""

    client = optimizer(
        "client",
        0.5,
        "The rate of a client's optimizer.",
        kinds="A client's optimizer.",
        in_help=True,
    )
    local_epochs: int = option(1, "Passes over a client's examples in a round.", at_least=1)
    max_local_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)
    local_steps: int = option(
        0, "Steps on so many batches drawn at random, in place of epochs; 0: epochs.", at_least=0
    )
    shuffle: str = option(
        "epochs",
        "When each client's examples are shuffled and cut into batches anew: never, or before "
        "each round, or before each epoch of a round.",
        choices=SHUFFLES,
    )
    weighting: str = option(
        "num_examples", "Clients' weights: examples, or equal.", choices=("num_examples", "uniform")
    )
    max_update_norm: float = option(0.0, "Bound on a client's update; 0: none.", at_least=0)

    def check(self) -> None:
        """Raises a `UserError` where one option would make another one idle."""
        super().check()
        if self.local_steps:
            where = f"with --local_steps={self.local_steps}"
            self.refuse_idle(
                "local_epochs", "max_local_steps", where=where, unless="--local_steps=0"
            )
            if self.shuffle == "rounds":
                raise UserError(
                    f"--shuffle=rounds has no effect {where}, which draws each round's examples in "
                    "a random order: give --shuffle=epochs, or leave it out."
                )


class RebuildingOptions(Options):
    """How local variables are built where a client has kept none."""

    reconstruction: str = option(
        "gradient",
        "How local variables are built: by gradient steps, or by exact least squares.",
        choices=("gradient", "ridge"),
    )
    rebuilding = optimizer("reconstruction", 0.1, "SGD rate of local variables.", stand_in=True)
    reconstruction_epochs: int = option(5, "Passes over the support set.", at_least=0)
    max_reconstruction_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)
    ridge_l2: float = option(10.0, "Penalty of ridge reconstruction.", at_least=1e-6)
    ridge_bias_l2: float | None = option(
        None, "The same for scalar local variables. [default: --ridge_l2]", at_least=1e-6
    )


class KeepingOptions(ClientOptions, RebuildingOptions):
    """What a client does whose local variables are its own from round to round."""

    local = optimizer("local", 0.3, "SGD rate of local variables.", decays=True, stand_in=True)
    max_local_update_norm: float = option(
        10.0, "Bound on what a round changes in a client's local variables; 0: none.", at_least=0
    )
    local_state: str = option(
        "kept",
        "Local variables: kept from round to round, or rebuilt in each.",
        choices=("kept", "rebuilt"),
    )
    local_start: str = option(
        "kept",
        "How seen clients are tested: with the local variables that they kept, with rebuilt ones, "
        "or with kept ones after more local steps.",
        choices=STARTS,
        may_differ=True,
    )


class PullOptions(KeepingOptions):
    """What a client does whose copy of the model is pulled to the shared one."""

    pull: float = option(
        1.0, "ditto, mr_mtl: weight lambda of a copy's pull to the shared model.", at_least=0
    )


class ClusterOptions(Options):
    """How many models the server has."""

    num_clusters: int = option(2, "fed_em, ifca: how many models the server has.", at_least=2)


class SplitOptions(Options):
    """How a client's examples are split for two phases."""

    support_query_split: str = option(
        "skip",
        "Support and query sets: alternate batches, halves, or both all the data.",
        choices=tuple(SPLITS),
    )
    support_share: float = option(
        0.5, "Share of the batches in the support set, to 1 %.", at_least=0.01, at_most=0.99
    )


class FinetuningOptions(Options):
    """How a client's copy of the model is trained before it predicts."""

    tuning = optimizer("finetuning", 0.1, "Rate of the client's optimizer.", kind_of="client")
    finetuning_epochs: int = option(5, "Passes over the support set.", at_least=0)
    max_finetuning_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)


_Own = TypeVar("_Own", bound="Method")


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of a task's model, by the part that they play.

    A subclass, a frozen dataclass, may add parts, which methods then name as they name these.

    Attributes:
        embedding: Those that tell clients apart, such as a user embedding.
        head: The last ones.
        body: Those that turn inputs into a representation.
        table: Those that can have a row for each user, where a server has everybody's data.
        own_items: Tables of items that each client can have beside the shared one.
        everything: All layers with variables that move, once the model is built.
    """

    embedding: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    own_items: tuple[str, ...] = ()
    everything: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[str, ...]:
        """Those that are each client's own where an algorithm leaves it open."""
        return self.embedding or self.head

    @property
    def shared_head(self) -> tuple[str, ...]:
        """The head, but where it is what tells clients apart, and each client's own anyway."""
        return () if self.head == self.embedding else self.head

    def without(self, part: str) -> tuple[str, ...]:
        """Returns all layers but those of a part."""
        return tuple(name for name in self.everything if name not in getattr(self, part))


class Method:
    """A method; a subclass with a name is one that programs and commands can choose.

    Facts are given with the class, `class Ditto(FedRep, name="ditto", finetunes=None)`, and are
    inherited, but for the name and the title. Options are declared in it as in an `Options` class,
    or named by `reads`. An instance has the options of a run, or what a program gives, as its
    attributes.

    Attributes:
        name: Its name in flags and files.
        title: Its name for people.
        options: The class of the options that it reads.
        trains_as: The method whose rounds these are; itself unless given.
        local_variables: `none`, `rebuilt` or `kept`.
        local_part: The part of `Layers` that is each client's own, or None.
        needs: Further parts that a model must have.
        finetunes: What a client's copy moves before it predicts: `all`, `global` or a part; or
            None.
        copies: The copies of global variables that a client has for itself, or None.
        server_remembers: As of `Algorithm`.
        is_federated: Whether clients train, or one server on everybody's data.
        trains: Whether there are rounds at all.
        has_table: Whether users' embeddings are rows of a table that the server has.
        server_optimizer: Its usual server optimizer, or None for the task's.
        server_learning_rate: The usual rate of that, or None for the optimizer's.
        layers: The layers of the model.

    Examples:
        >>> class InTurn(fp.Method, name="in_turn", local_variables="kept", local_part="head"):
        ...     def phases(self):
        ...         return self.phase("local"), self.phase("global")
        >>> in_turn = fp.constructor(InTurn)
        >>> algorithm = in_turn(client_optimizer=tf.keras.optimizers.SGD(0.1), local_epochs=3)
        >>> [(phase.variables, phase.epochs) for phase in algorithm.phases]
        [('local', 3), ('global', 3)]
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    options: ClassVar[type[Options]] = ClientOptions
    trains_as: ClassVar[str] = ""
    local_variables: ClassVar[str] = "none"
    local_part: ClassVar[str | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    finetunes: ClassVar[str | None] = None
    copies: ClassVar[PersonalCopies | None] = None
    server_remembers: ClassVar[bool] = False
    is_federated: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    has_table: ClassVar[bool] = False
    server_optimizer: ClassVar[str | None] = None
    server_learning_rate: ClassVar[float | None] = None

    def __init_subclass__(
        cls,
        *,
        name: str = "",
        title: str = "",
        reads: type[Options] | None = None,
        defaults: Mapping[str, Any] | None = None,
        **facts: Any,
    ):
        """Takes the facts, the options that it reads beside its bases', and other defaults."""
        super().__init_subclass__()
        for fact in facts:
            if not hasattr(cls, fact):
                nearest = did_you_mean(fact, [n for n in dir(Method) if n[0] != "_"])
                raise TypeError(f"{cls.__name__}: a method has no {fact!r}{nearest}")
        facts = {"trains_as": name, **facts, "name": name, "title": title or name}
        for fact, value in facts.items():
            setattr(cls, fact, value)
        cls.options = _options_of(cls, reads, defaults or {})

    def __init__(
        self, options: Any, layers: Layers | None = None, further: Mapping[str, Any] | None = None
    ):
        """Keeps what it is given.

        Args:
            options: The options of a run, or what a program gives in their place.
            layers: The layers of the model; None where no phase names any.
            further: Further fields of each `phase`.
        """
        self._options, self._further = options, further or {}
        self.layers = layers or Layers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)

    @classmethod
    def variant(cls: type[_Own], name: str, title: str, **facts: Any) -> type[_Own]:
        """Returns the same method under another name, with other facts."""
        body = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        return type(name, (cls,), body, name=name, title=title, **facts)

    @classmethod
    def finetuned(cls: type[_Own], **facts: Any) -> type[_Own]:
        """Returns the method whose clients fine-tune all variables before they predict."""
        facts = {"reads": FinetuningOptions, "finetunes": "all", **facts, "trains_as": cls.name}
        return cls.variant(f"{cls.name}_finetuning", f"{cls.title} + fine-tuning", **facts)

    @classmethod
    def fits(cls, layers: Layers) -> bool:
        """Tells whether a model with these layers has what the method needs.

        A part that the model's `Layers` do not have is missing, as an empty one is.
        """
        parts = {*cls.needs, cls.local_part, cls.finetunes} - {"all", "global"}
        return all(getattr(layers, part, ()) for part in parts if part)

    @classmethod
    def missing_parts(cls, layers: Layers) -> list[str]:
        """Returns the parts of a model that the method needs and these layers lack, by name."""
        parts = {*cls.needs, cls.local_part, cls.finetunes} - {"all", "global", "", None}
        return sorted(str(part) for part in parts if not getattr(layers, str(part), ()))

    @classmethod
    def local_layers(cls, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the layers that are each client's own."""
        has_option = "local_layers" in cls.options.declarations()
        named = options.local_layers if has_option else ()
        return named or (getattr(layers, cls.local_part) if cls.local_part else ())

    @classmethod
    def build(cls, options: Any, layers: Layers) -> Algorithm:
        """Returns what a client does in a round, as options describe it."""
        return cls(options, layers).algorithm()

    @classmethod
    def finetuning(cls, options: Any, layers: Layers) -> tuple[Phase, ...]:
        """Returns what a client's copy is trained by before it predicts."""
        return cls(options, layers).adaptation()

    def phases(self) -> tuple[Phase, ...]:
        """Returns what a client does in a round; for subclasses. All variables, unless given."""
        return (self.phase(),)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns what a client's copy is trained by before it predicts."""
        if self.finetunes is None:
            return ()
        # A part alone is fine-tuned as it would be rebuilt, for a fair comparison.
        is_whole = self.finetunes in ("all", "global")
        kind = "finetuning" if is_whole else "reconstruction"
        epochs, most = getattr(self, f"{kind}_epochs"), self.bound(f"max_{kind}_steps")
        variables = self.finetunes if is_whole else getattr(self.layers, self.finetunes)
        moves = self.optimizer(kind, kind_of="client")
        return (GradientPhase(variables, "all", moves, epochs, most),) if epochs else ()

    def rebuilding(self) -> Rebuilding | None:
        """Returns how a client that has kept nothing builds its local variables.

        None where a program gives no optimizer for it: they are then built as they are trained.
        """
        if not hasattr(self._options, "reconstruction"):
            return None
        ridge = None
        if self.reconstruction == "ridge":
            ridge = RidgePhase("all", self.ridge_l2, self.ridge_bias_l2)
            if not self.personal():  # No copies take steps.
                return Rebuilding(None, 0, ridge=ridge)
        optimizer, epochs = self.optimizer("reconstruction"), self.reconstruction_epochs
        if optimizer is None and not ridge:
            return None
        return Rebuilding(optimizer, epochs, self.bound("max_reconstruction_steps"), ridge)

    def personal(self) -> PersonalCopies | None:
        """Returns the copies of global variables that a client has for itself."""
        return self.copies

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns what a client makes of states after the phases."""
        return ()

    def algorithm(self) -> Algorithm:
        """Returns what a client does in a round."""
        algorithm = Algorithm(
            self.trains_as,
            self.phases(),
            self.local_variables,
            self.weighting,
            self.bound("max_update_norm"),
            personal=self.personal(),
            assignments=self.assignments(),
            server_remembers=self.server_remembers,
            rebuilding=self.rebuilding(),
        )
        if "local_state" not in self.options.declarations() or self.local_variables != "kept":
            return algorithm
        most = self.bound("max_local_update_norm")
        algorithm = dataclasses.replace(algorithm, max_local_update_norm=most)
        return algorithm if self.local_state == "kept" else algorithm.stateless_twin()

    def phase(
        self, variables: str | tuple[str, ...] = "all", data: str = "all", **others: Any
    ) -> GradientPhase:
        """Returns a phase of as many epochs and steps as options say.

        Args:
            variables: What moves: `global`, `local`, `all` or `personal`; or names of layers and
                variables.
            data: On which batches: `support`, `query`, `first_half`, `second_half` or `all`.
            **others: Other fields of the `GradientPhase`.

        Raises:
            TypeError: If it has no such field.
        """
        known = [field.name for field in dataclasses.fields(GradientPhase)]
        for name in others:
            if name not in known:
                nearest = did_you_mean(name, known)
                raise TypeError(f"phase: GradientPhase has no field {name!r}{nearest}")
        if "optimizer" not in others:
            others["optimizer"] = self.optimizer("client")
        epochs, most = self.local_steps or self.local_epochs, self.bound("max_local_steps")
        fields = {"epochs": epochs, "max_steps": self.local_steps or most, **self._further}
        return GradientPhase(variables, data, **{**fields, **others})

    def optimizer(self, prefix: str, **changes: Any) -> Any:
        """Returns the optimizer of a family of options, or None where a program gives none."""
        return self._options.build(prefix, **changes)

    def bound(self, name: str) -> Any:
        """Returns a bound, of which options say 0 for none."""
        value = getattr(self, name)
        return value or None if isinstance(self._options, Options) else value


def _options_of(
    cls: type[Method], reads: type[Options] | None, defaults: Mapping[str, Any]
) -> type[Options]:
    """Takes the options that a method declares out of it; returns the class of all it reads."""
    body = {n: v for n, v in vars(cls).items() if isinstance(v, (dataclasses.Field, Family))}
    for name in body:
        delattr(cls, name)
    bases = [base.options for base in cls.__bases__ if issubclass(base, Method)]
    classes = [*dict.fromkeys([*bases, *([reads] if reads else [])])]
    name = f"{cls.__name__}Options"
    joined = join(name, *classes) if len(classes) > 1 else classes[0]
    if not body and not defaults:
        return joined
    types = {n: t for n, t in vars(cls).get("__annotations__", {}).items() if n in body}
    traits = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__annotations__": types}
    return type(name, (joined,), {**traits, **body}, defaults=defaults)


def register(method: type[Method]) -> type[Method]:
    """Makes a method of one's own known to every task that it fits."""
    if not (isinstance(method, type) and issubclass(method, Method) and method.name):
        raise TypeError(f"register: {method!r} is no subclass of Method with a name.")
    _registered[method.name] = method
    return method


_registered: dict[str, type[Method]] = {}


def methods() -> Mapping[str, type[Method]]:
    """Returns every method by name, those of the files in this folder and those registered."""
    return {**_found(), **_registered}


def methods_in(module: types.ModuleType) -> list[type[Method]]:
    """Returns the methods that a file declares, in its order."""
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
    return [c for c in classes if c.name and c.__module__ == module.__name__]


@functools.cache
def _found() -> Mapping[str, type[Method]]:
    names = [module.name for module in pkgutil.iter_modules(fedpersonal.methods.__path__)]
    files = [importlib.import_module(f"fedpersonal.methods.{name}") for name in names]
    return {method.name: method for file in files for method in methods_in(file)}
