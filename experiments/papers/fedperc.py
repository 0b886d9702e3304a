"""Tables of the FedPerC paper (Silva et al., EACL Findings 2023), and other parts of its base.

`tables` are Tables 1, 2 and 3 at once. `parts` is not in the paper: parts of the same frozen base
that are shared, each user's own or both, compared on the same users, with the bytes that each keeps
and moves, with the base by itself, and with what a server that has everybody's data makes of the
same parts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers import fedperc_data as paper
from experiments.papers import fedperc_measures as measures
from experiments.papers.fedperc_data import BASE, BASE_ROW, LINES, OURS, USERS
from experiments.papers.jobs import Job, Measure, check_splits
from experiments.papers.picture import draw
from experiments.papers.reproduction import Reproduction, choose_rows
from experiments.papers.table import (
    Cell,
    Cells,
    Column,
    Line,
    Report,
    Table,
    constant,
    difference,
    figure,
    over_seeds,
)
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.evaluation.statistics import PairedDifference, paired_bootstrap
from fedpersonal.tasks.utterances.methods import METHODS
from fedpersonal.tasks.utterances.source import Dialogues
from fedpersonal.tasks.utterances.task import TASK

_LOG = ClientMetric("perplexity_after", weights="num_tokens", to_mean=np.log)
_FEDERATED = {method.name for method in METHODS if method.is_federated}
# By method or measure, and by `seen` or `unseen`: a job a seed.
Jobs = Mapping[tuple[str, str], Sequence[Job]]


def tables(asked: Reproduction, *, repeats: int = paper.REPEATS) -> Report:
    """Runs what is missing; returns the tables of all data sets, and draws them."""
    names = asked.datasets or [asked.dataset]
    each = [asked.replace(given={**asked.given, "dataset": name}) for name in dict.fromkeys(names)]
    quick = all(own.is_generated for own in each)
    each = [own.with_preset(quick=quick) for own in each]
    found = [(own.read(TASK, paper.FEDPERC), own) for own in each]
    sources = [(source, plan(own, source.kind, repeats)) for source, own in found]
    for _, jobs in sources:
        check_splits([job for users in USERS for job in jobs["fedperc", users]])
    for source, jobs in sources:
        asked.complete(source, *jobs.values())
    drawn = [perplexities(*own, users) for own in sources for users in USERS]
    draw(
        drawn,
        asked.output_dir / "fedperc_tables.png",
        title="Perplexity by how much a user has written",
        x_label="utterances that a user gives",
        y_label="perplexity",
        off_scale=1.5,
    )
    parts: list[str | Table] = ["# Tables 1, 2 and 3 of FedPerC"]
    for number, (source, jobs) in enumerate(sources):
        parts += [f"## {source.name}", _about(each[0], source, jobs)]
        for heading, table in zip(USERS.values(), drawn[2 * number :]):
            parts += [f"### {heading}", paper.WHAT, dataclasses.replace(table, caption="")]
            parts.append(lower_by(table))
        parts += [paper.PAIRED, _paired(source.kind, jobs)]
        frozen = jobs["fedperc", "seen"][0].summary["frozen_bytes"]
        parts += ["### Table 3: time and memory", paper.TABLE_3.format(frozen), _passes(jobs)]
        parts.append(_embedding_note(jobs["whose", "seen"]))
    percentiles = [_percentiles(source, jobs, users) for source, jobs in sources for users in USERS]
    facts = {"preset": each[0].preset, "data": [source.describe() for source, _ in sources]}
    return Report("fedperc_tables", asked.seeds, parts, hidden=percentiles, facts=facts)


def plan(asked: Reproduction, kind: str, repeats: int) -> Jobs:
    """Settles the jobs of one data set."""
    jobs: dict[tuple[str, str], list[Job]] = {}
    for users in USERS:
        for name, row in zip(paper.IN_TABLES, paper.TABLE_ROWS):
            folder, note = f"{kind}/{name}_{users}", f", {users} users"
            jobs[name, users] = asked.jobs(TASK, row, folder, note=note, evaluate_on=users)
    measured: list[tuple[str, str, Measure]] = [
        *((BASE, users, measures.test_base_model) for users in USERS),
        ("whose", "seen", measures.measure_specificity),
        ("passes", "seen", functools.partial(measures.time_passes, repeats=repeats)),
    ]
    for name, users, measure in measured:
        path, what = asked.output_dir / kind / f"{name}_{users}", name.replace("_", " ")
        trained = jobs["fedperc", users][: 1 if name == "passes" else None]
        jobs[name, users] = [job.then(path, f"{what}, {users} users", measure) for job in trained]
    return jobs


def _about(asked: Reproduction, source: Dialogues, jobs: Jobs) -> str:
    """Says what the figures of a data set are of."""
    about, options = source.describe(), jobs["fedperc", "seen"][0].options
    return (
        f"{about['num_utterances']:,} utterances of {about['num_users']:,} users, "
        f"{about['num_contexts']} contexts. Preset {asked.preset}: {options.total_rounds:,} rounds "
        f"of at most {options.clients_per_round:,} users, {options.local_steps} steps of "
        f"{options.client_batch_size} utterances each; {asked.seeds_in_words()}. Base model: "
        f"{measures.describe_base(jobs[BASE, 'seen'][0].summary)}"
    )


def perplexities(source: Dialogues, jobs: Jobs, users: str) -> Table:
    """Returns the perplexities of seen or unseen users by how many samples each gives."""
    figures = [(n, n, ("perplexity",)) for n in paper.SAMPLES]
    caption = f"{source.name}, {users} users"
    blocks = _blocks(source, jobs, users, figures, digits=2)
    return Table.of(f"{source.kind}_{users}", *blocks, caption=caption, published="brackets")


def _percentiles(source: Dialogues, jobs: Jobs, users: str) -> Table:
    """Returns percentiles over users of the perplexity after all samples."""
    names = [f"p{p}" for p in (5, 25, 50, 75, 95)]
    figures = [(n, "all", ("percentiles", "perplexity", n)) for n in names]
    blocks = _blocks(source, jobs, users, figures, digits=1)
    return Table.of(f"{source.kind}_{users}_percentiles", *blocks)


def _blocks(
    source: Dialogues,
    jobs: Jobs,
    users: str,
    figures: Sequence[tuple[str, str, tuple[str, ...]]],
    *,
    digits: int,
) -> Iterator[tuple[list[Line], list[Column]]]:
    """Yields each line with its columns: title, samples of a user, and where the figure is."""
    for name, (title, of, tunes) in LINES.items():
        # The paper does not say how heads start: its figures stand for both.
        key = (source.kind, users, name.removesuffix("_fresh"))
        known = {samples: paper.published().get((*key, samples)) for samples in paper.SAMPLES}
        columns = [
            figure(n, "by_samples", samples if tunes else "0", *path, digits=digits)
            for n, samples, path in figures
        ]
        yield [Line(title, jobs[of, users], known)], columns


def lower_by(table: Table) -> Table:
    """Returns by how many per cent ours are lower than each of the others."""

    def lower(own: Cell[float], other: Cell[float]) -> Cell[float]:
        published = None
        if own.published and other.published:
            published = 100 * (1 - own.published / other.published)
        return Cell((100 * (1 - own.mean / other.mean),), published)

    ours = [LINES[name][0] for name in ("fedperc", "fedperc_generated")]
    others = [title for title in table.cells if title not in (*ours, LINES[paper.FROZEN][0])]
    cells: Cells = {
        f"{own} than {other}": {
            samples: lower(table.cells[own][samples], table.cells[other][samples])
            for samples in paper.SAMPLES
        }
        for own in ours
        for other in others
    }
    caption = "By how many per cent perplexity is lower:"
    return Table(f"{table.name}_lower_by", cells, caption, 1, "brackets")


def _paired(name: str, jobs: Jobs) -> Table:
    """Returns by how much methods differ from FedPerC and from the base model, user by user."""

    def higher(other: str, users: str, line: Line) -> Cell | None:
        if line.name == LINES[other][0]:
            return None
        found = difference(line.guess, _clients(other, jobs[other, users]), _LOG)
        values, ends = (100 * np.expm1(x) for x in (found.values, found.interval or ()))
        return Cell(tuple(values.tolist()), interval=tuple(ends.tolist()) or None)

    blocks = [
        (
            [Line(LINES[own][0], guess=_clients(own, jobs[own, users])) for own in paper.IN_TABLES],
            [
                Column(
                    f"{users} users, than {LINES[other][0]}",
                    functools.partial(higher, other, users),
                )
                for other in (BASE, OURS)
            ],
        )
        for users in USERS
    ]
    return Table.of(f"{name}_paired", *blocks)


def _clients(method: str, jobs: Sequence[Job]) -> list[pd.DataFrame]:
    """Returns each test user's perplexity and tokens, a table a seed."""
    if method != BASE:
        return [job.record.per_client for job in jobs]
    return [
        pd.DataFrame({**job.summary["clients"], "num_tokens": job.summary["tokens"]})
        for job in jobs
    ]


