"""Meta-learning without a query set or second derivatives: a few steps adapt the shared model.

Nichol, Achiam and Schulman, "On First-Order Meta-Learning Algorithms", 2018 (arXiv 1803.02999),
Algorithm 1 in its batch version: clients take several SGD steps from the shared weights. The shared
weights then move by a share epsilon towards the mean of the clients' weights. Before it predicts, a
client takes steps of the same kind, as set by --finetuning_epochs and --max_finetuning_steps.
Epsilon is the server's learning rate, --server_learning_rate, 0.5 by default; with --decay_rounds
it falls to 0 as in the paper. All clients have equal weights in the paper: commands need
--weighting=uniform.

Departures: clients use SGD; the paper's experiments use Adam without momentum. Clients take their
batches in turn, unless --local_steps samples each at random.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import GradientPhase, Phase


class Reptile(
    Method,
    name="reptile",
    title="Reptile",
    extra_options=FinetuningOptions,
    defaults={"weighting": "uniform"},
    finetunes="all",
    server_optimizer="sgd",
    server_learning_rate=0.5,
):
    """Reptile: FedAvg's phase, and the same steps before a client predicts.

    Examples:
        >>> algorithm = fp.reptile(client_optimizer=tf.keras.optimizers.SGD(0.1), local_epochs=3)
        >>> algorithm.weighting, [phase.epochs for phase in algorithm.phases]
        ('uniform', [3])
    """

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the phase before a client predicts, with the learning rate of its rounds."""
        work = self.finetuning_epochs, self.bound("max_finetuning_steps")
        return (GradientPhase("all", "all", self.optimizer("client"), *work),)


reptile = constructor(Reptile, optimizers=None, proximal=0.0)
