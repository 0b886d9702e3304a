"""Table 3 of FURL and its pictures, by real runs in small: what is asked, what is written."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

from experiments.papers import runs as run_module
from experiments.papers.furl import table3
from experiments.papers.furl.compared_embeddings import user_embeddings
from experiments.papers.reproduction import Reproduction
from fedpersonal.data.texts.labelled import most_frequent_labels
from fedpersonal.errors import UserError
from fedpersonal.saved_model import read_saved_model
from fedpersonal.tasks.documents.data import USERS_LABEL, USERS_RATE

_needs_recbole = pytest.mark.skipif(
    importlib.util.find_spec("recbole") is None, reason="needs the package recbole"
)
GIVEN = {
    "dataset": "generated",
    "character_dim": 2,
    "lstm_units": 2,
    "hidden_units": (0,),
    "user_dim": 3,
    "text_length": 6,
    "clients_per_round": 9,
    "rounds_per_eval": 200,
}
# Of the quick preset's 400 rounds, evaluated every 50.
TWO_ROUNDS = 0.005
STATELESS = "Personalized FL (stateless)"


def reproduction_in(folder, **changes):
    given = {**GIVEN, **changes.pop("given", {})}
    asked = {"seeds": [0], "scale_rounds": TWO_ROUNDS, "isolated": False}
    return Reproduction(folder, given=given, **{**asked, **changes})


@pytest.fixture(name="done", scope="module")
def _done(tmp_path_factory):
    """The folder of a reproduction of the paper's rows, and its page."""
    folder = tmp_path_factory.mktemp("table3")
    return folder, table3.run(reproduction_in(folder)).write(folder)


@pytest.fixture(name="no_work")
def _no_work(monkeypatch):
    def work(run, about):
        raise AssertionError(f"a run was done again: {run.title}")

    monkeypatch.setattr(run_module, "_work", work)


def file_of(folder, algorithm, name="summary.json", *, data="generated_subreddits"):
    return json.loads((folder / data / algorithm / "seed_0" / name).read_text())


def tables_of(folder, data="generated_subreddits"):
    """The tables of a data set, by their names without its own."""
    tables = json.loads((folder / "table3.json").read_text())["tables"]
    return {k[len(data) + 1 :]: v for k, v in tables.items() if k.startswith(data)}


def test_a_finished_reproduction_is_only_read(done, no_work):
    folder, page = done
    assert table3.run(reproduction_in(folder)).write(folder) == page
    for option, value in (("lstm_units", 3), ("text_length", 7)):
        with pytest.raises(UserError, match=f"{option} was .* and is now {value}"):
            table3.run(reproduction_in(folder, given={option: value}))


def test_the_page_has_the_runs_figures(done):
    folder, page = done
    tables = tables_of(folder)
    own = [row.name for row in table3.PAPER_ROWS] + ["Local training", "FedAvg + fine-tuning"]
    guesses = ["A user's most frequent label", "The most frequent label"]
    assert list(tables["seen"]) == [*own, "Central linear model", *guesses]
    for algorithm, name, paper in (
        ("centralized", "Global Server", 28.93),
        ("centralized_personalized", "Personalized Server", 66.13),
        ("fed_avg", "Global FL", 11.90),
        ("furl", "Personalized FL", 62.41),
    ):
        summary, cells = file_of(folder, algorithm), tables["seen"][name]
        cell, measured = cells["Accuracy %"], 100 * summary["test"]["accuracy"]
        assert (cell["values"], cell["published"]) == ([measured], paper)
        assert f"| {paper:.2f}               | {measured:.2f} " in page
        federated = algorithm in ("fed_avg", "furl")
        assert ("MB a round" in cells) == federated
        if federated:
            ways = ("broadcast_bytes_per_client", "aggregated_bytes_per_client")
            sent = sum(summary[way] for way in ways) / 1e6
            assert cells["MB a round"]["mean"] == pytest.approx(sent)
        # Of a server's table no user who never took part has a row.
        assert (name in tables["unseen"]) == (algorithm != "centralized_personalized")
        if name in tables["unseen"]:
            own, found = tables["unseen"][name], summary["unseen"]
            assert own["Accuracy %"]["values"] == [100 * found["accuracy"]]
            assert own["hurt %"]["values"] == [100 * (found["share_hurt"] or 0)]
    about = file_of(folder, "furl")
    for part, found in (("seen", about["test"]), ("unseen", about["unseen"])):
        guess = 100 * found["guesses"][USERS_LABEL]["accuracy"]
        cell = tables[part]["A user's most frequent label"]["Accuracy %"]
        assert cell["values"] == [guess] and cell["published"] is None
    assert "# Table 3 of FURL (a stand-in: " in page and "## generated_subreddits\n" in page
    assert (
        "180 of the users take part. Preset quick: 2 rounds of 9 users; a single seed, hence"
        in page
    )


