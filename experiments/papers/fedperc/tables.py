"""Tables 1, 2 and 3 of the FedPerC paper (Silva et al., EACL Findings 2023) in one sweep."""

from __future__ import annotations

import csv
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers.fedperc import base_model
from experiments.papers.fedperc.embedding_specificity import SHARES, measure_specificity
from experiments.papers.fedperc.pass_times import time_passes
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Report, ResultTable, over_seeds
from experiments.papers.runs import Measure, Run, check_splits, complete
from experiments.papers.sweep import Row, Sweep
from fedpersonal.tasks.task import Source
from fedpersonal.tasks.training_run import STORE
from fedpersonal.tasks.utterances.task import TASK

TASKS = (TASK,)
METHODS = {method.name: method for method in TASK.own_methods}
SAMPLES = ("1", "5", "15", "all")
REPEATS = 30
_USERS = {"seen": "Table 1: perplexity of seen users", "unseen": "Table 2: of unseen users"}
_BASE, _FROZEN = "Base model", "FedPerC (Frozen)"
# Rates that were best on validation users of the TV shows.
_RATES = {name: 0.003 for name in METHODS if name.endswith(("_fresh", "_generated"))}
ROWS = tuple(
    Row(
        method.title,
        "tv_shows_{}" if name == "fedperc" else "tv_shows_{}_rivals",
        {"algorithm": name, **({"client_learning_rate": _RATES[name]} if name in _RATES else {})},
    )
    for name, method in METHODS.items()
)
# By title: what a row is of, and whether it depends on how many samples a user gives.
_LINES = {
    METHODS["fedperc"].title: ("fedperc", True),
    _FROZEN: ("fedperc", False),
    **{method.title: (name, True) for name, method in METHODS.items() if name != "fedperc"},
    _BASE: (_BASE, False),
}
# Milliseconds of a pass on an NVIDIA A40, train and test.
_PAPER_PASSES = {
    "fedperc": (88.18, 40.37),
    "fedperc_generated": (55.96, 47.02),
    "split_learning": (222.08, 65.42),
    "meta_learning": (111.81, 36.77),
}
# Runs of a data set, by algorithm or measure, and by `seen` or `unseen`: one a seed.
Runs = Mapping[tuple[str, str], Sequence[Run]]


@dataclasses.dataclass(frozen=True)
class Found:
    """The runs of a data set.

    Attributes:
        source: The utterances.
        runs: Their runs.
    """

    source: Source
    runs: Runs

    def table(self, users: str) -> ResultTable:
        """Returns the perplexities of `seen` or `unseen` users, a line a method."""
        cells = {}
        for title, (name, tunes) in _LINES.items():
            runs = self.runs[name, users]
            cells[title] = {
                samples: over_seeds(
                    runs,
                    *("by_samples", samples if tunes else "0", "perplexity"),
                    published=published_perplexity(self.source.kind, users, title, samples),
                )
                for samples in SAMPLES
            }
        caption = f"{self.source.name}, {users} users"
        return ResultTable(f"{self.source.kind}_{users}", cells, caption, 2, "brackets")


