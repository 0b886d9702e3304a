"""FedPerC's tables, of runs that stand in for training: what is asked, what is written."""

from __future__ import annotations

import csv
import dataclasses
import json
import types

import numpy as np
import pytest
from experiments.papers.fedperc.results import COLUMNS
from experiments.papers.fedperc.runs import UtteranceSource
from experiments.papers.fedperc.sample_curves import plot_by_samples
from experiments.papers.presets import Preset
from fedpersonal.tasks.utterances.choice import UtteranceChoice
from fedpersonal.tasks.utterances.experiment import UtteranceOptions

from experiments.papers.fedperc import published_figures
from experiments.papers.fedperc import tables as fedperc_tables
from fedpersonal.errors import UserError
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.utterances.methods import METHODS

# Data, a split and a seed that do not go together.
UNSPLIT = ("reddit", "withheld", 7)
TINY = Preset(
    "tiny",
    UtteranceOptions(total_rounds=20, clients_per_round=9, rounds_per_eval=10, history_length=7),
    {"meta_learning": {"client_learning_rate": 0.7}},
)
ASKED = {"seeds": [0, 1, 2], "scale_rounds": 0.5, "repeats": 4, "isolated": False}
BYTES = {"fedperc": 32, "fedperc_generated": 0, "split_learning": 2400, "meta_learning": 0}
SENT = {"fedperc": 64, "fedperc_generated": 2000, "split_learning": 4800, "meta_learning": 2400}
for _of in (BYTES, SENT):
    _of.update({f"{name}_fresh": _of[name] for name in ("split_learning", "meta_learning")})


@dataclasses.dataclass(frozen=True)
class Source(UtteranceSource):
    """Data that say which they are, around a base model that is never loaded."""

    def describe(self, base):
        return {"dataset": self.choice.source, "base_model": base.name}

    def load_base(self):
        config = types.SimpleNamespace(n_layer=2, n_embd=8, vocab_size=300)
        weights = {"wte": np.zeros([300, 8]), "ln": np.zeros(8)}
        return types.SimpleNamespace(
            name="tiny", source=self.base_model, config=config, weights=weights
        )

    def load_data(self, base, *, split, seed):
        if (self.choice.source, split, seed) == UNSPLIT:
            raise UserError("too few users")


@dataclasses.dataclass(frozen=True)
class Choice(UtteranceChoice):
    """A choice that reads nothing."""

    def describe(self):
        return {
            "dataset": f"the {self.source}",
            "num_users": 19,
            "num_utterances": 1234,
            "num_contexts": 2,
        }


def source_of(name, folder="nowhere"):
    return Source(Choice(name), str(folder), "frozen")


def perplexity(options, samples):
    """Half of it after all samples; withheld users have 100 more."""
    start = 50.0 + 10 * list(METHODS).index(options.algorithm) + options.seed
    start += 100 * (options.split == "withheld")
    return start / (2 if samples == "all" else 1) - (5 if samples == "0" else 0)


def results(value):
    return {
        "perplexity": value,
        "percentiles": {"perplexity": {f"p{p}": value + p for p in (5, 25, 50, 75, 95)}},
    }


