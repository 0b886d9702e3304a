"""FedRecon's round on pfl-research: its simulated backend, with a model and clients in NumPy."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.stats import MappedVectorStatistics

from benchmarks.by_numpy import Steps, train_client
from benchmarks.libraries.job import Job


@dataclasses.dataclass
class Items(Model):
    """The items' vectors."""

    vectors: np.ndarray

    def apply_model_update(self, statistics: MappedVectorStatistics) -> tuple[Items, Metrics]:
        """Adds the mean change."""
        self.vectors = self.vectors + statistics["items"]
        return self, Metrics()


class FedRecon(FederatedAlgorithm):
    """The method; each of its iterations takes a cohort from `rounds`."""

    def __init__(self, rounds, sampled: list[int]):
        super().__init__()
        self._rounds, self._sampled = rounds, sampled

    def get_next_central_contexts(
        self, model, iteration, algorithm_params, model_train_params, model_eval_params=None
    ):
        """Returns the context of the next round, if there is one."""
        cohort = next(self._rounds, None)
        if cohort is None:
            return None, model, Metrics()
        self._sampled[:] = cohort
        context = CentralContext(
            current_central_iteration=iteration,
            do_evaluation=False,
            cohort_size=len(cohort),
            population=Population.TRAIN,
            algorithm_params=algorithm_params,
            model_train_params=model_train_params,
        )
        return (context,), model, Metrics()

    def simulate_one_user(self, model, user_dataset, central_context):
        """Returns a client's change of the items' vectors, weighted."""
        steps = central_context.model_train_params.steps
        rows, change, examples = train_client(model.vectors, user_dataset.raw_data, steps)
        weighted = np.zeros_like(model.vectors)
        weighted[rows] = change * np.float32(examples)
        return MappedVectorStatistics({"items": weighted}, weight=examples), Metrics()

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        """Updates the model by the mean of the cohort."""
        statistics.average()
        return model.apply_model_update(statistics)


@dataclasses.dataclass(frozen=True)
class TrainParams(ModelHyperParams):
    """The parameters of a client's training."""

    steps: Steps


def main() -> None:
    """Runs the rounds."""
    job = Job(sys.argv[1])
    datasets = {i: Dataset(batches, user_id=str(i)) for i, batches in job.clients().items()}
    sampled: list[int] = []
    order = (index for _ in itertools.count() for index in sampled)
    clients = FederatedDataset(datasets.__getitem__, lambda: next(order))
    model = FedRecon(job.rounds(), sampled).run(
        AlgorithmHyperParams(),
        SimulatedBackend(training_data=clients, val_data=clients),
        Items(job.items),
        TrainParams(job.steps),
        send_metrics_to_platform=False,
    )
    job.finish(model.vectors)


if __name__ == "__main__":
    main()
