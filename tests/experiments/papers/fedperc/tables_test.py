"""FedPerC's tables, by real runs around one tiny base model: what is run, what is written."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from experiments.papers import runs as run_module
from experiments.papers.fedperc import tables
from fedpersonal.errors import UserError
from fedpersonal.files import read_json
from fedpersonal.tasks.utterances import task as utterance_task

LENGTH, DIM = 16, 8  # Of `reproduction_in`.
TITLES = [title for title, *_ in tables.LINES.values()]


@pytest.fixture(name="done", scope="module")
def _done(tmp_path_factory, reproduction_in):
    """The folder of a reproduction, tested on fewer numbers of samples, and its page."""
    folder = tmp_path_factory.mktemp("fedperc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utterance_task, "SAMPLES", (1, None))
        patch.setattr(tables, "SAMPLES", ("1", "all"))
        page = tables.run(reproduction_in(folder), repeats=2).write(folder)
        yield folder, page


def summary_of(folder, name, users="seen"):
    path = folder / "file" / f"{name}_{users}" / "seed_0" / "summary.json"
    return read_json(path, checked=True)


def cells_of(folder, name):
    return json.loads((folder / "fedperc_tables.json").read_text())["tables"][name]


def test_a_finished_reproduction_is_only_read(done, reproduction_in, monkeypatch):
    folder, page = done

    def work(run, about):
        raise AssertionError(f"a run was done again: {run.title}")

    monkeypatch.setattr(run_module, "_work", work)
    assert tables.run(reproduction_in(folder), repeats=2).write(folder) == page
    for option, value in (("proximal", 2.0), ("text_length", 15)):
        with pytest.raises(UserError, match=f"{option} was .* and is now {value}"):
            tables.run(reproduction_in(folder, given={option: value}), repeats=2)
    with pytest.raises(UserError, match="repeats was 2 and is now 3"):
        tables.run(reproduction_in(folder), repeats=3)


def test_perplexities_are_those_of_the_runs(done):
    folder, page = done
    for users in ("seen", "unseen"):
        cells = cells_of(folder, f"file_{users}")
        assert list(cells) == TITLES
        for title, name, tunes in tables.LINES.values():
            for samples in ("1", "all"):
                by_samples = summary_of(folder, name, users)["by_samples"]
                expected = by_samples[samples if tunes else "0"]["perplexity"]
                assert cells[title][samples]["values"] == [expected]
                assert f"{expected:,.2f} " in page
        ours, other = (cells[title]["all"]["mean"] for title in ("FedPerC", "Split-Learning"))
        lower = cells_of(folder, f"file_{users}_lower_by")["FedPerC than Split-Learning"]
        assert lower["all"]["mean"] == pytest.approx(100 * (1 - ours / other))
        percentiles = cells_of(folder, f"file_{users}_percentiles")["FedPerC"]
        spread = summary_of(folder, "fedperc", users)["by_samples"]["all"]["percentiles"]
        assert percentiles["p95"]["mean"] == spread["perplexity"]["p95"]
    assert (folder / "fedperc_tables.png").read_bytes().startswith(b"\x89PNG")
    assert "84 utterances of 7 users, 2 contexts. Preset quick: 1 rounds of at most" in page
    assert f"tiny: {8 * 300:,}" not in page and "1 layers of 8" in page
    assert "cannot be compared" not in page and "a single seed, hence" in page


def test_differences_are_those_of_perplexities(done):
    folder, page = done
    cells = cells_of(folder, "file_paired")
    assert list(cells) == [m.title for m in tables.METHODS.values()]
    perplexity = {u: cells_of(folder, f"file_{u}") for u in ("seen", "unseen")}
    for title, row in cells.items():
        assert len(row) == (2 if title == "FedPerC" else 4)
        for column, cell in row.items():
            users, other = column.split(" users, than ")
            ours, theirs = (perplexity[users][t]["all"]["mean"] for t in (title, other))
            assert cell["mean"] == pytest.approx(100 * (ours / theirs - 1), rel=1e-4, abs=1e-3)
            # Two of the 7 users are unseen, too few for an interval.
            assert (cell["interval"] is None) == (users == "unseen")
            if cell["interval"]:
                assert cell["interval"][0] <= cell["mean"] <= cell["interval"][1]
    assert "By how many per cent perplexity after all samples is higher" in page


def test_rivals_have_rates_of_their_own(done):
    rates = {}
    for name in tables.METHODS:
        path = done[0] / "file" / f"{name}_seen" / "seed_0" / "config.json"
        options = json.loads(path.read_text())["options"]
        rates[name] = (options["client_learning_rate"], options["proximal"])
    assert rates == {
        "fedperc": (0.1, 0.01),
        "fedperc_generated": (0.003, 1),
        "split_learning": (0.0005, 1),
        "split_learning_fresh": (0.003, 1),
        "meta_learning": (0.003, 1),
        "meta_learning_fresh": (0.003, 1),
    }


def test_the_base_model_alone_is_gpt2(done, reproduction_in, tiny_base):
    """Perplexity of the query sets by transformers' own model, behind its first token."""
    from transformers import TFGPT2LMHeadModel

    options = tables.TASK.options(**reproduction_in(done[0]).values(tables.TASK, "tv_shows_{}"))
    query = tables.TASK.split(tables.TASK.read(options), options).test.query
    gpt2 = TFGPT2LMHeadModel.from_pretrained(tiny_base.source)
    first = np.full([query.num_examples, 1], tiny_base.config.bos_token_id)
    logits = gpt2(np.concatenate([first, query.features["text"][:, :-1]], axis=1)).logits.numpy()
    logits = logits.astype(np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
        logits, np.maximum(query.labels, 0)[..., np.newaxis], axis=-1
    ).squeeze(-1)
    counted = (query.labels >= 0) & (np.arange(LENGTH) >= 3)
    results = summary_of(done[0], "base_model")["by_samples"]["0"]
    assert results["perplexity"] == pytest.approx(math.exp(losses[counted].mean()), rel=1e-4)
    assert results["num_clients"] == 7 and results["num_examples"] == query.num_examples
    # It is the guess that FedPerC stands beside.
    guess = summary_of(done[0], "fedperc")["test"]["guesses"]["the base model alone"]
    assert guess == pytest.approx({name: results[name] for name in guess})
    # Training has moved what stands before it.
    trained = summary_of(done[0], "fedperc")["by_samples"]["0"]
    assert trained["loss"] < results["loss"]