class Runs:
    """Stands in for all work; stops before a run if it is told so."""

    def __init__(self):
        self.done, self.stop_at = [], None

    def start(self, run, config):
        if self.stop_at == len(self.done):
            raise KeyboardInterrupt
        self.done.append(run.title)
        return RunFolder.open(run.path, config, ignore=())

    def train(self, run, source, config):
        del source
        options = run.options
        self.start(run, config).write_summary(
            {
                "by_samples": {
                    samples: results(perplexity(options, samples))
                    for samples in ("0", "1", "5", "15", "all")
                },
                "kept_bytes_per_client": BYTES[options.algorithm],
                "broadcast_bytes_per_client": SENT[options.algorithm],
                "aggregated_bytes_per_client": SENT[options.algorithm] + 8,
                "frozen_bytes": 9632,
            }
        )

    def untrained(self, run, source, config):
        value = 400.0 if run.options.split == "withheld" else 200.0
        self.start(run, config).write_summary({"by_samples": {"0": results(value)}})

    def embeddings(self, run, source, config):
        self.start(run, config).write_summary(
            {
                "num_users": 6,
                "num_pairs": 14,
                "beats_median": 0.5 + 0.1 * run.options.seed,
                "beats_mean": 1.0,
                "pairs_won": 0.75,
            }
        )

    def passes(self, run, source, config):
        assert (run.options.repeats, run.options.history_length) == (4, 7)
        self.start(run, config).write_summary(
            {
                name: {"train": {"median": 2.0 + i, "sd": 0.5}, "test": {"median": 1.0, "sd": 0.25}}
                for i, name in enumerate(METHODS)
            }
        )

    def stand_in(self, patch):
        for name, work in {
            "train": self.train,
            "evaluate_untrained": self.untrained,
            "compare_embeddings": self.embeddings,
            "time_passes": self.passes,
        }.items():
            patch.setattr(fedperc_tables, name, work)


@pytest.fixture(name="sweep", scope="module")
def _sweep(tmp_path_factory):
    """The folder and the tables of a sweep of two data sets, stopped once, and its runs."""
    folder, runs = tmp_path_factory.mktemp("fedperc"), Runs()
    (folder / "pretraining.json").write_text("{}")
    sources = [source_of("tv_shows", folder), source_of("generated")]
    with pytest.MonkeyPatch.context() as patch:
        runs.stand_in(patch)
        runs.stop_at = 7
        with pytest.raises(KeyboardInterrupt):
            fedperc_tables.run(sources, TINY, str(folder), **ASKED)
        assert not (folder / "fedperc_tables.md").exists()
        runs.stop_at = None
        markdown = fedperc_tables.run(sources, TINY, str(folder), **ASKED)
    return folder, markdown, runs, sources


def found_in(folder):
    return json.loads((folder / "fedperc_tables.json").read_text())["datasets"]


def cells(markdown):
    """All rows of all tables, without rulers."""
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in markdown.splitlines()
        if line.startswith("|") and not line.startswith("|-")
    ]


def test_an_interrupted_sweep_goes_on(sweep):
    folder, _, runs, _ = sweep
    # Of each data set: 4 methods, the base model, embeddings and times.
    assert len(runs.done) == 2 * (6 * 2 * 3 + 2 * 3 + 3 + 1)
    assert runs.done[:3] == [
        "FedPerC, known users, seed 0",
        "FedPerC (Generated), known users, seed 0",
        "Split-Learning, known users, seed 0",
    ]
    config = folder / "tv_shows" / "meta_learning_withheld" / "seed_2" / "config.json"
    flags = json.loads(config.read_text())["options"]
    assert (flags["algorithm"], flags["split"], flags["seed"]) == ("meta_learning", "withheld", 2)
    assert (flags["client_learning_rate"], flags["total_rounds"]) == (0.7, 10)
    assert (flags["dataset"], flags["base_model"]) == ("tv_shows", "tiny")


def test_a_finished_sweep_is_only_read(sweep, monkeypatch):
    folder, markdown, _, sources = sweep
    runs = Runs()
    runs.stand_in(monkeypatch)
    assert fedperc_tables.run(sources, TINY, str(folder), **ASKED) == markdown
    changed = dataclasses.replace(TINY, options=dataclasses.replace(TINY.options, proximal=2.0))
    with pytest.raises(UserError, match="proximal was 1.0 and is now 2.0"):
        fedperc_tables.run(sources, changed, str(folder), **ASKED)
    assert not runs.done


def test_data_that_cannot_be_split_are_refused_before_the_first_run(monkeypatch, tmp_path):
    runs = Runs()
    runs.stand_in(monkeypatch)
    sources = [source_of("tv_shows"), source_of("reddit")]
    with pytest.raises(UserError, match="too few users"):
        fedperc_tables.run(sources, TINY, str(tmp_path), **{**ASKED, "seeds": [1, 7]})
    assert not runs.done and not any(tmp_path.iterdir())


