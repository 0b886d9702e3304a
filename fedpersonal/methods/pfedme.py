"""A shared model amid the personal ones: gradient descent on clients' Moreau envelopes.

T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020 (arXiv
2006.08848), Algorithm 1: on each batch, K steps from w lead to theta, near the minimum of the loss
+ lambda / 2 |theta - w|^2; then w moves by -eta * lambda * (w - theta). The server's beta is its
learning rate. A client predicts with its theta(w), to which steps of the same kind lead, as many
as --finetuning_epochs has.

Departures: nothing is kept, where the authors' code evaluates what a client's last round has left.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import GradientPhase, LookAhead, Phase
from fedpersonal.optimizers import optimizer
from fedpersonal.options import option


class PFedMe(Method, name="pfedme", title="pFedMe", reads=FinetuningOptions, finetunes="all"):
    """What a client of pFedMe does; SGD at `outer_learning_rate` is its client optimizer."""

    envelope: float = option(15.0, "pfedme: weight lambda of theta's pull to w.", above=0)
    inner = optimizer("inner", 0.01, "pfedme: SGD rate of theta.")
    inner_steps: int = option(5, "pfedme: steps K of theta on a batch.", at_least=1)
    outer = optimizer(
        "outer",
        0.01,
        "pfedme: SGD rate eta of w, in place of --client_learning_rate.",
        program="client",
    )

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, which moves w."""
        ahead = LookAhead(self.optimizer("inner"), self.inner_steps, envelope=self.envelope)
        return (self.phase(optimizer=self.optimizer("outer"), ahead=ahead),)

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns what leads a client to its theta(w) before it predicts."""
        work = self.finetuning_epochs, self.bound("max_finetuning_steps")
        pull = self.envelope
        return (GradientPhase("all", "all", self.optimizer("inner"), *work, proximal=pull),)


pfedme = constructor(PFedMe, optimizers=None, proximal=0.0)
