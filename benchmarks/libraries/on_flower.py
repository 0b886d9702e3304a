"""FedRecon's round on Flower: its simulation on Ray with an actor per processor, clients in NumPy.

Each client of a cohort is a node; `FedAvg` samples all nodes.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator

# Disables telemetry and writing to the home folder.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
os.environ.setdefault("FLWR_HOME", os.path.join(sys.argv[-1], "flower"))

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.by_numpy import train_client
from benchmarks.libraries.job import Job

client_app = ClientApp()


@functools.cache
def _job(folder: str) -> tuple[Job, dict]:
    job = Job(folder)
    return job, job.clients()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Returns a client's change of the items' vectors."""
    config = message.content["config"]
    job, clients = _job(config["folder"])
    (items,) = message.content["arrays"].to_numpy_ndarrays()
    client = job.cohorts[config["server-round"] - 1][context.node_config["partition-id"]]
    rows, change, examples = train_client(items, clients[client], job.steps)
    changes = np.zeros_like(items)
    changes[rows] = change
    content = {
        "arrays": ArrayRecord([changes]),
        "metrics": MetricRecord({"num-examples": examples}),
    }
    return Message(RecordDict(content), reply_to=message)


class MeanChange(FedAvg):
    """Adds the mean change; each of its rounds waits for one of `rounds`."""

    def __init__(self, items: np.ndarray, rounds: Iterator[np.ndarray]):
        super().__init__(fraction_evaluate=0)
        self.items, self._rounds = items, rounds

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the items' vectors to all nodes."""
        next(self._rounds)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the items' vectors after the round."""
        mean, metrics = super().aggregate_train(server_round, replies)
        self.items = self.items + mean.to_numpy_ndarrays()[0]
        return ArrayRecord([self.items]), metrics


def main() -> None:
    """Runs the rounds."""
    folder = sys.argv[1]
    job = Job(folder)
    rounds = job.rounds()
    strategy = MeanChange(job.items, rounds)
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(
            grid,
            ArrayRecord([job.items]),
            num_rounds=len(job.cohorts),
            train_config=ConfigRecord({"folder": folder}),
        )
        next(rounds, None)  # The last one has ended.

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, job.cohorts.shape[1], backend_config=resources)
    job.finish(strategy.items)


if __name__ == "__main__":
    # Ray's actors can only import a named module, not `__main__`.
    from benchmarks.libraries import on_flower

    on_flower.main()