def _sizes(job: Job) -> dict[str, int]:
    """Returns the bytes that a user keeps, receives and sends in a round."""
    from fedpersonal.runs.store import LOCAL_STATE

    ways = {"kept": "local", "received": "broadcast", "sent": "aggregated"}
    sizes = {name: job.summary[f"{way}_bytes_per_client"] for name, way in ways.items()}
    return {**sizes, "kept": sizes["kept"] if (job.path / LOCAL_STATE).exists() else 0}


def _passes(jobs: Jobs) -> Table:
    """Returns Table 3. However heads start, they are as large: there is one row for both."""
    times = jobs["passes", "seen"][0].summary
    names = {LINES[name][0]: name for name in paper.PAPER_PASSES}

    def kept_or_moved(size: str, job: Job) -> int:
        return _sizes(job)[size]

    def needed(job: Job) -> int:
        return _sizes(job)["kept"] + _sizes(job)["received"]

    def time(number: int, what: str, line: Line) -> Cell:
        name = names[line.name]
        own = times[name][what]
        return Cell((own["median"],), paper.PAPER_PASSES[name][number], own["sd"])

    of_heads = needed(jobs["split_learning", "seen"][0])
    columns = [
        *(
            Column(f"{what}, ms", functools.partial(time, number, what))
            for number, what in enumerate(("train", "test"))
        ),
        *(constant(size, functools.partial(kept_or_moved, size)) for size in _BYTES),
        constant("needed", needed),
        constant("of heads, %", lambda job: 100 * needed(job) / of_heads, digits=3),
    ]
    lines = [Line(title, jobs[name, "seen"]) for title, name in names.items()]
    return Table.of("passes", (lines, columns), published="brackets")