def test_perplexities_are_means_and_deviations_over_seeds(sweep):
    folder, markdown, _, _ = sweep
    assert (folder / "fedperc_tables.md").read_text() == markdown + "\n"
    lines = cells(markdown)
    titles = ["samples", *(column.title for column in COLUMNS)]
    assert titles[1:3] == ["FedPerC", "FedPerC (Frozen)"] and titles[-1] == "Base model"
    # Seeds 0, 1 and 2 add as much each; halves after all samples.
    assert lines[:5] == [
        titles,
        *(
            [
                samples,
                f"51.00 ± 1.00 ({paper[0]})",
                f"46.00 ± 1.00 ({paper[1]})",
                f"61.00 ± 1.00 ({paper[2]})",
                f"71.00 ± 1.00 ({paper[3]})",
                f"81.00 ± 1.00 ({paper[3]})",
                f"91.00 ± 1.00 ({paper[4]})",
                f"101.00 ± 1.00 ({paper[4]})",
                "200.00 ± 0.00",
            ]
            for samples, paper in {
                "1": (57.2, 50.3, 51.6, 359.4, 111.7),
                "5": (51.5, 50.7, 51.7, 244.5, 110.0),
                "15": (48.8, 51.0, 51.7, 167.7, 111.9),
            }.items()
        ),
        [
            "all",
            "25.50 ± 0.50 (46.7)",
            "46.00 ± 1.00 (51.2)",
            "30.50 ± 0.50 (52.1)",
            "35.50 ± 0.50 (82.1)",
            "40.50 ± 0.50 (82.1)",
            "45.50 ± 0.50 (113.0)",
            "50.50 ± 0.50 (113.0)",
            "200.00 ± 0.00",
        ],
    ]
    assert lines[6][:2] == ["1", "151.00 ± 1.00 (205.1)"] and lines[6][-1] == "400.00 ± 0.00"
    # The paper has nothing of generated dialogues.
    generated = markdown[markdown.index("## the generated") :]
    assert cells(generated)[1][1] == "51.00 ± 1.00"
    assert "brackets the paper's. Lower" not in generated and "paper: 8" not in generated


def test_who_is_lower_than_whom(sweep):
    folder, markdown, _, _ = sweep
    lower = found_in(folder)[0]["lower_by"]
    assert len(lower) == 2 * 2 * 5
    first = lower[0]
    assert (first["split"], first["method"], first["baseline"]) == (
        "known",
        "fedperc",
        "split_learning",
    )
    assert first["per_cent"] == pytest.approx([100 * 20 / 71] * 3 + [100 * 10 / 35.5])
    assert first["paper"][-1] == pytest.approx(100 * (1 - 46.7 / 82.1))
    assert (
        "- FedPerC is lower than Split-Learning by 28.2 / 28.2 / 28.2 / 28.2 % after "
        "1 / 5 / 15 / all samples (paper: 84.1 / 78.9 / 70.9 / 43.1).\n"
    ) in markdown
    assert "- FedPerC (Generated) is lower than Base model by 69.5 / 69.5 / 69.5 / 84.8" in markdown


def test_percentiles_over_users_are_of_all_samples(sweep):
    found = found_in(sweep[0])[0]["user_percentiles"]["known"]
    assert found["fedperc"] == {f"p{p}": 25.5 + p for p in (5, 25, 50, 75, 95)}
    assert found["fedperc_frozen"]["p50"] == 96.0 and found["base_model"]["p5"] == 205.0