@functools.cache
def _published() -> dict[tuple[str, ...], float]:
    path = pathlib.Path(__file__).with_name("published_perplexities.csv")
    with open(path, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return {tuple(row[:4]): float(row[4]) for row in rows}


def published_perplexity(dataset: str, users: str, title: str, samples: str) -> float | None:
    """Returns a perplexity of Table 1 or 2, a mean over 15 seeds; None of what they lack.

    Args:
        dataset: The data set, such as `tv_shows`.
        users: `seen` or `unseen`.
        title: A method's title; how heads start the paper does not say, so its figures stand for
            both.
        samples: One of `SAMPLES`.
    """
    name = "fedperc_frozen" if title == _FROZEN else _LINES[title][0].removesuffix("_fresh")
    return _published().get((dataset, users, name, samples))


def run(sweep: Sweep, *, repeats: int = REPEATS) -> Report:
    """Runs what is missing; returns the tables of all data sets, and draws them.

    Args:
        sweep: What is asked.
        repeats: How often each pass is timed.
    """
    names = sweep.datasets or [sweep.given.get("dataset", "auto")]
    asked = [sweep.replace(given={**sweep.given, "dataset": name}) for name in dict.fromkeys(names)]
    quick = all(own.is_generated for own in asked)
    asked = [own.with_preset(quick=quick) for own in asked]
    found = [_plan(own, repeats) for own in asked]
    for own in found:
        split = [run for users in _USERS for run in own.runs["fedperc", users]]
        check_splits(split, isolated=sweep.isolated)
    for own in found:
        every = [run for runs in own.runs.values() for run in runs]
        complete(every, own.source.describe(), isolated=sweep.isolated)
    parts: list[str | ResultTable] = ["# Tables 1, 2 and 3 of FedPerC"]
    for own in found:
        parts += _parts(asked[0], own)
    draw(
        [own.table(users) for own in found for users in _USERS],
        sweep.output_dir / "fedperc_tables.png",
        title="Perplexity by how much a user has written",
        x_label="utterances that a user gives",
        y_label="perplexity",
        off_scale=1.5,
    )
    facts = {
        "preset": asked[0].preset,
        "data": [own.source.describe() for own in found],
        "user_percentiles": {own.source.kind: _user_percentiles(own.runs) for own in found},
    }
    return Report("fedperc_tables", sweep.seeds, parts, facts=facts)


def _plan(sweep: Sweep, repeats: int) -> Found:
    """Settles the runs of one data set."""
    source = sweep.read(TASK, "tv_shows_{}")
    runs = {
        (row.values["algorithm"], users): sweep.runs(
            TASK,
            row,
            f"{source.kind}/{row.values['algorithm']}_{users}",
            note=f", {users} users",
            evaluate_on=users,
        )
        for users in _USERS
        for row in ROWS
    }
    folder = sweep.output_dir / source.kind

    def measured(title: str, measure: Measure, users: str) -> list[Run]:
        name = title.lower().replace(" ", "_")
        return [
            Run(
                f"{title}, {users} users, seed {trained.options.seed}",
                folder / f"{name}_{users}" / trained.path.name,
                TASK,
                trained.values,
                trained,
                measure,
            )
            for trained in runs["fedperc", users]
        ]

    passes = functools.partial(time_passes, repeats=repeats)
    further = {
        **{(_BASE, users): measured(_BASE, base_model.test_base_model, users) for users in _USERS},
        ("whose", "seen"): measured("Whose embedding", measure_specificity, "seen"),
        ("passes", "seen"): measured("Times of passes", passes, "seen")[:1],
    }
    return Found(source, {**runs, **further})


def _parts(sweep: Sweep, found: Found) -> list[str | ResultTable]:
    """Returns what is said of one data set."""
    about, runs = found.source.describe(), found.runs
    options = runs["fedperc", "seen"][0].options
    base = base_model.describe(runs[_BASE, "seen"][0].summary["base"])
    parts: list[str | ResultTable] = [
        f"## {found.source.name}",
        f"{about['num_utterances']:,} utterances of {about['num_users']:,} users, "
        f"{about['num_contexts']} contexts. Preset {sweep.preset}: {options.total_rounds:,} rounds "
        f"of at most {options.clients_per_round:,} users, {options.local_steps} steps of "
        f"{options.client_batch_size} utterances each; {sweep.seeds_in_words()}. Base model: "
        f"{base}",
    ]
    for users, heading in _USERS.items():
        table = found.table(users)
        parts += [
            f"### {heading}",
            "By how many of a user's other utterances its copy of the model was fine-tuned on; "
            "Generated reads them only, Frozen and the base model do nothing with them; in "
            "brackets the paper's, where it has any. Lower is better.",
            dataclasses.replace(table, caption=""),
            _lower_by(table),
        ]
    return [*parts, *_pass_table(runs), _embedding_note(runs["whose", "seen"])]


def _lower_by(table: ResultTable) -> ResultTable:
    """Returns by how many per cent ours are lower than each of the others."""
    ours = [METHODS[name].title for name in ("fedperc", "fedperc_generated")]
    cells = {}
    for title in ours:
        for other in [other for other in _LINES if other not in (*ours, _FROZEN)]:
            cells[f"{title} than {other}"] = {
                samples: _lower(table.cells[title][samples], table.cells[other][samples])
                for samples in SAMPLES
            }
    caption = "By how many per cent perplexity is lower:"
    return ResultTable(f"{table.name}_lower_by", cells, caption, 1, "brackets")


def _lower(own: Cell, other: Cell) -> Cell:
    published = None
    if own.published and other.published:
        published = 100 * (1 - own.published / other.published)
    return Cell((100 * (1 - own.mean / other.mean),), published)


def _pass_table(runs: Runs) -> list[str | ResultTable]:
    """Returns Table 3: times of passes, and what users hold, receive and send.

    However heads start, they are as large: there is one row for both.
    """
    times = runs["passes", "seen"][0].summary
    firsts = {name: runs[name, "seen"][0] for name in times}
    of_heads = _needed(firsts["split_learning"])
    cells = {}
    for name, first in firsts.items():
        summary = first.summary
        passes = {
            f"{what}, ms": Cell((own["median"],), paper, own["sd"])
            for (what, own), paper in zip(times[name].items(), _PAPER_PASSES[name])
        }
        sizes = {
            "kept": _kept(first),
            "received": summary["broadcast_bytes_per_client"],
            "sent": summary["aggregated_bytes_per_client"],
            "needed": _needed(first),
            "of heads, %": 100 * _needed(first) / of_heads,
        }
        cells[METHODS[name].title] = {**passes, **{n: Cell((v,)) for n, v in sizes.items()}}
    columns = next(iter(cells.values()))
    digits = {column: 1 if "ms" in column else 3 if "%" in column else 0 for column in columns}
    frozen = firsts["fedperc"].summary["frozen_bytes"]
    return [
        "### Table 3: time and memory",
        "Milliseconds of a step of one user, and of a forward pass, both on 15 utterances: median "
        "± standard deviation, all methods by turns in one process; in brackets the paper's, of an "
        f"A40. {_FROZEN} is FedPerC without steps before a test, and has no passes of its own. "
        "Bytes that a user keeps, receives and sends in a round; and what it needs beside the "
        f"frozen base of {frozen:,} bytes, which it receives once: kept and received, also in per "
        "cent of Split-Learning's (paper: 0.001 %).",
        ResultTable("passes", cells, "", digits, "brackets"),
    ]


def _kept(run: Run) -> int:
    is_kept = (run.path / STORE).exists()
    return run.summary["local_bytes_per_client"] if is_kept else 0


def _needed(run: Run) -> int:
    return _kept(run) + run.summary["broadcast_bytes_per_client"]


def _embedding_note(runs: Sequence[Run]) -> str:
    """Returns what is known of whose embedding predicts whom."""
    first = runs[0].summary
    if not first["num_pairs"]:
        return "Whose embedding: no user shares a context with another, so none was compared."
    of_users, of_mean, of_pairs = (over_seeds(runs, share, scale=100).text(0) for share in SHARES)
    return (
        f"Whose embedding: the held-out utterances of {of_users} % of {first['num_users']:,} "
        "seen users are likelier behind their own embedding, without fine-tuning, than behind the "
        f"median one of others in the same context; of {of_mean} % likelier than by the mean of "
        f"the others' losses. Of {first['num_pairs']:,} pairs of a user and another, the user's "
        f"own is better in {of_pairs} %, by chance 50 %."
    )


def _user_percentiles(runs: Runs) -> dict[str, Any]:
    """Returns percentiles over users of the perplexity after all samples, means over seeds."""
    found: dict[str, Any] = {}
    for users in _USERS:
        for title, (name, tunes) in _LINES.items():
            of_seeds = [
                run.summary["by_samples"]["all" if tunes else "0"]["percentiles"]["perplexity"]
                for run in runs[name, users]
            ]
            means = {p: float(np.mean([own[p] for own in of_seeds])) for p in of_seeds[0]}
            found.setdefault(users, {})[title] = means
    return found