_BYTES = ("kept", "received", "sent")


def _embedding_note(jobs: Sequence[Job]) -> str:
    """Returns what is known of whose embedding predicts whom."""
    first: dict[str, Any] = jobs[0].summary
    if not first["num_pairs"]:
        return "Whose embedding: no user shares a context with another, so none was compared."
    shares = (over_seeds(jobs, share, scale=100).text(0) for share in measures.SHARES)
    of_users, of_mean, of_pairs = shares
    return (
        f"Whose embedding: the held-out utterances of {of_users} % of {first['num_users']:,} "
        "seen users are likelier behind their own embedding, without fine-tuning, than behind the "
        f"median one of others in the same context; of {of_mean} % likelier than by the mean of "
        f"the others' losses. Of {first['num_pairs']:,} pairs of a user and another, the user's "
        f"own is better in {of_pairs} %, by chance 50 %."
    )


def parts(asked: Reproduction) -> Report:
    """Runs what is missing; returns the tables of other parts of the same base."""
    rows = choose_rows(paper.PART_ROWS, asked.rows, table="fedperc_parts")
    asked = asked.with_preset(quick=asked.is_generated)
    if asked.given.get("base_model"):
        # A base that is named is not trained further.
        rows = [row for row in rows if "base_model_adapted" not in row.values]
    source = asked.read(TASK, paper.FEDPERC)
    # FedPerC and the base by itself are what the others are compared with.
    own_name = paper.OWN_ROW.name
    trained = {
        row.name: asked.jobs(
            TASK, row, folder_of(row.name), note=", seen users", evaluate_on="seen"
        )
        for row in dict.fromkeys([paper.OWN_ROW, *rows])
    }
    losses = {name: _measured(asked, name, own) for name, own in trained.items()}
    for name in list(trained):
        if name.removesuffix(paper.ADAPTED) == own_name:
            base = name.replace(own_name, BASE_ROW)
            losses[base] = _measured(asked, base, trained[name], base_alone=True)
    asked.complete(source, *trained.values(), *losses.values())
    first = losses[own_name][0].summary
    about = paper.ABOUT_PARTS.format(
        share=f"{100 * first['repeated']:.1f} %",
        long=f"{100 * first['repeated_long']:.1f} %",
        words=measures.LONG,
        frozen=trained[own_name][0].summary["frozen_bytes"],
    )
    parts: list[str | Table] = [
        f"# FedPerC beside other parts of a frozen base, on {source.name}",
        f"Preset {asked.preset}; {asked.seeds_in_words()}. {about}",
        _part_perplexities(trained, losses),
        paper.PAIRED_PARTS,
        Table("paired", _paired_parts(losses, "all")),
        "The same on new lines:",
        Table("paired_new", _paired_parts(losses, "new")),
    ]
    return Report("fedperc_parts", asked.seeds, parts, facts={"data": source.describe()})


