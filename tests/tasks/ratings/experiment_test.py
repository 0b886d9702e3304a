"""Whole experiments on made-up ratings: what they learn, what they write, how they go on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from fedpersonal.tasks.ratings.experiment import RatingOptions, build_experiment, run_experiment

from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.ratings.data import split_ratings

SMALL = {
    "total_rounds": 8,
    "rounds_per_eval": 4,
    "rounds_per_checkpoint": 4,
    "clients_per_round": 12,
    "embedding_dim": 3,
    "use_biases": True,
    "rating_offset": 3.5,
    "client_batch_size": 10,
}
RUNS = {
    "gradient": RatingOptions(**SMALL),
    "per_client": RatingOptions(**SMALL, execution="per_client"),
    "ridge": RatingOptions(**SMALL, reconstruction="ridge", ridge_l2=5.0),
    "fed_avg": RatingOptions(
        **{**SMALL, "clients_per_round": 40},
        algorithm="fed_avg",
        protocol="seen_users",
        client_learning_rate=0.1,
        local_epochs=3,
    ),
    "centralized": RatingOptions(
        **SMALL, algorithm="centralized", client_learning_rate=0.2, pool_batch_size=20
    ),
}
FILES = {
    "boundary.json",
    "checkpoints",
    "config.json",
    "learning_curve.png",
    "metrics.csv",
    "per_client.csv",
    "summary.json",
}
METRICS = {"accuracy", "hr@10", "loss", "mae", "ndcg@10", "rmse"}


@pytest.fixture(name="ratings", scope="module")
def _ratings():
    return generate_ratings(num_users=50, num_items=60, max_ratings=50, seed=2)


class Finished:
    """What a run has written."""

    def __init__(self, path):
        self.path = path
        self.summary = json.loads((path / "summary.json").read_text())
        with open(path / "metrics.csv", newline="") as file:
            self.rounds = list(csv.DictReader(file))
        with open(path / "per_client.csv", newline="") as file:
            self.clients = list(csv.DictReader(file))

    @property
    def learned(self):
        """All columns that do not depend on the machine's speed."""
        return [{k: v for k, v in row.items() if "second" not in k} for row in self.rounds]

    def weights(self):
        """The global variables of the last checkpoint."""
        last = max((self.path / "checkpoints").iterdir())
        with np.load(last) as arrays:
            return {name: arrays[name] for name in arrays.files if "/trainable/" in name}


@pytest.fixture(name="run", scope="module")
def _run(ratings, tmp_path_factory):
    """Runs an experiment of `RUNS` once, and returns what it has written."""
    finished = {}

    def run(name):
        if name not in finished:
            path = tmp_path_factory.mktemp(name)
            folder = RunFolder.open(path, {"name": name})
            summary = run_experiment(build_experiment(ratings, RUNS[name]), folder, progress=False)
            finished[name] = Finished(path)
            assert finished[name].summary == json.loads(json.dumps(summary))
        return finished[name]

    return run


@pytest.mark.parametrize("name", RUNS)
def test_an_experiment_learns_and_writes_it_down(run, ratings, name):
    options, finished = RUNS[name], run(name)
    names = {file for file in os.listdir(finished.path) if not file.startswith(".")}
    assert FILES <= names

    summary, test = finished.summary, finished.summary["test"]
    assert {k: summary[k] for k in ("algorithm", "protocol", "rounds", "seed", "dataset")} == {
        "algorithm": options.algorithm,
        "protocol": options.protocol,
        "rounds": 8,
        "seed": 0,
        "dataset": "synthetic",
    }
    for measured in (
        "aggregated_bytes_per_client",
        "broadcast_bytes_per_client",
        "median_round_seconds",
        "peak_rss_mb",
        "train_wall_seconds",
    ):
        assert summary[measured] > 0
    assert METRICS <= set(test)
    assert set(test["percentiles"]["rmse"]) == {"p5", "p25", "p50", "p75", "p95"}
    assert 0 <= test["share_hurt"] <= 1

    data = split_ratings(
        ratings, protocol=options.protocol, batch_size=options.client_batch_size, seed=0
    )
    asked = data.test.query
    mean = data.train.labels.mean()
    assert test["rmse"] < 0.97 * np.sqrt(np.mean((asked.labels - mean) ** 2))
    assert test["num_examples"] == asked.num_examples

    assert [int(row["round"]) for row in finished.rounds] == list(range(1, 9))
    evaluated = [int(row["round"]) for row in finished.rounds if row["eval/rmse"]]
    assert evaluated == [4, 8]
    assert len(finished.clients) == asked.num_clients
    for metric in ("hr@10", "ndcg@10"):
        values = [float(row[metric]) for row in finished.clients]
        assert test[metric] == pytest.approx(np.mean(values), abs=1e-6)
    squares = [
        float(row["rmse_after"]) ** 2 * int(row["num_examples"])
        for row in finished.clients
        if row["rmse_after"]
    ]
    assert test["rmse"] == pytest.approx((sum(squares) / asked.num_examples) ** 0.5, rel=1e-5)

    crossings = json.loads((finished.path / "boundary.json").read_text())
    sent = {row["name"].split(".")[-1] for row in crossings}
    assert "item_embedding/embeddings" in sent
    assert ("user_embedding/embeddings" in sent) == (options.algorithm != "fed_recon")
    assert "user_embedding/vector" not in sent


