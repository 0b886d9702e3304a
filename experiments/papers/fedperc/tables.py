"""Tables 1, 2 and 3 of the FedPerC paper (Silva et al., EACL Findings 2023) at once."""

from __future__ import annotations

import csv
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.fedperc import base_model
from experiments.papers.fedperc.embedding_specificity import SHARES, measure_specificity
from experiments.papers.fedperc.paired_perplexities import BASE, paired_table
from experiments.papers.fedperc.pass_times import time_passes
from experiments.papers.reproduction import Reproduction, Row
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable, over_seeds
from experiments.papers.runs import Measure, Run, check_splits, complete
from fedpersonal.tasks.utterances.methods import FEDERATED
from fedpersonal.tasks.utterances.source import Dialogues
from fedpersonal.tasks.utterances.task import TASK

METHODS = {method.name: method for method in FEDERATED if not method.parts}
SAMPLES = ("1", "5", "15", "all")
REPEATS = 30
_USERS = {"seen": "Table 1: perplexity of seen users", "unseen": "Table 2: of unseen users"}
_FROZEN = "fedperc_frozen"
# Rates that were best on validation users of the TV shows; FedPerC has that of its preset.
_RATES = {
    **{name: {"client_learning_rate": 0.003} for name in METHODS if name != "fedperc"},
    "split_learning": {"client_learning_rate": 0.0005},
}
ROWS = tuple(
    Row(
        method.title,
        "tv_shows_{}" if name == "fedperc" else "tv_shows_{}_rivals",
        {"algorithm": name, **_RATES.get(name, {})},
    )
    for name, method in METHODS.items()
)
# What stands in the tables: its title, the runs that it is read off, and whether it depends on how
# many samples a user gives.
LINES = {
    "fedperc": (METHODS["fedperc"].title, "fedperc", True),
    _FROZEN: ("FedPerC (Frozen)", "fedperc", False),
    **{n: (method.title, n, True) for n, method in METHODS.items() if n != "fedperc"},
    BASE: ("Base model", BASE, False),
}
# Milliseconds of a pass on an NVIDIA A40, train and test.
_PAPER_PASSES = {
    "fedperc": (88.18, 40.37),
    "fedperc_generated": (55.96, 47.02),
    "split_learning": (222.08, 65.42),
    "meta_learning": (111.81, 36.77),
}
_WHAT = (
    "By how many of a user's other utterances its copy of the model was fine-tuned on; Generated "
    "reads them only, Frozen and the base model do nothing with them; in brackets the paper's, "
    "where it has any. Lower is better."
)
_TABLE_3 = (
    "Milliseconds of a step of one user, and of a forward pass, both on 15 utterances: median ± "
    "standard deviation, all methods by turns in one process; in brackets the paper's, of an A40. "
    "FedPerC (Frozen) is FedPerC without steps before a test, and has no passes of its own. Bytes "
    "that a user keeps, receives and sends in a round; and what it needs beside the frozen base of "
    "{:,} bytes, which it receives once: kept and received, also in per cent of Split-Learning's "
    "(paper: 0.001 %)."
)
# By algorithm or measure, and by `seen` or `unseen`: a run a seed.
Runs = Mapping[tuple[str, str], Sequence[Run]]