def test_embeddings_are_those_that_were_trained(done):
    """Own losses are those of the run's test without fine-tuning."""
    folder, page = done
    found = summary_of(folder, "whose")
    spread = summary_of(folder, "fedperc")["by_samples"]["0"]["percentiles"]["loss"]
    for percentile in (5, 50, 95):
        assert np.percentile(found["own_loss"], percentile) == pytest.approx(
            spread[f"p{percentile}"], rel=1e-5
        )
    # 4 users of the one context, 3 of the other.
    assert (found["num_users"], found["num_pairs"]) == (7, 4 * 3 + 3 * 2)
    assert np.shape(found["others_losses"]) == (7, 3)
    won = 100 * found["pairs_won"]
    assert f"Of 18 pairs of a user and another, the user's own is better in {won:.0f} %" in page


def test_times_and_bytes(done):
    folder, page = done
    times, cells = summary_of(folder, "passes"), cells_of(folder, "passes")
    names = ["fedperc", "fedperc_generated", "split_learning", "meta_learning"]
    assert list(times) == names and list(cells) == [tables.METHODS[n].title for n in names]
    for name, (paper, _) in tables._PAPER_PASSES.items():
        train, own = cells[tables.METHODS[name].title]["train, ms"], times[name]["train"]
        assert (train["values"], train["sd"]) == ([own["median"]], own["sd"])
        assert train["published"] == paper and 0 < own["median"] < 60_000
    # An embedding of users and one a context, of 32-bit floats; and a round's own numbers.
    ours, heads = cells["FedPerC"], cells["Split-Learning"]
    assert ours["kept"]["mean"] == 4 * DIM
    assert ours["received"]["mean"] - 4 * 2 * DIM in range(0, 9)
    assert ours["needed"]["mean"] == ours["kept"]["mean"] + ours["received"]["mean"]
    assert cells["Meta-Learning"]["kept"]["mean"] == 0
    assert cells["FedPerC (Generated)"]["kept"]["mean"] == 0
    share = 100 * ours["needed"]["mean"] / heads["needed"]["mean"]
    assert (ours["of heads, %"]["mean"], heads["of heads, %"]["mean"]) == (share, 100)
    frozen = summary_of(folder, "fedperc")["frozen_bytes"]
    assert f"frozen base of {frozen:,} bytes" in page and "(paper: 0.001 %)" in page


def test_data_that_cannot_be_split_are_refused_before_the_first_run(
    tmp_path, reproduction_in, tiny_base
):
    lines = [
        json.dumps({"user": user, "text": f"some more words {n}", "context": "c"})
        for user in "ab"
        for n in range(9)
    ]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    asked = reproduction_in(tmp_path / "out", given={"text_file": str(tmp_path / "two.jsonl")})
    with pytest.raises(UserError, match="2 users; at least 3 are needed"):
        tables.run(asked)
    assert not (tmp_path / "out").exists()


def test_what_the_paper_reports():
    """A few figures of each table's corners."""
    paper = tables.published()
    assert len(paper) == 4 * 4 * 5
    assert paper["reddit", "seen", "fedperc", "1"] == 219.5
    assert paper["reddit", "seen", "meta_learning", "all"] == 241.4
    assert paper["tv_shows", "unseen", "fedperc", "1"] == 205.1
    lines = ("fedperc", "fedperc_frozen", "fedperc_generated", "split_learning", "meta_learning")
    shows = [paper["tv_shows", "unseen", line, "all"] for line in lines]
    assert shows == [52.3, 98.2, 68.6, 96.7, 114.2]


def test_published_figures_stand_for_both_starts_of_heads(done, reproduction_in):
    """As if the runs' data had been the paper's."""
    runs = tables._plan(reproduction_in(done[0]), "file", 2)
    source = dataclasses.make_dataclass("Source", ["kind", "name"])("tv_shows", "TV")
    table = tables._perplexities(source, runs, "seen")
    assert [row["all"].published for row in table.cells.values()] == [
        46.7, 51.2, 52.1, 82.1, 82.1, 113.0, 113.0, None
    ]  # fmt: skip
    lower = tables._lower_by(table).cells["FedPerC than Split-Learning"]["all"]
    assert lower.published == pytest.approx(100 * (1 - 46.7 / 82.1))
    assert "(46.70)" in table.markdown()
