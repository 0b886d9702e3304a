"""A mixture of a personal model and the shared one, with an adaptive weight for each client.

Deng et al., "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461), Algorithm 1: at
each step, a client makes two updates on the same batch. It moves its copy w of the shared model on
w's loss. It moves its personal model v, with w fixed, on the loss of the mixture alpha * v +
(1 - alpha) * w, with which it predicts. Adaptive alpha takes a gradient step on that loss with each
step of v, and is kept between 0 and 1.

Departures: alpha has a separate learning rate.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase
from fedpersonal.model.names import MIXING
from fedpersonal.optimizers import optimizer
from fedpersonal.options import option


class Apfl(Method, name="apfl", title="APFL", extra_options=KeepingOptions, local_variables="kept"):
    """APFL: one phase moves the shared model, the personal model v and alpha."""

    copies = PersonalCopies(mixing=0.5)
    mixing: float = option(0.5, "apfl: initial value of a client's alpha.", at_least=0, at_most=1)
    alpha = optimizer(
        "mixing", 0.01, "apfl: SGD rate of alpha; 0: fixed.", at_least=0, is_optional=True
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, which moves the shared model, v and alpha."""
        others = {"local": self.optimizer("local"), MIXING: self.optimizer("mixing")}
        return (self.phase(optimizers={name: o for name, o in others.items() if o}),)

    def personal(self) -> PersonalCopies:
        """Returns the personal model v, and alpha."""
        return PersonalCopies(mixing=self.mixing)


apfl = constructor(Apfl, proximal=0.0)
