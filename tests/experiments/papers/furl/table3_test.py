"""Table 3 and its pictures, of runs that stand in for training: what is asked, what is written."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from experiments.papers.presets import Preset
from fedpersonal.tasks.documents.choice import DocumentChoice
from fedpersonal.tasks.documents.experiment import EMBEDDINGS, DocumentOptions

from experiments.papers.furl import runs as document_runs
from experiments.papers.furl import table3
from fedpersonal.data.texts.labelled import most_frequent_labels
from fedpersonal.errors import UserError
from fedpersonal.simulation.run_folder import RunFolder

TINY = Preset(
    "tiny",
    DocumentOptions(total_rounds=20, clients_per_round=9, rounds_per_eval=10),
    {"fed_avg": {"client_learning_rate": 0.7}},
)
ASKED = {"seeds": [0, 1, 2], "scale_rounds": 0.5, "isolated": False}
# Users who have an embedding on the server, and those who have taken part.
ON_SERVER, TOOK_PART = 20, 16
ALL_ROWS = [row.name for row in table3.ROWS]


def choice_of(source):
    return DocumentChoice(source, text_length=12)


def place(options):
    """A number that tells methods apart."""
    names = [(row.algorithm, row.local_state) for row in table3.ROWS]
    return names.index((options.algorithm, options.local_state))


def result(options):
    return 0.3 + 0.01 * place(options) + 0.02 * options.seed**2


def embeddings_of(options):
    """Those of furl are the server's, turned by a right angle and moved."""
    drawn = np.random.default_rng(options.seed).normal(size=(ON_SERVER, 2))
    return drawn if options.algorithm != "furl" else drawn @ [[0, 1], [-1, 0]] + 5.0


class Runs:
    """Stands in for training; stops before a run if it is told so."""

    def __init__(self):
        self.done, self.stop_at = [], None

    def __call__(self, run, choice, config):
        if self.stop_at == len(self.done):
            raise KeyboardInterrupt
        self.done.append(run.title)
        options, data = run.options, choice.load(seed=run.options.seed)
        folder = RunFolder.open(run.path, config, ignore=())
        metric = "auc" if data.is_binary else "accuracy"
        after = {"share_hurt": 0.25 * options.seed, metric: result(options) / 2}
        rounds = range(5, options.total_rounds + 1, 5)
        pd.DataFrame(
            {"round": rounds, "eval/accuracy": [0.05 * r + result(options) for r in rounds]}
        ).to_csv(folder.metrics_csv, index=False)
        if options.algorithm in ("centralized_personalized", "furl"):
            known = np.arange(ON_SERVER) < (TOOK_PART if options.algorithm == "furl" else ON_SERVER)
            np.savez(
                folder.path / EMBEDDINGS,
                users=data.train.client_ids[:ON_SERVER].astype(str),
                known=known,
                embeddings=embeddings_of(options),
            )
        folder.write_summary(
            {
                "test": {metric: result(options), "other": 0.0},
                "withheld": None if options.algorithm == "centralized_personalized" else after,
                "guessing": {
                    "users_most_frequent": 0.1 * (1 + options.seed),
                    "overall_most_frequent": 0.125,
                },
                "broadcast_bytes_per_client": 1_250_000,
                "aggregated_bytes_per_client": 750_000 + 1_000_000 * place(options),
            }
        )


@pytest.fixture(name="runs")
def _runs(monkeypatch):
    runs = Runs()
    monkeypatch.setattr(document_runs, "_run", runs)
    return runs


@pytest.fixture(name="sweep", scope="module")
def _sweep(tmp_path_factory):
    """The folder and the table of a sweep of the paper's rows, stopped once, and its runs."""
    folder, runs = tmp_path_factory.mktemp("table3"), Runs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_runs, "_run", runs)
        runs.stop_at = 5
        with pytest.raises(KeyboardInterrupt):
            table3.run(choice_of("generated"), TINY, str(folder), **ASKED)
        assert not (folder / "table3.md").exists()
        runs.stop_at = None
        markdown = table3.run(choice_of("generated"), TINY, str(folder), **ASKED)
    return folder, markdown, runs


def rows_of(folder):
    rows = json.loads((folder / "table3.json").read_text())["rows"]
    return {row["name"]: row for row in rows}


def cells(markdown):
    """All rows of all tables."""
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in markdown.splitlines()
        if line.startswith("|")
    ]


