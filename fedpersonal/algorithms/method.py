"""An algorithm by name: what a program can choose, and the options that it reads.

A file of this folder that has `METHODS` makes its methods known to every task whose model has the
layers that they need.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import fedpersonal.algorithms
from fedpersonal.algorithm import STARTS, Algorithm, GradientPhase, Phase
from fedpersonal.data.parts import SPLITS
from fedpersonal.model.names import MIXING
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import Options, option

if TYPE_CHECKING:
    import tensorflow_federated as tff


class ClientOptions(Options):
    """What a client does in a round."""

    client_optimizer: str = option("sgd", "A client's optimizer.", choices=("sgd", "adam"))
    client_learning_rate: float = option(
        0.5, "The rate of a client's optimizer.", above=0, in_help=True
    )
    local_epochs: int = option(1, "Passes over a client's examples in a round.", at_least=1)
    max_local_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)
    local_steps: int = option(
        0, "Steps on so many batches drawn at random, in place of epochs; 0: epochs.", at_least=0
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

    def local_work(self) -> dict[str, Any]:
        """Returns what every algorithm's factory takes of these."""
        optimizer = build_client_optimizer(self.client_optimizer, self.client_learning_rate)
        return {
            "client_optimizer": optimizer,
            "local_epochs": self.local_steps or self.local_epochs,
            "max_local_steps": self.local_steps or self.max_local_steps or None,
            "weighting": self.weighting,
            "max_update_norm": self.max_update_norm or None,
        }


class RebuildingOptions(Options):
    """How local variables are built where a client has kept none."""

    reconstruction_learning_rate: float = option(0.1, "SGD rate of local variables.", above=0)
    reconstruction_epochs: int = option(5, "Passes over the support set.", at_least=0)
    max_reconstruction_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)

    def rebuild_copies(
        self, phases: Sequence[Phase], variables: str | tuple[str, ...] = "personal"
    ) -> tuple[Phase, ...]:
        """Returns how a client that has kept nothing trains its copies, by phases that do so.

        `variables` are the copies, or names of these and of what moves beside them.
        """
        rate, most = self.reconstruction_learning_rate, self.max_reconstruction_steps
        return tuple(
            dataclasses.replace(
                phase,
                variables=variables,
                optimizer=build_client_optimizer("sgd", rate),
                optimizers={k: v for k, v in phase.optimizers.items() if k == MIXING},
                epochs=self.reconstruction_epochs,
                max_steps=most or None,
            )
            for phase in phases
            if isinstance(phase, GradientPhase)
        )


