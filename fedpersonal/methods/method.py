"""A method: its name, its options and its phases, declared once.

Every task whose model has the layers that a method requires offers the methods that the files of
this folder declare.
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
from fedpersonal import former
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
from fedpersonal.options import OptionGroup, Options, join, option


class ClientOptions(Options):
    """Options of a client's training in a round."""

    client = optimizer(
        "client",
        0.5,
        "The rate of a client's optimizer.",
        kind_help="A client's optimizer.",
        in_help=True,
    )
    local_epochs: int = option(1, "Passes over a client's examples in a round.", at_least=1)
    max_local_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)
    local_steps: int = option(
        0, "Number of steps, each on a random batch, in place of epochs; 0: epochs.", at_least=0
    )
    shuffle: str = option(
        "epochs",
        "When each client's examples are shuffled and divided into batches: never, before each "
        "round, or before each epoch of a round.",
        choices=SHUFFLES,
    )
    weighting: str = option(
        "num_examples",
        "Weights of clients' updates: numbers of examples, or equal.",
        choices=("num_examples", "uniform"),
    )
    max_update_norm: float = option(0.0, "Bound on a client's update; 0: none.", at_least=0)

    def check(self) -> None:
        """Raises a `UserError` if one option makes another one have no effect."""
        super().check()
        if self.local_steps:
            where = f"with --local_steps={self.local_steps}"
            self.refuse_idle(
                "local_epochs", "max_local_steps", where=where, unless="--local_steps=0"
            )
            if self.shuffle == "rounds":
                raise UserError(
                    f"--shuffle=rounds has no effect {where}, which samples each round's examples "
                    "in a random order: give --shuffle=epochs, or leave it out."
                )


class RebuildingOptions(Options):
    """Options for building the local variables of a client that has kept none."""

    reconstruction: str = option(
        "gradient",
        "How local variables are rebuilt: by gradient steps, or by exact least squares.",
        choices=("gradient", "ridge"),
    )
    rebuilding = optimizer("reconstruction", 0.1, "SGD rate of local variables.", is_optional=True)
    reconstruction_epochs: int = option(5, "Passes over the support set.", at_least=0)
    max_reconstruction_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)
    ridge_l2: float = option(10.0, "Penalty of ridge reconstruction.", at_least=1e-6)
    ridge_bias_l2: float | None = option(
        None, "The penalty for scalar local variables. [default: --ridge_l2]", at_least=1e-6
    )


class KeepingOptions(ClientOptions, RebuildingOptions):
    """Options of a client that keeps its local variables from round to round."""

    local = optimizer("local", 0.3, "SGD rate of local variables.", decays=True, is_optional=True)
    max_local_update_norm: float = option(
        10.0, "Bound on a round's change of a client's local variables; 0: none.", at_least=0
    )
    local_state: str = option(
        "kept",
        "Whether local variables are kept from round to round, or rebuilt in each round.",
        choices=("kept", "rebuilt"),
    )
    local_start: str = option(
        "kept",
        "How seen clients are tested: with their kept local variables, with rebuilt ones, or with "
        "kept ones after more local steps.",
        choices=STARTS,
        may_differ=True,
    )


class PullOptions(KeepingOptions):
    """Options of a client whose personal copy is pulled towards the shared model."""

    pull: float = option(
        1.0, "ditto, mr_mtl: weight lambda of a copy's pull towards the shared model.", at_least=0
    )


class ClusterOptions(Options):
    """The option of methods with several server models."""

    num_clusters: int = option(2, "fed_em, ifca: number of models of the server.", at_least=2)


class SplitOptions(Options):
    """Options for splitting a client's examples between two phases."""

    support_query_split: str = option(
        "skip",
        "Support and query sets: alternate batches, halves, or all the data for both.",
        choices=tuple(SPLITS),
    )
    support_share: float = option(
        0.5, "Share of the batches in the support set, to 1 %.", at_least=0.01, at_most=0.99
    )