def test_an_interrupted_sweep_goes_on(sweep):
    _, _, runs = sweep
    assert len(runs.done) == 12 == len(set(runs.done))
    assert runs.done[:4] == [f"{row.name}, seed 0" for row in table3.PAPER_ROWS]
    assert runs.done[-1] == "Personalized FL, seed 2"


def test_a_finished_sweep_is_only_read(sweep, runs):
    folder, markdown, _ = sweep
    choice = choice_of("generated")
    assert table3.run(choice, TINY, str(folder), **ASKED) == markdown
    assert not runs.done
    changed = dataclasses.replace(TINY, options=dataclasses.replace(TINY.options, lstm_units=3))
    with pytest.raises(UserError, match="lstm_units was 32 and is now 3"):
        table3.run(choice, changed, str(folder), **ASKED)
    with pytest.raises(UserError, match="text_length was 12 and is now 13"):
        table3.run(dataclasses.replace(choice, text_length=13), TINY, str(folder), **ASKED)
    assert not runs.done and (folder / "table3.md").read_text() == markdown + "\n"


def test_numbers_are_means_and_deviations_over_seeds(sweep):
    folder, markdown, _ = sweep
    assert (folder / "table3.md").read_text() == markdown + "\n"
    rows = rows_of(folder)
    assert list(rows) == [row.name for row in table3.PAPER_ROWS]
    for name, paper in {
        "Global Server": 28.93,
        "Personalized Server": 66.13,
        "Global FL": 11.90,
        "Personalized FL": 62.41,
    }.items():
        row = rows[name]
        # Of the seeds 0, 1 and 2: 0, 2 and 8 per cent more.
        expected = 30.0 + place(DocumentOptions(algorithm=row["algorithm"])) + 10 / 3
        assert (row["paper"], row["test"]) == (paper, pytest.approx(expected))
        assert row["test_sd"] == pytest.approx(np.std([0, 2, 8], ddof=1))
        if name == "Personalized Server":
            assert "withheld" not in row
        else:
            assert row["withheld"] == pytest.approx(expected / 2)
            assert (row["withheld_hurt"], row["withheld_hurt_sd"]) == (25.0, 25.0)
        assert row["megabytes"] == 2.0 + place(DocumentOptions(algorithm=row["algorithm"]))

    lines = cells(markdown)
    assert lines[0] == ["", "paper", "measured", "MB a round"]
    assert lines[2:6] == [
        ["Global Server", "28.93", "33.33 ± 4.16", "–"],
        ["Personalized Server", "66.13", "34.33 ± 4.16", "–"],
        ["Global FL", "11.90", "35.33 ± 4.16", "4.00"],
        ["Personalized FL", "62.41", "36.33 ± 4.16", "5.00"],
    ]
    assert [line[0] for line in lines[8:]] == ["Global Server", "Global FL", "Personalized FL"]
    assert lines[-1] == ["Personalized FL", "18.17 ± 2.08", "25"]
    assert "most frequent label 20.0 % right, the most frequent one of all 12.5 %" in markdown
    title, _, about, *_ = markdown.splitlines()
    assert "generated_subreddits (a stand-in: " in title
    assert "texts of 200 users, 8 labels; 20 users are withheld. Preset tiny: 10 rounds" in about
    assert about.endswith("of 9 users; mean ± standard deviation over 3 seeds.")


