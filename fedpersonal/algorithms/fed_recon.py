"""Federated Reconstruction.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning", NeurIPS 2021
(arXiv 2102.03448), Algorithm 1. Local variables are rebuilt in every round from the support set
with the global ones frozen; then the global ones are updated on the query set with the local ones
frozen.

Departures: exact (ridge) reconstruction is an addition of ours; section 4 leaves R open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpersonal.algorithm import Algorithm, GradientPhase, Phase, RidgePhase
from fedpersonal.algorithms import method
from fedpersonal.algorithms.method import (
    ClientOptions,
    Layers,
    Method,
    RebuildingOptions,
    SplitOptions,
)
from fedpersonal.data.parts import SPLITS, split_parts
from fedpersonal.errors import check_choice
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import option

if TYPE_CHECKING:
    import tensorflow_federated as tff


def fed_recon(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    reconstruction_optimizer: tff.learning.optimizers.Optimizer | None = None,
    reconstruction: str = "gradient",
    support_query_split: str = "skip",
    support_share: float = 0.5,
    reconstruction_epochs: int = 1,
    growing_reconstruction: bool = False,
    max_reconstruction_steps: int | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    joint_training: bool = False,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns FedRecon's two phases (section 4: R on the support set, U on the query set).

    Args:
        client_optimizer: Optimizer of the global variables, U.
        reconstruction_optimizer: Optimizer of the local variables, R; unused by `ridge`.
        reconstruction: `gradient`, or `ridge`: exact least squares, for models whose output is
            linear in the local variables.
        support_query_split: S, the dataset split function. `skip`: batches 0, 2, 4... are the
            support set, the others the query set. `aggregated`: the first half of the batches and
            the second. `shared`: both are all the data (appendix D).
        support_share: Share of the batches in the support set, to 1 %, unless both are all.
        reconstruction_epochs: Passes over the support set.
        growing_reconstruction: Whether round n, from 1, makes at most n of these passes, as an
            option of the paper's reference code has it.
        max_reconstruction_steps: Bound on the reconstruction steps of all epochs, k_r.
        local_epochs: Passes over the query set.
        max_local_steps: Bound on the update steps of all epochs, k_u.
        joint_training: Whether the update phase moves the local variables too.
        ridge_l2: Weight of the local variables' squared norm in the `ridge` reconstruction.
        ridge_bias_l2: The same for scalar local variables; None stands for `ridge_l2`.
        weighting: `num_examples` (of the query set, n_i) or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.

    Raises:
        ValueError: If an option is none of the values listed, or gradient reconstruction has no
            optimizer.
    """
    check_choice("fed_recon", "reconstruction", reconstruction, ("gradient", "ridge"))
    check_choice("fed_recon", "support_query_split", support_query_split, tuple(SPLITS))
    support, query = split_parts(support_query_split, support_share)
    if reconstruction == "ridge":
        rebuild: Phase = RidgePhase(data=support, l2=ridge_l2, bias_l2=ridge_bias_l2)
    elif reconstruction_optimizer is None:
        raise ValueError("fed_recon: gradient reconstruction needs a reconstruction_optimizer.")
    else:
        steps = reconstruction_epochs, max_reconstruction_steps
        optimizer, grows = reconstruction_optimizer, growing_reconstruction
        rebuild = GradientPhase("local", support, optimizer, *steps, grows=grows)
    moving = "all" if joint_training else "global"
    update = GradientPhase(moving, query, client_optimizer, local_epochs, max_local_steps)
    return Algorithm("fed_recon", (rebuild, update), "rebuilt", weighting, max_update_norm)


class FedReconOptions(ClientOptions, RebuildingOptions, SplitOptions):
    """What a client of FedRecon does."""

    reconstruction: str = option(
        "gradient", "Gradient steps, or exact least squares.", choices=("gradient", "ridge")
    )
    growing_reconstruction: bool = option(
        False, "Round n, from 1, makes at most n of the --reconstruction_epochs; evaluation all."
    )
    joint_training: bool = option(False, "Move local variables in the update phase too.")
    ridge_l2: float = option(10.0, "Penalty of ridge reconstruction.", at_least=1e-6)
    ridge_bias_l2: float | None = option(
        None, "The same for scalar local variables. [default: --ridge_l2]", at_least=1e-6
    )

    def split_options(self) -> dict[str, Any]:
        """Returns how clients' batches are split, as `split_support_query` takes it."""
        return {"split": self.support_query_split, "support_share": self.support_share}


class _Finetuned(FedReconOptions, method.FinetuningOptions):
    """FedRecon, and fine-tuning."""


def build(options: FedReconOptions, layers: Layers) -> Algorithm:
    """Returns FedRecon as options describe it."""
    del layers
    optimizer = build_client_optimizer("sgd", options.reconstruction_learning_rate)
    return fed_recon(
        **options.local_work(),
        reconstruction_optimizer=optimizer,
        reconstruction=options.reconstruction,
        support_query_split=options.support_query_split,
        support_share=options.support_share,
        growing_reconstruction=options.growing_reconstruction,
        reconstruction_epochs=options.reconstruction_epochs,
        max_reconstruction_steps=options.max_reconstruction_steps or None,
        joint_training=options.joint_training,
        ridge_l2=options.ridge_l2,
        ridge_bias_l2=options.ridge_bias_l2,
    )


def rebuilding(options: FedReconOptions) -> tuple[Phase, ...]:
    """Returns the reconstruction alone, for clients of any method that have kept nothing."""
    return build(options, Layers()).phases[:1]


METHODS = (
    Method("fed_recon", "FedRecon", build, FedReconOptions, local_part="own"),
    Method(
        "fed_recon_finetuning",
        "FedRecon + fine-tuning",
        build,
        _Finetuned,
        local_part="own",
        finetunes="global",
    ),
)
