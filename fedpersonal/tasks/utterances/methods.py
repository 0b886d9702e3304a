"""FedPerC and its baselines (Silva et al., section 4): methods of this task alone."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms.fed_prox import FedProxOptions
from fedpersonal.algorithms.fedperc import fedperc
from fedpersonal.algorithms.method import FinetuningOptions, Layers, Method

# Layers of fedpersonal.models, which TensorFlow would come with.
EMBEDDING = "personal_embedding"
_HEAD = "personal_head"
_GENERATED = ("context_embedding", "personal_generator", "context_generator")


class FedPercOptions(FedProxOptions, FinetuningOptions, defaults={"weighting": "uniform"}):
    """What a client of FedPerC and its baselines does."""


@dataclasses.dataclass(frozen=True)
class LanguageMethod(Method):
    """A method that comes with a language model of its own.

    Attributes:
        model: `prefix`, `generated` (a prefix), `split_head` or `shared_head`.
        own_layers: The layers that are each client's own.
        is_fresh: Whether heads start at random, instead of as the base model's.
    """

    model: str = "prefix"
    own_layers: tuple[str, ...] = ()
    is_fresh: bool = False

    def local_layers(self, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the layers that are each client's own."""
        return self.own_layers


def _method(name: str, title: str, local_variables: str, **traits: Any) -> LanguageMethod:
    def build(options: FedPercOptions, layers: Layers) -> Algorithm:
        algorithm = fedperc(
            **options.local_work(),
            proximal=options.proximal,
            layers=_GENERATED if name == "fedperc_generated" else None,
        )
        return dataclasses.replace(algorithm, name=name, local_variables=local_variables)

    return LanguageMethod(name, title, build, FedPercOptions, **traits)


METHODS = (
    _method("fedperc", "FedPerC", "kept", own_layers=(EMBEDDING,), finetunes="all"),
    _method(
        "fedperc_generated",
        "FedPerC (Generated)",
        "rebuilt",
        own_layers=(EMBEDDING,),
        model="generated",
    ),
    *(
        _method(
            f"{name}{suffix}",
            f"{title}{note}",
            "kept" if own_layers else "none",
            own_layers=own_layers,
            model=model,
            finetunes="all",
            is_fresh=bool(suffix),
        )
        for name, title, own_layers, model in (
            ("split_learning", "Split-Learning", (_HEAD,), "split_head"),
            ("meta_learning", "Meta-Learning", (), "shared_head"),
        )
        for suffix, note in (("", ""), ("_fresh", " (Fresh)"))
    ),
)
