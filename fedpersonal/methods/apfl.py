"""A personal model and the shared one, mixed as each client needs it.

Deng et al., "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461), Algorithm 1: at
each step, on the same batch, a client moves its copy w of the shared model on w's loss, and its own
model v, with w fixed, on the loss of the mixture alpha * v + (1 - alpha) * w, with which it
predicts. Adaptive alpha follows that loss, too, by a gradient step beside each of v's, and is held
between 0 and 1.

Departures: alpha has a learning rate of its own.
"""

from __future__ import annotations

from fedpersonal.methods.algorithm import PersonalCopies
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase
from fedpersonal.model.names import MIXING
from fedpersonal.optimizers import optimizer
from fedpersonal.options import option


class Apfl(Method, name="apfl", title="APFL", reads=KeepingOptions, local_variables="kept"):
    """What a client of APFL does."""

    copies = PersonalCopies(mixing=0.5)
    mixing: float = option(0.5, "apfl: where a client's alpha starts.", at_least=0, at_most=1)
    alpha = optimizer(
        "mixing", 0.01, "apfl: SGD rate of alpha; 0: fixed.", at_least=0, stand_in=True
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, in which the shared model, v and alpha move."""
        others = {"local": self.optimizer("local"), MIXING: self.optimizer("mixing")}
        return (self.phase(optimizers={name: o for name, o in others.items() if o}),)

    def personal(self) -> PersonalCopies:
        """Returns the client's own model v, and alpha."""
        return PersonalCopies(mixing=self.mixing)


apfl = constructor(Apfl, proximal=0.0)
