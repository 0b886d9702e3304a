"""A shared model trained by gradient descent on the Moreau envelopes of clients' losses.

T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020 (arXiv
2006.08848), Algorithm 1: on each batch, K steps from w yield theta, near the minimum of the loss
+ lambda / 2 |theta - w|^2. Then w moves by -eta * lambda * (w - theta). The server's learning rate
is beta. A client predicts with its theta(w), which it reaches by steps of the same kind, for
--finetuning_epochs.

Departures: clients keep nothing; the authors' code evaluates the result of a client's last round.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import GradientPhase, LookAhead, Phase
from fedpersonal.optimizers import optimizer
from fedpersonal.options import option


class PFedMe(
    Method, name="pfedme", title="pFedMe", extra_options=FinetuningOptions, finetunes="all"
):
    """pFedMe: one phase moves w. The client optimizer is SGD at `outer_learning_rate`."""

    envelope: float = option(15.0, "pfedme: weight lambda of theta's pull towards w.", above=0)
    inner = optimizer("inner", 0.01, "pfedme: SGD rate of theta.")
    inner_steps: int = option(5, "pfedme: steps K of theta on a batch.", at_least=1)
    outer = optimizer(
        "outer",
        0.01,
        "pfedme: SGD rate eta of w, in place of --client_learning_rate.",
        parameter_prefix="client",
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, which moves w."""
        ahead = LookAhead(self.optimizer("inner"), self.inner_steps, envelope=self.envelope)
        return (self.phase(optimizer=self.optimizer("outer"), ahead=ahead),)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phase that computes a client's theta(w) before it predicts."""
        work = self.finetuning_epochs, self.bound("max_finetuning_steps")
        pull = self.envelope
        return (GradientPhase("all", "all", self.optimizer("inner"), *work, proximal=pull),)


pfedme = constructor(PFedMe, optimizers=None, proximal=0.0)
