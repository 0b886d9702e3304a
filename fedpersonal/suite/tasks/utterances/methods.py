"""Methods of this task: FedPerC and its baselines (Silva et al., section 4), and adapters.

The adapters are parts of a frozen base that are shared or local, each with its paper;
`fedpersonal.suite.models.adapters` defines the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fedpersonal.methods.centralized import Centralized
from fedpersonal.methods.fedperc import FedPerc
from fedpersonal.methods.method import Layers, Method
from fedpersonal.methods.phases import Phase
from fedpersonal.optimizers import AlternatingRate, ScheduledOptimizer
from fedpersonal.options import option

# Parts of the adapted models, each shared or personal.
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
# Names of layers in fedpersonal.suite.models, which would import TensorFlow.
EMBEDDING = "personal_embedding"
_HEAD = "personal_head"
_GENERATED = ("context_embedding", "personal_generator", "context_generator")


class _Language(Method):
    """A method with its kind of language model.

    Attributes:
        model: `prefix`, `projected` or `generated` (prefixes, too), `split_head`, `shared_head` or
            `adapted`.
        parts: Part of an adapted model to `shared` or `personal`.
        client_layers: The method's local layers.
        is_fresh: Whether heads start at random, instead of as the base model's head.
    """

    model: ClassVar[str] = "prefix"
    parts: ClassVar[Mapping[str, str]] = {}
    client_layers: ClassVar[tuple[str, ...]] = ()
    is_fresh: ClassVar[bool] = False

    @classmethod
    def local_layers(cls, options: Any, layers: Layers) -> tuple[str, ...]:
        """Returns the method's local layers."""
        return cls.client_layers


class LanguageMethod(_Language, FedPerc):
    """The phases of a client of FedPerC and its baselines."""


class Adapted(LanguageMethod, model="adapted", finetunes="all"):
    """The phases of a client whose local parts may have a separate learning rate."""

    local_rate_factor: float = option(
        1.0,
        "The learning rate of local variables, as a multiple of --client_learning_rate.",
        above=0,
        at_most=1e4,
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, with a separate rate for local variables."""
        if not self.client_layers or self.local_rate_factor == 1:
            return super().phases()
        local = self.optimizer("client", factor=self.local_rate_factor)
        return (self.phase(proximal=self.proximal, optimizers={"local": local}),)


class DualAdapted(Adapted):
    """The phases of FedDPA-T (arXiv 2403.19211): the shared LoRA learns, then the local one."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the two phases."""
        local = self.optimizer("client", factor=self.local_rate_factor)
        return self.phase("global", proximal=self.proximal), self.phase("local", optimizer=local)


class Alternating(Adapted, server_optimizer="sgd"):
    """The phases of RoLoRA (Chen et al., NeurIPS 2025): one factor learns in a round, B first.

    All clients share the other factor in a round, so the product of the mean factors is the mean of
    the clients' products. It is not if both factors learn in a round, as in `lora`.
    """

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, in which the factors alternate by rounds."""
        optimizers = {
            layer: ScheduledOptimizer(self.optimizer("client"), AlternatingRate(number, period=2))
            for number, layer in enumerate(("shared_lora_b", "shared_lora_a"))
        }
        return (self.phase(proximal=self.proximal, optimizers=optimizers),)


class Central(
    _Language,
    Centralized,
    same_rounds_as="centralized",
    has_table=True,
    server_optimizer=None,
):
    """A method's model trained by a server with all users' data, an upper baseline.

    The server has a row for each user in place of the user's local parts.
    """


def _adapted(
    name: str, title: str, parts: Mapping[str, str], base: type[Adapted] = Adapted
) -> type[LanguageMethod]:
    client_layers = tuple(f"{role}_{kind}" for kind, role in parts.items() if role == "personal")
    kept = "kept" if client_layers else "none"
    return base.variant(name, title, parts=parts, client_layers=client_layers, local_variables=kept)


def _central(method: type[LanguageMethod]) -> type[Central]:
    return Central.variant(
        f"central_{method.name}",
        f"{method.title} (Central)",
        same_rounds_as="centralized",
        model=method.model,
        parts=method.parts,
    )


FEDERATED = (
    LanguageMethod.variant("fedperc", "FedPerC", client_layers=(EMBEDDING,), finetunes="all"),
    LanguageMethod.variant(
        "fedperc_generated",
        "FedPerC (Generated)",
        client_layers=(EMBEDDING,),
        model="generated",
        moving=_GENERATED,
        local_variables="rebuilt",
    ),
    *(
        LanguageMethod.variant(
            f"{name}{suffix}",
            f"{title}{note}",
            client_layers=client_layers,
            model=model,
            finetunes="all",
            is_fresh=bool(suffix),
            local_variables="kept" if client_layers else "none",
        )
        for name, title, client_layers, model in (
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
# from another source, so no table has rows for users.
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
    *(_central(m) for m in FEDERATED if m.client_layers and m.model in ("prefix", "adapted")),
)