def folder_of(name: str) -> str:
    """Returns the folder of a row."""
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _measured(asked: Reproduction, name: str, jobs: Sequence[Job], **options: bool) -> list[Job]:
    """Returns the jobs that measure each user's losses after others' training."""
    measure = functools.partial(measures.measure_losses, **options)
    folder = asked.output_dir / f"losses_{folder_of(name)}"
    return [job.then(folder, f"losses, {name}", measure) for job in jobs]


def _part_perplexities(
    trained: Mapping[str, Sequence[Job]], losses: Mapping[str, Sequence[Job]]
) -> Table:
    def perplexity(lines: str, line: Line) -> Cell:
        sums = [job.summary[lines] for job in line.jobs]
        return Cell(tuple(math.exp(sum(own["loss"]) / sum(own["tokens"])) for own in sums))

    def size(way: str, line: Line) -> Cell | None:
        own = trained.get(line.name, ())
        if not own or own[0].options.method not in _FEDERATED:
            return None
        return Cell((_sizes(own[0])[way],))

    columns = [
        Column("perplexity", functools.partial(perplexity, "all"), 2),
        Column("new lines", functools.partial(perplexity, "new"), 2),
        *(Column(way, functools.partial(size, way), 0) for way in _BYTES),
    ]
    return Table.of("perplexity", ([Line(name, own) for name, own in losses.items()], columns))


def _paired_parts(losses: Mapping[str, Sequence[Job]], lines: str) -> Cells:
    """Compares each row with the base model, FedPerC and its shared part, on the same users."""
    cells: Cells = {}
    own_name = paper.OWN_ROW.name
    for name in (row for row in losses if row != BASE_ROW):
        shared = paper.SHARED.get(name, name)
        others = {BASE_ROW: BASE_ROW, own_name: own_name, "the shared part": shared}
        cells[name] = {
            f"than {told}": Cell((_higher_by(compare(losses[name], losses[other], lines)),))
            for told, other in others.items()
            if other in losses and other != name
        }
    return cells


def compare(first: Sequence[Job], second: Sequence[Job], lines: str) -> PairedDifference:
    """Compares losses a token of two methods, whose jobs are by the same seeds."""
    columns = [[job.summary[lines][c] for c in ("loss", "tokens")] for job in (*first, *second)]
    sums = np.moveaxis(np.array(columns, np.float64), 1, -1)
    return paired_bootstrap(sums[: len(first)], sums[len(first) :])


def _higher_by(found: PairedDifference) -> str:
    mean, low, high = (100 * math.expm1(d) for d in (found.difference, found.low, found.high))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})" if found.has_interval else f"{mean:+.1f}"