def test_times_and_bytes(sweep):
    _, markdown, _, _ = sweep
    lines = cells(markdown)[10:15]
    assert lines[0][1:3] == ["train, ms", "test, ms"]
    assert lines[1:] == [
        ["FedPerC", "2.0 ± 0.5 (88.2)", "1.0 ± 0.2 (40.4)", "32", "64", "72", "96", "1.33"],
        ["FedPerC (Generated)", "3.0 ± 0.5 (56.0)", "1.0 ± 0.2 (47.0)", "0", "2,000", "2,008"]
        + ["2,000", "27.8"],
        ["Split-Learning", "4.0 ± 0.5 (222.1)", "1.0 ± 0.2 (65.4)", "2,400", "4,800", "4,808"]
        + ["7,200", "100"],
        ["Meta-Learning", "6.0 ± 0.5 (111.8)", "1.0 ± 0.2 (36.8)", "0", "2,400", "2,408"]
        + ["2,400", "33.3"],
    ]
    assert "frozen base of 9,632 bytes" in markdown and "(paper: 0.001 %)" in markdown


def test_the_heading_says_what_cannot_be_compared(sweep):
    _, markdown, _, _ = sweep
    shows, generated = markdown.split("## the generated")
    assert "1,234 utterances of 19 users, 2 contexts. Preset tiny: 10 rounds of at most 9" in shows
    assert "tiny: 2,408 parameters, 2 layers of 8, 300 tokens; a small one that was" in shows
    assert "cannot be compared" in shows and "cannot be compared" not in generated
    assert "mean ± standard deviation over 3 seeds" in shows


def test_whose_embedding_is_told(sweep):
    folder, markdown, _, _ = sweep
    shares = found_in(folder)[0]["own_embeddings"]
    assert (shares["beats_median"], shares["beats_median_sd"]) == pytest.approx((0.6, 0.1))
    assert "of 60 ± 10 % of 6 known users are likelier" in markdown
    assert "Of 14 pairs of a user and another, the user's own is better in 75 ± 0 %" in markdown


def test_all_values_are_in_the_csv(sweep):
    with open(sweep[0] / "fedperc_tables.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Data sets, splits, columns, samples and seeds.
    assert len(rows) == 2 * 2 * 8 * 4 * 3
    (row,) = (
        r
        for r in rows
        if (r["dataset"], r["split"], r["method"], r["samples"], r["seed"])
        == ("the generated", "withheld", "split_learning", "all", "2")
    )
    assert float(row["perplexity"]) == 86.0


def test_pictures(sweep, tmp_path):
    folder, *_ = sweep
    assert (folder / "fedperc_tables.png").read_bytes().startswith(b"\x89PNG")
    rows = [
        {"method": "fedperc", "samples": "1", "perplexity": 3.0, "perplexity_sd": None},
        {"method": "other", "samples": "1", "perplexity": 300.0, "perplexity_sd": None},
    ]
    plot_by_samples([("one", rows)], tmp_path / "a" / "b.png", title="t", titles={"fedperc": "F"})
    assert (tmp_path / "a" / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_single_seed_has_no_deviation(monkeypatch, tmp_path):
    Runs().stand_in(monkeypatch)
    markdown = fedperc_tables.run(
        [source_of("reddit")], TINY, str(tmp_path), **{**ASKED, "seeds": [1]}
    )
    assert cells(markdown)[1][:2] == ["1", "51.00 (219.5)"]
    assert "a single seed, hence no standard deviation" in markdown
    assert "of 60 % of 6 known users" in markdown


def test_what_the_paper_reports():
    """A few figures of each table's corners."""
    assert published_figures.perplexity("reddit", "known", "fedperc", "1") == (219.5, 35.7)
    assert published_figures.perplexity("reddit", "known", "meta_learning", "all") == (241.4, 2.1)
    assert published_figures.perplexity("tv_shows", "withheld", "fedperc", "1") == (205.1, 292.2)
    shows = [
        published_figures.perplexity("tv_shows", "withheld", method, "all")
        for method in published_figures.METHODS
    ]
    assert shows == [(52.3, 3.3), (98.2, 9.5), (68.6, 5.1), (96.7, 14.5), (114.2, 17.0)]
    assert published_figures.perplexity("generated", "known", "fedperc", "1") is None
    assert published_figures.perplexity("tv_shows", "known", "base_model", "1") is None