class KeepingOptions(ClientOptions, RebuildingOptions):
    """What a client does whose local variables are its own from round to round."""

    local_learning_rate: float = option(0.3, "SGD rate of local variables.", above=0)
    decay_rounds: int = option(
        0, "Rounds until the server's and local rates are 0; 0: constant.", at_least=0
    )
    max_local_update_norm: float = option(
        10.0, "Bound on what a round changes in a client's local variables; 0: none.", at_least=0
    )
    local_state: str = option(
        "kept",
        "Local variables: kept from round to round, or rebuilt in each.",
        choices=("kept", "rebuilt"),
    )
    start: str = option(
        "kept",
        "How seen clients are tested: with the local variables that they kept, with rebuilt ones, "
        "or with kept ones after more local steps.",
        choices=STARTS,
        may_differ=True,
    )

    def settle(self, algorithm: Algorithm) -> Algorithm:
        """Returns an algorithm with the bound on local variables, stateless where asked."""
        bound = self.max_local_update_norm or None
        bounded = dataclasses.replace(algorithm, max_local_update_norm=bound)
        return bounded if self.local_state == "kept" else bounded.stateless_twin()

    def local_optimizer(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer of local variables."""
        rate, rounds = self.local_learning_rate, self.decay_rounds
        return build_client_optimizer("sgd", rate, decay_rounds=rounds)


class PullOptions(KeepingOptions):
    """What a client does whose copy of the model is pulled to the shared one."""

    pull: float = option(
        1.0, "ditto, mr_mtl: weight lambda of a copy's pull to the shared model.", at_least=0
    )


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

    finetuning_learning_rate: float = option(0.1, "Rate of the client's optimizer.", above=0)
    finetuning_epochs: int = option(5, "Passes over the support set.", at_least=0)
    max_finetuning_steps: int = option(0, "Bound on their steps; 0: none.", at_least=0)


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of a task's model, by the part that they play.

    Attributes:
        embedding: Those that tell clients apart, such as a user embedding.
        head: The last ones.
        body: Those that turn inputs into a representation.
        table: Those that can have a row for each user, where a server has everybody's data.
        everything: All layers with variables that move, once the model is built.
    """

    embedding: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    everything: tuple[str, ...] = ()

    @property
    def own(self) -> tuple[str, ...]:
        """Those that are each client's own where an algorithm leaves it open."""
        return self.embedding or self.head

    def without(self, part: str) -> tuple[str, ...]:
        """Returns all layers but those of a part."""
        return tuple(name for name in self.everything if name not in getattr(self, part))


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm by name.

    Attributes:
        name: Its name in flags and files.
        title: Its name for people.
        build: Maps options and `Layers` to the algorithm.
        options: The options that it reads.
        local_part: The part of `Layers` that is each client's own, or None.
        needs: Further parts that a model must have.
        finetunes: What a client's copy moves before it predicts: `all`, `global` or a part; or
            None.
        adaptation: Maps options to the phases that do so; None for a phase as `FinetuningOptions`
            describe it.
        has_copies: Whether a client has personal copies of the model's global variables.
        is_federated: Whether clients train, or one server on everybody's data.
        trains: Whether there are rounds at all.
        has_table: Whether users' embeddings are rows of a table that the server has.
        server_optimizer: Its usual server optimizer, or None for the task's.
    """

    name: str
    title: str
    build: Callable[[Any, Layers], Algorithm]
    options: type[Options] = ClientOptions
    local_part: str | None = None
    needs: tuple[str, ...] = ()
    finetunes: str | None = None
    adaptation: Callable[[Any], tuple[Phase, ...]] | None = None
    has_copies: bool = False
    is_federated: bool = True
    trains: bool = True
    has_table: bool = False
    server_optimizer: str | None = None

    def fits(self, layers: Layers) -> bool:
        """Tells whether a model with these layers has what the method needs."""
        parts = {*self.needs, self.local_part, self.finetunes} - {"all", "global"}
        return all(getattr(layers, part) for part in parts if part)

    def local_layers(self, options: Options, layers: Layers) -> tuple[str, ...]:
        """Returns the layers that are each client's own."""
        has_option = hasattr(self.options, "local_layers")
        named = getattr(options, "local_layers", ()) if has_option else ()
        return named or (getattr(layers, self.local_part) if self.local_part else ())

    def finetuning(self, options: ClientOptions, layers: Layers) -> tuple[Phase, ...]:
        """Returns what a client's copy is trained by before it predicts."""
        if self.finetunes is None:
            return ()
        if self.adaptation is not None:
            return self.adaptation(options)
        # A part alone is fine-tuned as it would be rebuilt, for a fair comparison.
        is_whole = self.finetunes in ("all", "global")
        kind = "finetuning" if is_whole else "reconstruction"
        rate, epochs, max_steps = (
            getattr(options, name)
            for name in (f"{kind}_learning_rate", f"{kind}_epochs", f"max_{kind}_steps")
        )
        optimizer = build_client_optimizer(options.client_optimizer, rate)
        variables = self.finetunes if is_whole else getattr(layers, self.finetunes)
        phase = GradientPhase(variables, "all", optimizer, epochs, max_steps or None)
        return (phase,) if epochs else ()


def register(method: Method) -> None:
    """Makes a method of one's own known to every task that it fits, before a task is used."""
    _registered[method.name] = method


_registered: dict[str, Method] = {}


def methods() -> Mapping[str, Method]:
    """Returns every method by name, those of the files in this folder and those registered."""
    return {**_found(), **_registered}


@functools.cache
def _found() -> Mapping[str, Method]:
    names = [module.name for module in pkgutil.iter_modules(fedpersonal.algorithms.__path__)]
    files = [importlib.import_module(f"fedpersonal.algorithms.{name}") for name in names]
    return {method.name: method for file in files for method in getattr(file, "METHODS", ())}