def test_differences_are_those_of_the_accuracies(done):
    folder, _ = done
    found = tables_of(folder)["differences"]
    own = file_of(folder, "furl")
    accuracies = {
        "Global Server": file_of(folder, "centralized")["test"]["accuracy"],
        "Global FL": file_of(folder, "fed_avg")["test"]["accuracy"],
        "Local training": file_of(folder, "local_only")["test"]["accuracy"],
        "A user's most frequent label": own["test"]["guesses"][USERS_LABEL]["accuracy"],
    }
    assert "Personalized FL" not in found
    for name, accuracy in accuracies.items():
        cell = found[name]["accuracy"]
        assert cell["values"] == [pytest.approx(100 * (accuracy - own["test"]["accuracy"]))]
        assert cell["interval"][0] <= cell["values"][0] <= cell["interval"][1]


def test_each_method_has_the_rates_of_its_preset(done):
    for algorithm, rates in (("furl", (1, 3)), ("centralized_personalized", (0.5, 10))):
        options = file_of(done[0], algorithm, "config.json")["options"]
        assert (options["client_learning_rate"], options["local_learning_rate"]) == rates


def test_rivals_are_measured_beside_the_papers_rows(done):
    folder, _ = done
    tables = tables_of(folder)
    for algorithm, name in (
        ("local_only", "Local training"),
        ("fed_avg_finetuning", "FedAvg + fine-tuning"),
    ):
        summary = file_of(folder, algorithm)
        assert tables["seen"][name]["Accuracy %"]["values"] == [100 * summary["test"]["accuracy"]]
        unseen = tables["unseen"][name]["Accuracy %"]
        assert unseen["values"] == [100 * summary["unseen"]["accuracy"]]
    # What differs by fine-tuning alone is trained once.
    assert file_of(folder, "fed_avg_finetuning")["trained_by"] == "fed_avg"
    options = file_of(folder, "local_only", "config.json")["options"]
    assert (options["finetuning_learning_rate"], options["finetuning_epochs"]) == (3.0, 20)


def test_learning_curves_are_by_epochs(done):
    """Of 180 users 9 take part in a round: a twentieth of an epoch."""
    folder, _ = done
    assert (
        (folder / "generated_subreddits" / "learning_curves.png")
        .read_bytes()
        .startswith(b"\x89PNG")
    )
    points = pd.read_csv(folder / "table3.csv").query(
        "table == 'generated_subreddits_learning_curves'"
    )
    assert points["row"].unique().tolist() == [row.name for row in table3.PAPER_ROWS]
    own = points[points["row"] == "Personalized FL"]
    assert own["column"].astype(float).tolist() == pytest.approx([0.05, 0.1])
    metrics = pd.read_csv(folder / "generated_subreddits" / "furl" / "seed_0" / "metrics.csv")
    assert own["value"].tolist() == pytest.approx((100 * metrics["eval/accuracy"]).tolist())


