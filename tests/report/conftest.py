"""Folders of runs that nobody ran."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from fedpersonal.runs.folder import RunFolder
from tests.drawn_run import count_clients


@pytest.fixture(name="write_run")
def _write_run(tmp_path):
    """Writes a run's folder and returns it."""
    numbers = itertools.count()

    def write(
        method,
        *,
        seed=1,
        num_clients=30,
        num_rounds=20,
        better_by=0.0,
        more_examples=0,
        names="u{}",
        metrics=("rmse", "accuracy"),
        test_labels="00ff",
        options=None,
        about=None,
        columns=None,
        test=None,
    ):
        of_clients = np.random.default_rng(seed)
        everybody = of_clients.permutation(2 * num_clients) if seed > 1 else range(num_clients)
        chosen = everybody[:num_clients]
        counts = of_clients.integers(1, 9, num_clients) + more_examples
        common = of_clients.random(num_clients)
        rng = np.random.default_rng([seed, *method.encode()])
        table = {"client": [names.format(n) for n in chosen], "num_examples": counts}
        overall = {}
        for stage, gain in (("before", -0.3), ("after", better_by)):
            for name in (*metrics, "loss"):
                sign = -1 if name in ("rmse", "loss") else 1
                noise = rng.normal(0, 0.05, num_clients)
                values = 1 + 0.3 * common + sign * gain + noise
                table[f"{name}_{stage}"] = values
                power = 2 if name == "rmse" else 1
                mean = np.average(values**power, weights=counts) ** (1 / power)
                overall.setdefault(stage, {})[name] = float(mean)
        folder = RunFolder.open(
            tmp_path / f"run_{next(numbers)}",
            {
                "task": "ratings",
                "method": method,
                "seed": seed,
                "rate": 0.1,
                "clients_per_round": 10,
                "evaluate_on": "unseen",
                **(options or {}),
            },
            about={"data": {"num_users": 30, "values": "ab12"}, **(about or {})},
        )
        rounds = np.arange(1, num_rounds + 1)
        curve = 1 + np.exp(-rounds / num_rounds) + rng.normal(0, 0.01, num_rounds) - better_by
        evaluated = np.where(rounds % max(1, num_rounds // 10) == 0, curve, np.nan)
        log = {"round": rounds, "seconds": 0.5, "train/loss": curve}
        log.update({f"eval/{name}": evaluated for name in (*metrics, "loss")})
        pd.DataFrame(log).to_csv(folder.metrics_csv, index=False)
        table = pd.DataFrame({**table, **(columns or {})})
        folder.write_per_client(table)
        sizes = {"broadcast": 1000, "aggregate": 500}
        folder.write_boundary(
            [{"name": "w", "direction": d, "num_bytes": n} for d, n in sizes.items()]
        )
        folder.write_summary(
            {
                "dataset": "toys",
                "method": method,
                "rounds": num_rounds,
                "seed": seed,
                **({"test_labels": test_labels} if test_labels else {}),
                "test": {
                    **overall["after"],
                    "before": overall["before"],
                    "num_clients": num_clients,
                    "num_examples": int(counts.sum()),
                    "share_hurt": 0.1,
                    "num_clients_of": count_clients(table, {**overall["after"], **(test or {})}),
                    **(test or {}),
                },
                "train_wall_seconds": 0.5 * num_rounds,
                "median_round_seconds": 0.5,
                "broadcast_bytes_per_client": 1000,
                "aggregated_bytes_per_client": 500,
            }
        )
        return folder.path

    return write