def test_learning_curves_are_by_epochs(sweep):
    """Of 180 users 9 take part in a round: a twentieth of an epoch."""
    folder, _, _ = sweep
    assert (folder / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    points = pd.read_csv(folder / "table3.csv")
    assert points["name"].unique().tolist() == [row.name for row in table3.PAPER_ROWS]
    own = points[(points["name"] == "Personalized FL") & (points["seed"] == 2)]
    assert own["epoch"].tolist() == pytest.approx([0.25, 0.5])
    best = 100 * result(DocumentOptions(algorithm="furl", seed=2))
    assert own["accuracy"].tolist() == pytest.approx([25 + best, 50 + best])


def test_embeddings_of_users_whom_both_know_are_compared(sweep):
    folder, markdown, _ = sweep
    assert (folder / "user_embeddings.png").read_bytes().startswith(b"\x89PNG")
    agreement = json.loads((folder / "table3.json").read_text())["user_embeddings"]
    assert (agreement["num_users"], agreement["neighbours"]) == (TOOK_PART, 10)
    # Turned and moved they are the same.
    assert agreement["shared_neighbours"] == {"measured": 1.0, "chance": pytest.approx(10 / 15)}
    assert agreement["server"] == agreement["federated"]
    points = embeddings_of(DocumentOptions(algorithm="centralized", seed=0))[:TOOK_PART]
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    nearest = distances.argsort(axis=1)[:, 1:11]
    labels = most_frequent_labels(choice_of("generated").load(seed=0).train)[:TOOK_PART]
    alike = np.mean(labels[nearest] == labels[:, None])
    assert agreement["server"]["measured"] == pytest.approx(alike)
    assert f"of 16 users: {agreement['what']}: {alike:.2f} (chance " in markdown
    assert markdown.endswith("the same in both: 1.00 (chance 0.67).")


def test_clicks_are_measured_by_area(runs, tmp_path):
    asked = {**ASKED, "seeds": [0], "rows": table3.PAPER_ROWS}
    markdown = table3.run(choice_of("generated_clicks"), TINY, str(tmp_path), **asked)
    lines = cells(markdown)
    assert lines[0][:3] == ["", "paper", "measured"]
    assert [line[1:3] for line in lines[2:6]] == [
        ["57.75", "30.00"],
        ["65.60", "31.00"],
        ["57.24", "32.00"],
        ["65.63", "33.00"],
    ]
    assert "a single seed, hence no standard deviation" in markdown
    assert "rank correlation of a user's click rate" in markdown
    for picture in ("learning_curves", "user_embeddings"):
        assert (tmp_path / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    agreement = json.loads((tmp_path / "table3.json").read_text())["user_embeddings"]
    assert agreement["server"]["chance"] == 0.0
    assert agreement["server"]["measured"] == agreement["federated"]["measured"] != 0.0


def test_stateless_twins_have_folders_of_their_own(runs, tmp_path):
    rows = table3.choose_rows(ALL_ROWS)
    assert rows == table3.ROWS and len(rows) == 11
    table3.run(choice_of("generated"), TINY, str(tmp_path), **{**ASKED, "rows": rows, "seeds": [1]})
    folders = {path.name: path / "seed_1" for path in tmp_path.iterdir() if path.is_dir()}
    assert len(folders) == 11 == len(runs.done)
    for row in rows:
        config = json.loads((folders[row.folder] / "config.json").read_text())
        asked = config["options"]
        assert (asked["algorithm"], asked["local_state"]) == (row.algorithm, row.local_state)
        assert asked["client_learning_rate"] == (0.7 if row.algorithm == "fed_avg" else 0.3)
        assert (asked["seed"], asked["text_length"], asked["total_rounds"]) == (1, 12, 10)
    found = rows_of(tmp_path)
    assert found[ALL_ROWS[-1]]["local_state"] == "rebuilt"
    assert [name for name, row in found.items() if row["paper"] is not None] == [
        row.name for row in table3.PAPER_ROWS
    ]
    # More curves than there are colors.
    for picture in ("learning_curves", "learning_curves_2"):
        assert (tmp_path / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_rows_are_chosen_by_name(sweep, runs, tmp_path):
    assert table3.choose_rows([]) == table3.PAPER_ROWS
    chosen = table3.choose_rows(["FedRep", "Global FL"])
    assert [row.algorithm for row in chosen] == ["fed_avg", "fed_rep"]
    # A list of flags is parted at commas.
    assert not any("," in name for name in ALL_ROWS) and len(set(ALL_ROWS)) == 11
    for name in ("furl", "FedAvg", "FedRep,"):
        with pytest.raises(UserError, match=f"--rows: '{name}' is no row of table 3; these are: "):
            table3.choose_rows(["Global FL", name])
    markdown = table3.run(
        choice_of("generated"), TINY, str(tmp_path), **{**ASKED, "rows": chosen, "seeds": [0, 1]}
    )
    assert len(runs.done) == 4
    # Without both embeddings there is nothing to compare.
    assert "neighbours" not in markdown and not (tmp_path / "user_embeddings.png").exists()
    assert rows_of(tmp_path)["Global FL"]["test"] == pytest.approx(33.0)
    assert rows_of(sweep[0])["Global FL"]["test"] == pytest.approx(32.0 + 10 / 3)


def test_too_few_users_for_neighbours_have_no_map(runs, tmp_path, monkeypatch):
    """As of a quick look at a few rounds: the table is there all the same."""
    monkeypatch.setitem(globals(), "TOOK_PART", 10)
    markdown = table3.run(choice_of("generated"), TINY, str(tmp_path), **{**ASKED, "seeds": [0]})
    assert len(runs.done) == 4 and len(rows_of(tmp_path)) == 4
    assert "neighbours" not in markdown and not (tmp_path / "user_embeddings.png").exists()