def test_embeddings_of_users_whom_both_know_are_compared(done):
    folder, page = done
    assert (
        (folder / "generated_subreddits" / "user_embeddings.png")
        .read_bytes()
        .startswith(b"\x89PNG")
    )
    form = table3.plan(reproduction_in(folder))
    runs = {row.values["algorithm"]: form.runs[row.name][0] for row in table3.PAPER_ROWS}
    server, own = (user_embeddings(runs[name]) for name in ("centralized_personalized", "furl"))
    # The server has a row for everybody; of the others those who took part in two rounds of 9.
    assert len(server) == 180 and 9 < len(own) <= 18
    saved = read_saved_model(runs["centralized_personalized"].path)
    np.testing.assert_array_equal(server, saved.weights["user_embedding/embeddings"])

    agreement = json.loads((folder / "table3.json").read_text())["forms"]
    agreement = agreement["generated_subreddits"]["map"]
    assert agreement["num_users"] == len(own)
    points = own.to_numpy()
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argsort(axis=1)[:, :10]
    options = runs["furl"].options
    train = table3.TASK.split(table3.TASK.read(options), options).train
    labels = most_frequent_labels(train)[pd.Index(train.client_ids).get_indexer(own.index)]
    alike = np.mean(labels[nearest] == labels[:, None])
    assert agreement["federated"]["measured"] == pytest.approx(alike)
    chance = agreement["federated"]["chance"]
    assert f"{alike:.2f} (chance {chance:.2f}) of the users' own" in page


@_needs_recbole
def test_films_are_measured_by_area(tmp_path):
    """Those of a few users who have rated little, beside comments."""
    rows = ["Personalized Server", "Personalized FL"]
    few = {"dataset": "movielens_100k", "max_texts": 21, "clients_per_round": 20}
    asked = reproduction_in(tmp_path, rows=rows, given={**few, "word_dim": 2, "word_buckets": 99})
    page = table3.run(asked).write(tmp_path)
    data = "movielens-100k-films"
    tables = tables_of(tmp_path, data)
    assert [tables["seen"][name]["AUC %"]["published"] for name in rows] == [65.60, 65.63]
    summary = file_of(tmp_path, "furl", data=data)
    assert tables["seen"]["Personalized FL"]["AUC %"]["values"] == [100 * summary["test"]["auc"]]
    rate = tables["seen"]["A user's own rate"]["AUC %"]
    assert rate["values"] == [100 * summary["test"]["guesses"][USERS_RATE]["auc"]]
    linear = file_of(tmp_path, "linear", data=data)
    assert tables["seen"]["Central linear model"]["AUC %"]["values"] == [
        100 * linear["test"]["auc"]
    ]
    assert "a single seed, hence no standard deviation" in page
    assert "rank correlation of a user's share of 1" in page
    assert (tmp_path / data / "user_embeddings.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["auto", "movielens_100k"]),
        ({"data_dir": "1m"}, ["auto", "movielens_1m"]),
        ({"data_dir": "other"}, ["auto", "movielens_100k"]),
        ({"dataset": "movielens_1m", "data_dir": "1m"}, ["movielens_1m"]),
        ({"text_file": "own.csv"}, ["auto"]),
    ],
)
def test_both_forms_unless_one_is_named(tmp_path, monkeypatch, given, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("1m", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "1m" / "movies.dat").touch()
    assert [own.dataset for own in table3.ask(Reproduction(tmp_path, given=given))] == expected


def test_stateless_twins_have_folders_of_their_own(tmp_path):
    """Without both embeddings, or with too few users, there is nothing to compare."""
    page = table3.run(reproduction_in(tmp_path, rows=[STATELESS])).write(tmp_path)
    summary = file_of(tmp_path, "furl_stateless")
    assert (summary["local_state"], summary["rounds"]) == ("rebuilt", 2)
    assert tables_of(tmp_path)["seen"][STATELESS]["Accuracy %"]["published"] is None
    assert "neighbours" not in page and not list(tmp_path.rglob("user_embeddings.png"))


def test_rows_are_chosen_by_name(tmp_path):
    names = [row.name for row in table3.ROWS]
    # A list of flags is parted at commas.
    assert not any("," in name for name in names) and len(set(names)) == len(names)
    assert {"FedRep", "FedRep (stateless)", "Global FL", STATELESS} < set(names)
    # What keeps nothing has no stateless twin.
    assert not {"Global FL (stateless)", "Personalized Server (stateless)"} & set(names)
    for name in ("furl", "FedAvg", "FedRep,"):
        with pytest.raises(UserError, match=f"--rows: '{name}' is no row of table 3; these are: "):
            table3.run(reproduction_in(tmp_path, rows=["Global FL", name]))
