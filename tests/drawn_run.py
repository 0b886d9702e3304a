"""A finished run that was never run, for tests of what reads run folders."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.files import write_json
from fedpersonal.options import Value
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.record import RunRecord, table_digests
from fedpersonal.suite.tasks.ratings.task import TASK


def draw_run(
    path: str | os.PathLike,
    *,
    rounds: int = 20,
    clients: int = 12,
    names: Sequence[str] | None = None,
    with_before: bool = True,
    seed: int = 0,
    **options: Value,
) -> pathlib.Path:
    """Writes the folder of a run of MovieLens, whose curves and clients are drawn at random.

    Args:
        path: The folder.
        rounds: Rounds.
        clients: Test clients.
        names: Their names; None for usual ones.
        with_before: Whether clients were evaluated before personalisation.
        seed: Seed of what is drawn, and of the run.
        **options: Options of the run.

    Returns:
        The folder.
    """
    random = np.random.default_rng(seed)
    names = [f"user {i}" for i in range(clients)] if names is None else names
    settled = TASK.options(**{"total_rounds": rounds, "seed": seed, **options})
    folder = RunFolder.open(path, {"task": TASK.__module__, **settled.values()})
    before = random.uniform(0.7, 1.3, clients)
    columns = {
        "client": names,
        "num_examples": random.integers(1, 100, clients),
        "loss_before": before**2,
        "rmse_before": before,
    }
    after = before * random.normal(0.9, 0.1, clients)
    if not with_before:
        columns = {name: v for name, v in columns.items() if not name.endswith("_before")}
    else:
        columns["rmse_guess"] = 1.1 * before
    folder.write_per_client({**columns, "loss_after": after**2, "rmse_after": after})
    number = np.arange(1, rounds + 1)
    falling = 0.1 + 1 / np.sqrt(number) * random.uniform(0.9, 1.1, rounds)
    table = {"round": number, "seconds": 0.5, "train/loss": falling, "train/rmse": falling**0.5}
    table["eval/rmse"] = np.where(number % 5 == 0, falling**0.5, np.nan)
    pd.DataFrame(table).to_csv(folder.metrics_csv, index=False, lineterminator="\n")
    sent = {"dtype": "float32", "shape": [100], "num_bytes": 400}
    folder.write_boundary(
        [
            {"direction": "broadcast", "name": "trainable.item/embeddings", **sent},
            {"direction": "aggregate", "name": "updates.item/embeddings", **sent},
        ]
    )
    local = {"kept": False, "variables": [{"name": "user/vector", **sent}]}
    about = {"batch_size": 5, "seed": seed, "round_number": rounds, "local": local}
    write_json(folder.path / "model.json", about, checked=True)
    folder.write_summary(
        {
            "dataset": "drawn",
            "method": settled.method,
            "rounds": rounds,
            "test": {
                "rmse": float(np.sqrt((after**2).mean())),
                "num_clients": clients,
                "guesses": {"means": {"rmse": float(1.1 * np.sqrt((before**2).mean()))}},
            },
        }
    )
    return folder.path


def rewrite(path: pathlib.Path, **tables: pd.DataFrame) -> None:
    """Writes other tables, such as `per_client`, and a summary with their digests."""
    for name, table in tables.items():
        table.to_csv(path / f"{name}.csv", index=False, lineterminator="\n")
    record = RunRecord(path)
    summary = {**record.summary, "digests": table_digests(record)}
    clients, test = record.path / "per_client.csv", dict(summary["test"])
    if "per_client" in tables and clients.is_file():
        test["num_clients_of"] = count_clients(tables["per_client"], test)
        for name in test["num_clients_of"]:
            if np.isinf(pd.to_numeric(tables["per_client"].get(f"{name}_after", 0))).any():
                test[name] = "inf"
    write_json(path / "summary.json", {**summary, "test": test}, checked=True)


def count_clients(table: pd.DataFrame, test: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many clients of a table have a number, by metric, as summaries count them."""
    after = {name: table.get(f"{name}_after") for name in test}
    has = pd.to_numeric(table["num_examples"], errors="coerce") > 0
    counts = {
        name: int((values.notna() & has).sum())
        for name, values in after.items()
        if values is not None
    }
    others = {name: int(table[name].notna().sum()) for name in test if name in table}
    return {**others, **counts}