@functools.cache
def published() -> dict[tuple[str, ...], float]:
    """Returns Tables 1 and 2, means over 15 seeds, by data set, users, line and samples."""
    path = pathlib.Path(__file__).with_name("published_perplexities.csv")
    with open(path, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return {tuple(row[:4]): float(row[4]) for row in rows}


def run(asked: Reproduction, *, repeats: int = REPEATS) -> Report:
    """Runs what is missing; returns the tables of all data sets, and draws them."""
    names = asked.datasets or [asked.dataset]
    each = [asked.replace(given={**asked.given, "dataset": name}) for name in dict.fromkeys(names)]
    quick = all(own.is_generated for own in each)
    each = [own.with_preset(quick=quick) for own in each]
    found = [(own.read(TASK, "tv_shows_{}"), own) for own in each]
    sources = [(source, _plan(own, source.kind, repeats)) for source, own in found]
    for _, runs in sources:
        trained = [run for users in _USERS for run in runs["fedperc", users]]
        check_splits(trained, isolated=asked.isolated)
    for source, runs in sources:
        every = [run for own in runs.values() for run in own]
        complete(every, source.describe(), isolated=asked.isolated)
    tables = [_perplexities(*own, users) for own in sources for users in _USERS]
    draw(
        tables,
        asked.output_dir / "fedperc_tables.png",
        title="Perplexity by how much a user has written",
        x_label="utterances that a user gives",
        y_label="perplexity",
        off_scale=1.5,
    )
    parts: list[str | ResultTable] = ["# Tables 1, 2 and 3 of FedPerC"]
    for number, (source, runs) in enumerate(sources):
        parts += [f"## {source.name}", _about(each[0], source, runs)]
        for heading, table in zip(_USERS.values(), tables[2 * number :]):
            parts += [f"### {heading}", _WHAT, dataclasses.replace(table, caption="")]
            parts.append(_lower_by(table))
        titles = {name: LINES[name][0] for name in (*METHODS, BASE)}
        tested = {key: own for key, own in runs.items() if key[0] in titles}
        parts += paired_table(source.kind, tested, titles)
        frozen = runs["fedperc", "seen"][0].summary["frozen_bytes"]
        parts += ["### Table 3: time and memory", _TABLE_3.format(frozen), _passes(runs)]
        parts.append(_embedding_note(runs["whose", "seen"]))
    percentiles = [
        _percentiles(source, runs, users) for source, runs in sources for users in _USERS
    ]
    facts = {"preset": each[0].preset, "data": [source.describe() for source, _ in sources]}
    return Report("fedperc_tables", asked.seeds, parts, hidden=percentiles, facts=facts)


def _plan(asked: Reproduction, kind: str, repeats: int) -> Runs:
    """Settles the runs of one data set."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for users in _USERS:
        for name, row in zip(METHODS, ROWS):
            folder, note = f"{kind}/{name}_{users}", f", {users} users"
            runs[name, users] = asked.runs(TASK, row, folder, note=note, evaluate_on=users)
    measured: list[tuple[str, str, Measure]] = [
        *((BASE, users, base_model.test_base_model) for users in _USERS),
        ("whose", "seen", measure_specificity),
        ("passes", "seen", functools.partial(time_passes, repeats=repeats)),
    ]
    for name, users, measure in measured:
        runs[name, users] = [
            Run(
                f"{name.replace('_', ' ')}, {users} users, {own.path.name.replace('_', ' ')}",
                asked.output_dir / kind / f"{name}_{users}" / own.path.name,
                TASK,
                own.values,
                own,
                measure,
            )
            for own in runs["fedperc", users][: 1 if name == "passes" else None]
        ]
    return runs


def _about(asked: Reproduction, source: Dialogues, runs: Runs) -> str:
    """Says what the figures of a data set are of."""
    about, options = source.describe(), runs["fedperc", "seen"][0].options
    return (
        f"{about['num_utterances']:,} utterances of {about['num_users']:,} users, "
        f"{about['num_contexts']} contexts. Preset {asked.preset}: {options.total_rounds:,} rounds "
        f"of at most {options.clients_per_round:,} users, {options.local_steps} steps of "
        f"{options.client_batch_size} utterances each; {asked.seeds_in_words()}. Base model: "
        f"{base_model.describe(runs[BASE, 'seen'][0].summary)}"
    )


def _perplexities(source: Dialogues, runs: Runs, users: str) -> ResultTable:
    columns = {samples: (samples, "perplexity") for samples in SAMPLES}
    caption = f"{source.name}, {users} users"
    cells = _cells(source, runs, users, columns)
    return ResultTable(f"{source.kind}_{users}", cells, caption, 2, "brackets")


def _percentiles(source: Dialogues, runs: Runs, users: str) -> ResultTable:
    """Returns percentiles over users of the perplexity after all samples."""
    names = [f"p{p}" for p in (5, 25, 50, 75, 95)]
    columns = {name: ("all", "percentiles", "perplexity", name) for name in names}
    return ResultTable(f"{source.kind}_{users}_percentiles", _cells(source, runs, users, columns))


def _cells(
    source: Dialogues, runs: Runs, users: str, columns: Mapping[str, tuple[str, ...]]
) -> Cells:
    """Returns a row a line; a column is how many samples a user gives, and a figure's path."""
    cells: Cells = {}
    for line, (title, name, tunes) in LINES.items():
        # The paper does not say how heads start: its figures stand for both.
        key = (source.kind, users, line.removesuffix("_fresh"))
        cells[title] = {
            column: over_seeds(
                runs[name, users],
                *("by_samples", samples if tunes else "0", *path),
                published=published().get((*key, column)),
            )
            for column, (samples, *path) in columns.items()
        }
    return cells


def _lower_by(table: ResultTable) -> ResultTable:
    """Returns by how many per cent ours are lower than each of the others."""

    def lower(own: Cell[float], other: Cell[float]) -> Cell[float]:
        paper = None
        if own.published and other.published:
            paper = 100 * (1 - own.published / other.published)
        return Cell((100 * (1 - own.mean / other.mean),), paper)

    ours = [LINES[name][0] for name in ("fedperc", "fedperc_generated")]
    others = [title for title in table.cells if title not in (*ours, LINES[_FROZEN][0])]
    cells: Cells = {
        f"{own} than {other}": {
            samples: lower(table.cells[own][samples], table.cells[other][samples])
            for samples in SAMPLES
        }
        for own in ours
        for other in others
    }
    caption = "By how many per cent perplexity is lower:"
    return ResultTable(f"{table.name}_lower_by", cells, caption, 1, "brackets")


def _passes(runs: Runs) -> ResultTable:
    """Returns Table 3. However heads start, they are as large: there is one row for both."""
    from fedpersonal.local_state.store import LOCAL_STATE

    times = runs["passes", "seen"][0].summary
    cells: Cells = {}
    sizes: dict[str, dict[str, float]] = {}
    for name, paper in _PAPER_PASSES.items():
        first = runs[name, "seen"][0]
        summary = first.summary
        kept = summary["local_bytes_per_client"] if (first.path / LOCAL_STATE).exists() else 0
        received, sent = (summary[f"{way}_bytes_per_client"] for way in ("broadcast", "aggregated"))
        sizes[name] = {"kept": kept, "received": received, "sent": sent, "needed": kept + received}
        cells[LINES[name][0]] = {
            f"{what}, ms": Cell((own["median"],), figure, own["sd"])
            for (what, own), figure in zip(times[name].items(), paper)
        }
    for row, own in zip(cells.values(), sizes.values()):
        row.update({column: Cell((size,)) for column, size in own.items()})
        share = 100 * own["needed"] / sizes["split_learning"]["needed"]
        row["of heads, %"] = Cell((share,))
    digits: dict[Column, int] = {
        name: 1 if "ms" in name else 3 if "%" in name else 0 for name in map(str, row)
    }
    return ResultTable("passes", cells, "", digits, "brackets")


def _embedding_note(runs: Sequence[Run]) -> str:
    """Returns what is known of whose embedding predicts whom."""
    first: dict[str, Any] = runs[0].summary
    if not first["num_pairs"]:
        return "Whose embedding: no user shares a context with another, so none was compared."
    of_users, of_mean, of_pairs = (over_seeds(runs, s, scale=100).text(0) for s in SHARES)
    return (
        f"Whose embedding: the held-out utterances of {of_users} % of {first['num_users']:,} "
        "seen users are likelier behind their own embedding, without fine-tuning, than behind the "
        f"median one of others in the same context; of {of_mean} % likelier than by the mean of "
        f"the others' losses. Of {first['num_pairs']:,} pairs of a user and another, the user's "
        f"own is better in {of_pairs} %, by chance 50 %."
    )
