"""A personal model and the shared one, mixed as each client needs it.

Deng et al., "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461), Algorithm 1: at
each step, on the same batch, a client moves its copy w of the shared model on w's loss, and its own
model v, with w fixed, on the loss of the mixture alpha * v + (1 - alpha) * w, with which it
predicts. Adaptive alpha follows that loss, too, by a gradient step beside each of v's, and is held
between 0 and 1. Its own learning rate is an addition of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.algorithm import Algorithm, GradientPhase, PersonalCopies
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method
from fedpersonal.model.names import MIXING
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import option

if TYPE_CHECKING:
    import tensorflow_federated as tff


def apfl(
    *,
    client_optimizer: tff.learning.optimizers.Optimizer,
    local_optimizer: tff.learning.optimizers.Optimizer | None = None,
    mixing_optimizer: tff.learning.optimizers.Optimizer | None = None,
    mixing: float = 0.5,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: str = "num_examples",
    max_update_norm: float | None = None,
) -> Algorithm:
    """Returns the one phase of APFL.

    Args:
        client_optimizer: Optimizer of the shared model, w.
        local_optimizer: Optimizer of the client's own, v; None for the same.
        mixing_optimizer: Optimizer of alpha; None for that of v. SGD of rate 0 leaves alpha fixed.
        mixing: Where alpha starts.
        local_epochs: Passes over the client's data.
        max_local_steps: Bound on the steps of all epochs.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
    """
    own = {"local": local_optimizer} if local_optimizer else {}
    alpha = {MIXING: mixing_optimizer} if mixing_optimizer else {}
    phase = GradientPhase(
        "all", "all", client_optimizer, local_epochs, max_local_steps, {**own, **alpha}
    )
    copies = PersonalCopies(mixing=mixing)
    return Algorithm("apfl", (phase,), "kept", weighting, max_update_norm, personal=copies)


class ApflOptions(KeepingOptions):
    """What a client of APFL does."""

    mixing: float = option(0.5, "apfl: where a client's alpha starts.", at_least=0, at_most=1)
    mixing_learning_rate: float = option(0.01, "apfl: SGD rate of alpha; 0: fixed.", at_least=0)


def build(options: ApflOptions, layers: Layers) -> Algorithm:
    """Returns APFL as options describe it."""
    del layers
    algorithm = apfl(
        **options.local_work(),
        local_optimizer=options.local_optimizer(),
        mixing_optimizer=build_client_optimizer("sgd", options.mixing_learning_rate),
        mixing=options.mixing,
    )
    return options.settle(algorithm)


METHODS = (Method("apfl", "APFL", build, ApflOptions, has_copies=True),)