class FinetuningOptions(Options):
    """Options for training a client's copy of the model before it predicts."""

    tuning = optimizer("finetuning", 0.1, "Rate of the client's optimizer.", kind_from="client")
    finetuning_epochs: int = option(5, "Passes over the support set.", at_least=0)
    max_finetuning_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)


_AnyMethod = TypeVar("_AnyMethod", bound="Method")


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of a task's model, grouped by their role.

    A subclass, a frozen dataclass, may add roles, which methods name in the same way.

    Attributes:
        embedding: Layers that distinguish clients, such as a user embedding.
        head: The last layers.
        body: Layers that turn inputs into a representation.
        table: Layers that can have a row for each user, if a server has all users' data.
        per_client_items: Tables of items that each client can have besides the shared table.
        everything: All layers with trainable variables, once the model is built.
    """

    embedding: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    per_client_items: tuple[str, ...] = ()
    everything: tuple[str, ...] = ()

    own = former.FormerAttribute("default_local")

    @property
    def default_local(self) -> tuple[str, ...]:
        """The local layers of methods whose papers leave the choice open."""
        return self.embedding or self.head

    @property
    def shared_head(self) -> tuple[str, ...]:
        """The head; empty if the head is the embedding, which is local anyway."""
        return () if self.head == self.embedding else self.head

    def without(self, part: str) -> tuple[str, ...]:
        """Returns all layers except those of a role."""
        return tuple(name for name in self.everything if name not in getattr(self, part))


Layers.__init__ = former.renamed_arguments(**{"own_items": "per_client_items"})(  # type: ignore[method-assign]
    Layers.__init__
)
_renamed_traits = former.renamed_arguments(
    needs="required_layers",
    reads="extra_options",
    server_remembers="server_has_memory",
    trains_as="same_rounds_as",
)


class Method:
    """A method. Programs and commands can choose each subclass that has a name.

    Traits are class arguments, as in `class Ditto(FedRep, name="ditto", finetunes=None)`. They are
    inherited, except the name and the title. A method declares options as an `Options` class does,
    or names a class of options with `extra_options`. The options of a run, or the arguments of a
    program, are attributes of an instance.

    Attributes:
        name: Name in flags and files.
        title: Name in tables and titles.
        options: The class of the method's options.
        same_rounds_as: The method with the same rounds; the method itself by default.
        local_variables: `none`, `rebuilt` or `kept`.
        local_part: The role in `Layers` of the local layers, or None.
        required_layers: Further roles in `Layers` that a model must have.
        finetunes: The part of a client's copy that moves before it predicts: `all`, `global` or a
            role in `Layers`; or None.
        copies: A client's personal copies of global variables, or None.
        server_has_memory: As in `Algorithm`.
        is_federated: Whether clients train; otherwise one server trains on all clients' data.
        trains: Whether there are rounds at all.
        has_table: Whether users' embeddings are rows of a table on the server.
        server_optimizer: The default server optimizer, or None for the task's.
        server_learning_rate: The default learning rate of the server optimizer, or None for the
            optimizer's default.
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
    same_rounds_as: ClassVar[str] = ""
    local_variables: ClassVar[str] = "none"
    local_part: ClassVar[str | None] = None
    required_layers: ClassVar[tuple[str, ...]] = ()
    finetunes: ClassVar[str | None] = None
    copies: ClassVar[PersonalCopies | None] = None
    server_has_memory: ClassVar[bool] = False
    is_federated: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    has_table: ClassVar[bool] = False
    server_optimizer: ClassVar[str | None] = None
    server_learning_rate: ClassVar[float | None] = None

    trains_as = former.FormerAttribute("same_rounds_as")
    needs = former.FormerAttribute("required_layers")
    server_remembers = former.FormerAttribute("server_has_memory")

    @_renamed_traits
    def __init_subclass__(
        cls,
        *,
        name: str = "",
        title: str = "",
        extra_options: type[Options] | None = None,
        defaults: Mapping[str, Any] | None = None,
        **traits: Any,
    ):
        """Sets the traits, the options beyond those of the bases, and other default values."""
        super().__init_subclass__()
        for trait in traits:
            if not hasattr(cls, trait):
                nearest = did_you_mean(trait, [n for n in dir(Method) if n[0] != "_"])
                raise TypeError(f"{cls.__name__}: a method has no {trait!r}{nearest}")
        traits = {"same_rounds_as": name, **traits, "name": name, "title": title or name}
        for trait, value in traits.items():
            setattr(cls, trait, value)
        cls.options = _collect_options(cls, extra_options, defaults or {})

    def __init__(
        self,
        options: Any,
        layers: Layers | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ):
        """Stores the options and the layers.

        Args:
            options: The options of a run, or a program's arguments.
            layers: The layers of the model; None if no phase names any.
            extra_fields: Further fields of each `phase`.
        """
        self._options, self._extra_fields = options, extra_fields or {}
        self.layers = layers or Layers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)

    @classmethod
    def variant(cls: type[_AnyMethod], name: str, title: str, **traits: Any) -> type[_AnyMethod]:
        """Returns the same method under another name, with other traits."""
        body = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        return type(name, (cls,), body, name=name, title=title, **traits)

    @classmethod
    @_renamed_traits
    def finetuned(cls: type[_AnyMethod], **traits: Any) -> type[_AnyMethod]:
        """Returns the method whose clients fine-tune all variables before they predict."""
        defaults = {"extra_options": FinetuningOptions, "finetunes": "all"}
        traits = {**defaults, **traits, "same_rounds_as": cls.name}
        return cls.variant(f"{cls.name}_finetuning", f"{cls.title} + fine-tuning", **traits)

    @classmethod
    def fits(cls, layers: Layers) -> bool:
        """Reports whether a model with these layers has all that the method requires.

        A role that the model's `Layers` do not have counts as empty.
        """
        parts = {*cls.required_layers, cls.local_part, cls.finetunes} - {"all", "global"}
        return all(getattr(layers, part, ()) for part in parts if part)

    @classmethod
    def missing_parts(cls, layers: Layers) -> list[str]:
        """Returns the names of the required roles that these layers lack."""
        parts = {*cls.required_layers, cls.local_part, cls.finetunes} - {"all", "global", "", None}
        return sorted(str(part) for part in parts if not getattr(layers, str(part), ()))

    @classmethod
    def local_layers(cls, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the local layers."""
        has_option = "local_layers" in cls.options.declarations()
        named = options.local_layers if has_option else ()
        return named or (getattr(layers, cls.local_part) if cls.local_part else ())

    @classmethod
    def build(cls, options: Any, layers: Layers) -> Algorithm:
        """Returns the algorithm that the options describe."""
        return cls(options, layers).algorithm()

    @classmethod
    def finetuning(cls, options: Any, layers: Layers) -> tuple[Phase, ...]:
        """Returns the phases that train a client's copy before it predicts."""
        return cls(options, layers).adaptation()

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phases of a round, for subclasses to override; by default one for all."""
        return (self.phase(),)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phases that train a client's copy before it predicts."""
        if self.finetunes is None:
            return ()
        # A single part is fine-tuned in the way it would be rebuilt, for a fair comparison.
        is_whole = self.finetunes in ("all", "global")
        kind = "finetuning" if is_whole else "reconstruction"
        epochs, most = getattr(self, f"{kind}_epochs"), self.bound(f"max_{kind}_steps")
        variables = self.finetunes if is_whole else getattr(self.layers, self.finetunes)
        moves = self.optimizer(kind, kind_from="client")
        return (GradientPhase(variables, "all", moves, epochs, most),) if epochs else ()

    def rebuilding(self) -> Rebuilding | None:
        """Returns how a client that has kept nothing builds its local variables.

        None if a program passes no optimizer for it: they are then built as they are trained.
        """
        if not hasattr(self._options, "reconstruction"):
            return None
        ridge = None
        if self.reconstruction == "ridge":
            ridge = RidgePhase("all", self.ridge_l2, self.ridge_bias_l2)
            if not self.personal():  # Only personal copies would take gradient steps.
                return Rebuilding(None, 0, ridge=ridge)
        optimizer, epochs = self.optimizer("reconstruction"), self.reconstruction_epochs
        if optimizer is None and not ridge:
            return None
        return Rebuilding(optimizer, epochs, self.bound("max_reconstruction_steps"), ridge)

    def personal(self) -> PersonalCopies | None:
        """Returns a client's personal copies of global variables."""
        return self.copies

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns the assignments of states after the phases."""
        return ()

    def algorithm(self) -> Algorithm:
        """Returns the algorithm: the phases of a round and their settings."""
        algorithm = Algorithm(
            self.same_rounds_as,
            self.phases(),
            self.local_variables,
            self.weighting,
            self.bound("max_update_norm"),
            personal=self.personal(),
            assignments=self.assignments(),
            server_has_memory=self.server_has_memory,
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
        """Returns a phase with the numbers of epochs and steps that the options set.

        Args:
            variables: The variables that move: `global`, `local`, `all` or `personal`; or names of
                layers and variables.
            data: The batches: `support`, `query`, `first_half`, `second_half` or `all`.
            **others: Other fields of the `GradientPhase`.

        Raises:
            TypeError: If `GradientPhase` has no such field.
        """
        field_names = [field.name for field in dataclasses.fields(GradientPhase)]
        for name in others:
            if name not in field_names:
                nearest = did_you_mean(name, field_names)
                raise TypeError(f"phase: GradientPhase has no field {name!r}{nearest}")
        if "optimizer" not in others:
            others["optimizer"] = self.optimizer("client")
        epochs, most = self.local_steps or self.local_epochs, self.bound("max_local_steps")
        fields = {"epochs": epochs, "max_steps": self.local_steps or most, **self._extra_fields}
        return GradientPhase(variables, data, **{**fields, **others})

    def optimizer(self, prefix: str, **changes: Any) -> Any:
        """Returns the optimizer of a group of options, or None if a program passes none."""
        return self._options.build(prefix, **changes)

    def bound(self, name: str) -> Any:
        """Returns a bound, or None for no bound, which is 0 in options."""
        value = getattr(self, name)
        return value or None if isinstance(self._options, Options) else value


def _collect_options(
    cls: type[Method], extra_options: type[Options] | None, defaults: Mapping[str, Any]
) -> type[Options]:
    """Removes the options that a method declares; returns the class of all its options."""
    body = {n: v for n, v in vars(cls).items() if isinstance(v, (dataclasses.Field, OptionGroup))}
    for name in body:
        delattr(cls, name)
    bases = [base.options for base in cls.__bases__ if issubclass(base, Method)]
    classes = [*dict.fromkeys([*bases, *([extra_options] if extra_options else [])])]
    name = f"{cls.__name__}Options"
    joined = join(name, *classes) if len(classes) > 1 else classes[0]
    if not body and not defaults:
        return joined
    types = {n: t for n, t in vars(cls).get("__annotations__", {}).items() if n in body}
    dunders = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__annotations__": types}
    return type(name, (joined,), {**dunders, **body}, defaults=defaults)


def register(method: type[Method]) -> type[Method]:
    """Makes every task whose model fits a user's method offer that method."""
    if not (isinstance(method, type) and issubclass(method, Method) and method.name):
        raise TypeError(f"register: {method!r} is no subclass of Method with a name.")
    _registered[method.name] = method
    return method


_registered: dict[str, type[Method]] = {}


def methods() -> Mapping[str, type[Method]]:
    """Returns every method by name: those of the files in this folder and registered ones."""
    return {**_builtin_methods(), **_registered}


def methods_in(module: types.ModuleType) -> list[type[Method]]:
    """Returns the methods that a file declares, in the order of the file."""
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Method)]
    return [c for c in classes if c.name and c.__module__ == module.__name__]


@functools.cache
def _builtin_methods() -> Mapping[str, type[Method]]:
    names = [module.name for module in pkgutil.iter_modules(fedpersonal.methods.__path__)]
    files = [importlib.import_module(f"fedpersonal.methods.{name}") for name in names]
    return {method.name: method for file in files for method in methods_in(file)}