def test_reconstruction_helps_those_whom_it_is_for(run):
    for name in ("gradient", "ridge"):
        rows = [row for row in run(name).clients if row["loss_after"]]
        before, after = (
            np.mean([float(row[f"loss_{stage}"]) for row in rows]) for stage in ("before", "after")
        )
        assert after < before
    # Seen users of a global table are predicted with what they have.
    rows = run("fed_avg").clients
    assert [row["loss_before"] for row in rows] == [row["loss_after"] for row in rows]


def test_executions_are_equal(run):
    packed, per_client = run("gradient"), run("per_client")
    weights, others = packed.weights(), per_client.weights()
    assert len(weights) == 2 and weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-4, atol=1e-4)
    for row, other in zip(packed.learned, per_client.learned):
        assert row.keys() == other.keys()
        for name in row:
            assert (row[name] == "") == (other[name] == "")
            if row[name]:
                assert float(row[name]) == pytest.approx(float(other[name]), rel=1e-4, abs=1e-4)
    for metric in METRICS:
        test, other = packed.summary["test"], per_client.summary["test"]
        assert test[metric] == pytest.approx(other[metric], rel=1e-3, abs=1e-3)


def test_a_run_that_is_gone_on_with_is_the_same_to_the_bit(run, ratings, tmp_path):
    at_once = run("gradient")
    path = tmp_path / "twice"
    for rounds in (4, 8):
        options = RatingOptions(**{**SMALL, "total_rounds": rounds})
        folder = RunFolder.open(path, {"total_rounds": rounds})
        run_experiment(build_experiment(ratings, options), folder, progress=False)
    twice = Finished(path)
    assert twice.learned == at_once.learned
    weights, others = twice.weights(), at_once.weights()
    assert len(weights) == 2 and weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(value, others[name])
    assert twice.clients == at_once.clients


def test_an_experiments_pieces_fit_its_options(ratings):
    experiment = build_experiment(ratings, RUNS["fed_avg"])
    assert experiment.evaluated_model is experiment.model
    assert experiment.model.owned == {"user_embedding/embeddings", "user_bias/embeddings"}
    assert experiment.evaluated_algorithm.personalization(experiment.model) == ()
    cohorts = [experiment.training.cohort_fn(number) for number in (1, 1, 2)]
    items = [[member["features"]["item"].tolist() for member in cohort] for cohort in cohorts]
    assert items[0] == items[1] != items[2]
    masks = [member["mask"].max(axis=(1, 2)).sum() for member in cohorts[0]]
    assert sum(masks) == 40


def start_binary(*flags, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.movielens", *flags],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write_table(path, ratings, *, spoiled_row=None):
    rows = [
        [ratings.user_ids[u], ratings.item_ids[i], r, t]
        for u, i, r, t in zip(ratings.users, ratings.items, ratings.ratings, ratings.times)
    ]
    if spoiled_row is not None:
        rows[spoiled_row - 2][2] = "five"  # The header is line 1.
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["who", "what", "stars", "time"], *rows])


def test_an_own_table_of_ratings(ratings, tmp_path):
    """One good and one bad, at once, since each spends its time importing."""
    write_table(tmp_path / "good.csv", ratings)
    write_table(tmp_path / "bad.csv", ratings, spoiled_row=17)
    columns = ["--user_column=who", "--item_column=what", "--rating_column=stars"]
    good = start_binary(
        "--ratings_file=good.csv",
        "--output_dir=good",
        *columns,
        *(f"--{name}={value}" for name, value in {**SMALL, "total_rounds": 2}.items()),
        cwd=tmp_path,
    )
    bad = start_binary("--ratings_file=bad.csv", "--output_dir=bad", *columns, cwd=tmp_path)

    output, errors = bad.communicate(timeout=600)
    assert bad.returncode == 2
    assert output == ""
    assert errors.count("\n") == 1
    assert errors.startswith("error: ") and "bad.csv, line 17:" in errors
    assert "'stars' is not a finite number: 'five'" in errors
    assert not (tmp_path / "bad").exists()

    output, errors = good.communicate(timeout=600)
    assert good.returncode == 0, errors
    first, test, last = output.splitlines()
    assert first == f"good: {ratings.ratings.size:,} ratings of 50 users, 60 items"
    assert test.startswith("test, 5 users, ") and "rmse " in test
    assert last.startswith("2 rounds in ") and last.endswith(str(tmp_path / "good"))
    assert "Warning" not in errors and "Traceback" not in errors
    config = json.loads((tmp_path / "good" / "config.json").read_text())["options"]
    assert config["ratings_file"] == "good.csv" and config["embedding_dim"] == 3
    assert Finished(tmp_path / "good").summary["rounds"] == 2
