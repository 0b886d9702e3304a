"""A shared model from which a few steps lead far, without a second set or a second derivative.

Nichol, Achiam and Schulman, "On First-Order Meta-Learning Algorithms", 2018 (arXiv 1803.02999),
Algorithm 1 in its batch version: clients take several steps of SGD from the shared weights, and
these move by epsilon towards the mean of where the clients end. Before it predicts, a client takes
steps of the same kind, as many as --finetuning_epochs and --max_finetuning_steps say. Epsilon is
the server's learning rate, by --server_learning_rate, usually 0.5; with --decay_rounds it falls to
0 as in the paper. The paper's clients count alike: commands need --weighting=uniform.

Departures: clients step by SGD, where the paper's experiments use Adam without momentum; they pass
over their batches in turn, unless --local_steps draws each at random.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import GradientPhase, Phase


class Reptile(
    Method,
    name="reptile",
    title="Reptile",
    reads=FinetuningOptions,
    defaults={"weighting": "uniform"},
    finetunes="all",
    server_optimizer="sgd",
    server_learning_rate=0.5,
):
    """What a client of Reptile does: FedAvg's steps, and the same before it predicts.

    Examples:
        >>> algorithm = fp.reptile(client_optimizer=tf.keras.optimizers.SGD(0.1), local_epochs=3)
        >>> algorithm.weighting, [phase.epochs for phase in algorithm.phases]
        ('uniform', [3])
    """

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns what a client does before it predicts, at the rate of its rounds."""
        work = self.finetuning_epochs, self.bound("max_finetuning_steps")
        return (GradientPhase("all", "all", self.optimizer("client"), *work),)


reptile = constructor(Reptile, optimizers=None, proximal=0.0)
