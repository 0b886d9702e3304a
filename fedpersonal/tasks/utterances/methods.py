"""FedPerC and its baselines (Silva et al., section 4): methods of this task alone.

Beside them stand other parts of a frozen base that are shared or each client's own, each with the
paper that it is from; `fedpersonal.models.adapters` says what the parts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedpersonal.methods.centralized import Centralized
from fedpersonal.methods.fedperc import FedPerc
from fedpersonal.methods.method import Layers, Method
from fedpersonal.methods.phases import Phase
from fedpersonal.optimizers import ScheduledOptimizer, Turn
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
# Yang et al., "Dual-Personalizing Adapter for Federated Foundation Models", NeurIPS 2024.
_DUAL = {"lora_a": "shared", "lora_b": "shared", "own_lora_a": "personal", "own_lora_b": "personal"}
# Layers of fedpersonal.models, which TensorFlow would come with.
EMBEDDING = "personal_embedding"
_HEAD = "personal_head"
_GENERATED = ("context_embedding", "personal_generator", "context_generator")


class _Language(Method):
    """A method that comes with a language model of its own.

    Attributes:
        model: `prefix`, `projected` or `generated` (prefixes, too), `split_head`, `shared_head` or
            `adapted`.
        parts: Of an adapted model: whose each is.
        own_layers: The layers that are each client's own.
        is_fresh: Whether heads start at random, instead of as the base model's.
    """

    model: ClassVar[str] = "prefix"
    parts: ClassVar[Mapping[str, str]] = {}
    own_layers: ClassVar[tuple[str, ...]] = ()
    is_fresh: ClassVar[bool] = False

    @classmethod
    def local_layers(cls, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the layers that are each client's own."""
        return cls.own_layers


class LanguageMethod(_Language, FedPerc):
    """What a client of FedPerC and its baselines does."""


class Adapted(LanguageMethod, model="adapted", finetunes="all"):
    """What a client does whose parts may learn at a rate of their own."""

    local_rate_factor: float = option(
        1.0, "The rate of local variables, by --client_learning_rate.", above=0, at_most=1e4
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, in which local variables have that rate."""
        if not self.own_layers or self.local_rate_factor == 1:
            return super().phases()
        own = self.optimizer("client", factor=self.local_rate_factor)
        return (self.phase(proximal=self.proximal, optimizers={"local": own}),)


class DualAdapted(Adapted):
    """What a client of FedDPA-T does (arXiv 2403.19211): the shared LoRA learns, then its own."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the two phases."""
        own = self.optimizer("client", factor=self.local_rate_factor)
        return self.phase("global", proximal=self.proximal), self.phase("local", optimizer=own)


class Alternating(Adapted, server_optimizer="sgd"):
    """What a client of RoLoRA does (Chen et al., NeurIPS 2025): a factor a round learns, B first.

    All clients have the same other factor then, so the mean of their factors has the mean of their
    products. That of factors which learn together, as in `lora`, has another.
    """

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, in which the factors take turns."""
        turns = {
            layer: ScheduledOptimizer(self.optimizer("client"), Turn(number, of=2))
            for number, layer in enumerate(("shared_lora_b", "shared_lora_a"))
        }
        return (self.phase(proximal=self.proximal, optimizers=turns),)


class Central(
    _Language,
    Centralized,
    trains_as="centralized",
    has_table=True,
    server_optimizer=None,
):
    """A method's model trained by a server with everybody's data: what it can come to.

    The server has a row for each user of what is otherwise the user's own.
    """


def _adapted(
    name: str, title: str, parts: Mapping[str, str], base: type[Adapted] = Adapted
) -> type[LanguageMethod]:
    own_layers = tuple(f"{whose}_{kind}" for kind, whose in parts.items() if whose == "personal")
    kept = "kept" if own_layers else "none"
    return base.variant(name, title, parts=parts, own_layers=own_layers, local_variables=kept)


def _central(method: type[LanguageMethod]) -> type[Central]:
    return Central.variant(
        f"central_{method.name}",
        f"{method.title} (Central)",
        trains_as="centralized",
        model=method.model,
        parts=method.parts,
    )


FEDERATED = (
    LanguageMethod.variant("fedperc", "FedPerC", own_layers=(EMBEDDING,), finetunes="all"),
    LanguageMethod.variant(
        "fedperc_generated",
        "FedPerC (Generated)",
        own_layers=(EMBEDDING,),
        model="generated",
        moving=_GENERATED,
        local_variables="rebuilt",
    ),
    *(
        LanguageMethod.variant(
            f"{name}{suffix}",
            f"{title}{note}",
            own_layers=own_layers,
            model=model,
            finetunes="all",
            is_fresh=bool(suffix),
            local_variables="kept" if own_layers else "none",
        )
        for name, title, own_layers, model in (
            ("split_learning", "Split-Learning", (_HEAD,), "split_head"),
            ("meta_learning", "Meta-Learning", (), "shared_head"),
        )
        for suffix, note in (("", ""), ("_fresh", " (Fresh)"))
    ),
    *(_adapted(name, *described) for name, described in _PARTS.items()),
    _adapted("feddpa", "FedDPA", _DUAL, DualAdapted),
    _adapted("rolora", "RoLoRA", _PARTS["lora"][1], Alternating),
)
# After Huber et al., "Embedding-to-Prefix", 2025 (arXiv 2505.17051). It needs a vector of each user
# from elsewhere, so tables have no row of it.
PROJECTED = LanguageMethod.variant(
    "fedperc_projected",
    "FedPerC (Projected)",
    model="projected",
    local_variables="none",
    finetunes="all",
)
METHODS = (
    *FEDERATED,
    PROJECTED,
    *(_central(m) for m in FEDERATED if m.own_layers and m.model in ("prefix", "adapted")),
)
