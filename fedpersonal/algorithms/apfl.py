"""A personal model and the shared one, mixed as each client needs it.

Deng et al., "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461), Algorithm 1: at
each step, on the same batch, a client moves its copy w of the shared model on w's loss, and its own
model v, with w fixed, on the loss of the mixture alpha * v + (1 - alpha) * w, with which it
predicts. Adaptive alpha follows that loss, too, by a gradient step beside each of v's, and is held
between 0 and 1.

Departures: alpha has a learning rate of its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedpersonal.algorithm import Algorithm, PersonalCopies
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method
from fedpersonal.model.names import MIXING
from fedpersonal.optimizers.named import build_client_optimizer
from fedpersonal.options import option

if TYPE_CHECKING:
    import tensorflow_federated as tff


def apfl(
    *,
    local_optimizer: tff.learning.optimizers.Optimizer | None = None,
    mixing_optimizer: tff.learning.optimizers.Optimizer | None = None,
    mixing: float = 0.5,
    **options: Any,
) -> Algorithm:
    """Returns the one phase of APFL.

    Args:
        local_optimizer: Optimizer of the client's own model, v; None for that of the shared one, w.
        mixing_optimizer: Optimizer of alpha; None for that of v. SGD of rate 0 leaves alpha fixed.
        mixing: Where alpha starts.
        **options: Of `fed_avg`; `client_optimizer` moves w.
    """
    others = {"local": local_optimizer, MIXING: mixing_optimizer}
    given = {name: optimizer for name, optimizer in others.items() if optimizer}
    copies = PersonalCopies(mixing=mixing)
    return dataclasses.replace(
        fed_avg(**options, optimizers=given), name="apfl", local_variables="kept", personal=copies
    )


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
