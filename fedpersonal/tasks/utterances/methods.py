"""FedPerC and its baselines (Silva et al., section 4): methods of this task alone.

Beside them stand other parts of a frozen base that are shared or each client's own, each with the
paper that it is from; `fedpersonal.models.adapted_language_model` says what the parts are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms import centralized
from fedpersonal.algorithms.fed_prox import FedProxOptions
from fedpersonal.algorithms.fedperc import fedperc
from fedpersonal.algorithms.method import ClientOptions, FinetuningOptions, Layers, Method
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import option

# Parts of the adapted models: whose each is.
_PARTS = {
    # FedAvg of what Lester et al. tune (EMNLP 2021).
    "shared_prefix": ("Shared prefix", {"prefix": "shared"}),
    "shared_bias": ("Shared bias", {"bias": "shared"}),
    # Arivazhagan et al., 2019 (arXiv 1912.00818): personal layers, the smallest one.
    "personal_bias": ("Personal bias", {"bias": "personal"}),
    "meta_learning_bias": (
        "Meta-Learning + personal bias",
        {"head": "shared", "bias": "personal"},
    ),
    # Li and Liang, ACL 2021.
    "shared_layer_prefix": ("Shared prefix-tuning", {"layer_prefix": "shared"}),
    "personal_layer_prefix": ("Personal prefix-tuning", {"layer_prefix": "personal"}),
    # Hu et al., ICLR 2022, averaged.
    "lora": ("LoRA", {"lora_a": "shared", "lora_b": "shared"}),
    "lora_bias": (
        "LoRA + personal bias",
        {"lora_a": "shared", "lora_b": "shared", "bias": "personal"},
    ),
    # Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024.
    "ffa_lora": ("FFA-LoRA", {"lora_b": "shared"}),
    # Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025.
    "fedsa_lora": ("FedSA-LoRA", {"lora_a": "shared", "lora_b": "personal"}),
    "personal_lora": ("Personal LoRA", {"lora_b": "personal"}),
}
# Layers of fedpersonal.models, which TensorFlow would come with.
EMBEDDING = "personal_embedding"
_HEAD = "personal_head"
_GENERATED = ("context_embedding", "personal_generator", "context_generator")


class FedPercOptions(FedProxOptions, FinetuningOptions, defaults={"weighting": "uniform"}):
    """What a client of FedPerC and its baselines does."""


class AdapterOptions(FedPercOptions):
    """What a client does whose parts may learn at a rate of their own."""

    local_rate_factor: float = option(
        1.0, "The rate of local variables, by --client_learning_rate.", above=0, at_most=1e4
    )


@dataclasses.dataclass(frozen=True)
class LanguageMethod(Method):
    """A method that comes with a language model of its own.

    Attributes:
        model: `prefix`, `generated` (a prefix), `split_head`, `shared_head` or `adapted`.
        parts: Of an adapted model: whose each is.
        own_layers: The layers that are each client's own.
        is_fresh: Whether heads start at random, instead of as the base model's.
    """

    model: str = "prefix"
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
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


def _adapted(name: str, title: str, parts: Mapping[str, str]) -> LanguageMethod:
    own_layers = tuple(f"{whose}_{kind}" for kind, whose in parts.items() if whose == "personal")

    def build(options: AdapterOptions, layers: Layers) -> Algorithm:
        algorithm = fedperc(**options.local_work(), proximal=options.proximal)
        rate = options.client_learning_rate * options.local_rate_factor
        own = build_client_optimizer(options.client_optimizer, rate)
        optimizers = {"local": own} if own_layers and options.local_rate_factor != 1 else {}
        phase = dataclasses.replace(algorithm.last_phase, optimizers=optimizers)
        kept = "kept" if own_layers else "none"
        return dataclasses.replace(algorithm, name=name, phases=(phase,), local_variables=kept)

    return LanguageMethod(
        name,
        title,
        build,
        AdapterOptions,
        model="adapted",
        parts=parts,
        own_layers=own_layers,
        finetunes="all",
    )


def _central(method: LanguageMethod) -> LanguageMethod:
    """Returns the method's model trained by a server with everybody's data: what it can come to.

    The server has a row for each user of what is otherwise the user's own.
    """
    return LanguageMethod(
        f"central_{method.name}",
        f"{method.title} (Central)",
        centralized.build,
        ClientOptions,
        model=method.model,
        parts=method.parts,
        is_federated=False,
        has_table=True,
    )


FEDERATED = (
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
    *(_adapted(name, *told) for name, told in _PARTS.items()),
)
METHODS = (
    *FEDERATED,
    *(_central(m) for m in FEDERATED if m.own_layers and m.model in ("prefix", "adapted")),
)
