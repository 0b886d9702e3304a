"""Tables of the FedPerC paper (Silva et al., EACL Findings 2023), and other parts of its base.

`tables` makes Tables 1, 2 and 3. `parts` is not in the paper: it compares shared and local parts of
the same frozen base on the same users, with the bytes that users keep and move, with the base
model, and with centralised training of the same parts.
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

from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.evaluation.statistics import PairedDifference, paired_bootstrap
from fedpersonal.suite.papers import fedperc_data as paper
from fedpersonal.suite.papers import fedperc_measures as measures
from fedpersonal.suite.papers.fedperc_data import BASE, BASE_ROW, LINES, OURS, USERS
from fedpersonal.suite.papers.jobs import Job, Measure, check_splits
from fedpersonal.suite.papers.picture import draw
from fedpersonal.suite.papers.reproduction import Reproduction, choose_rows
from fedpersonal.suite.papers.table import (
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
from fedpersonal.suite.tasks.utterances.methods import METHODS
from fedpersonal.suite.tasks.utterances.source import Dialogues
from fedpersonal.suite.tasks.utterances.task import TASK

_LOG = ClientMetric("perplexity_after", weights="num_tokens", to_mean=np.log)
_FEDERATED = {method.name for method in METHODS if method.is_federated}
# The jobs by method or measure and by `seen` or `unseen`, one per seed.
Jobs = Mapping[tuple[str, str], Sequence[Job]]


def tables(request: Reproduction, *, repeats: int = paper.REPEATS) -> Report:
    """Runs the missing runs; returns the tables of all data sets, and draws them."""
    names = request.datasets or [request.dataset]
    requests = [
        request.replace(options={**request.options, "dataset": name})
        for name in dict.fromkeys(names)
    ]
    quick = all(one.is_generated for one in requests)
    requests = [one.with_preset(quick=quick) for one in requests]
    pairs = [(one.read(TASK, paper.FEDPERC), one) for one in requests]
    sources = [(source, plan(one, source.kind, repeats)) for source, one in pairs]
    for _, jobs in sources:
        check_splits([job for users in USERS for job in jobs["fedperc", users]])
    for source, jobs in sources:
        request.complete(source, *jobs.values())
    panels = [perplexities(*pair, users) for pair in sources for users in USERS]
    draw(
        panels,
        request.output_dir / "fedperc_tables.png",
        title="Perplexity by the number of a user's utterances",
        x_label="utterances of a user for fine-tuning",
        y_label="perplexity",
        off_scale=1.5,
    )
    parts: list[str | Table] = ["# Tables 1, 2 and 3 of FedPerC"]
    for number, (source, jobs) in enumerate(sources):
        parts += [f"## {source.name}", _about(requests[0], source, jobs)]
        for heading, table in zip(USERS.values(), panels[2 * number :]):
            parts += [f"### {heading}", paper.CAPTION, dataclasses.replace(table, caption="")]
            parts.append(reductions(table))
        parts += [paper.PAIRED, _paired(source.kind, jobs)]
        frozen = jobs["fedperc", "seen"][0].summary["frozen_bytes"]
        parts += ["### Table 3: time and memory", paper.TABLE_3.format(frozen), _passes(jobs)]
        parts.append(_embedding_note(jobs["whose", "seen"]))
    percentiles = [_percentiles(source, jobs, users) for source, jobs in sources for users in USERS]
    facts = {"preset": requests[0].preset, "data": [source.describe() for source, _ in sources]}
    return Report("fedperc_tables", request.seeds, parts, hidden=percentiles, facts=facts)


def plan(request: Reproduction, kind: str, repeats: int) -> Jobs:
    """Returns the jobs of one data set."""
    jobs: dict[tuple[str, str], list[Job]] = {}
    for users in USERS:
        for name, row in zip(paper.IN_TABLES, paper.TABLE_ROWS):
            folder, note = f"{kind}/{name}_{users}", f", {users} users"
            jobs[name, users] = request.jobs(TASK, row, folder, note=note, evaluate_on=users)
    measured: list[tuple[str, str, Measure]] = [
        *((BASE, users, measures.test_base_model) for users in USERS),
        ("whose", "seen", measures.measure_specificity),
        ("passes", "seen", functools.partial(measures.time_passes, repeats=repeats)),
    ]
    for name, users, measure in measured:
        path = request.output_dir / kind / f"{name}_{users}"
        title = f"{name.replace('_', ' ')}, {users} users"
        trained = jobs["fedperc", users][: 1 if name == "passes" else None]
        jobs[name, users] = [job.followed_by(path, title, measure) for job in trained]
    return jobs


def _about(request: Reproduction, source: Dialogues, jobs: Jobs) -> str:
    """Returns sentences on a data set and the runs on it."""
    about, options = source.describe(), jobs["fedperc", "seen"][0].options
    return (
        f"{about['num_utterances']:,} utterances of {about['num_users']:,} users, "
        f"{about['num_contexts']} contexts. Preset {request.preset}: {options.total_rounds:,} "
        f"rounds of at most {options.clients_per_round:,} users, {options.local_steps} steps of "
        f"{options.client_batch_size} utterances each; {request.seeds_in_words()}. Base model: "
        f"{measures.describe_base(jobs[BASE, 'seen'][0].summary)}"
    )


def perplexities(source: Dialogues, jobs: Jobs, users: str) -> Table:
    """Returns the perplexities of seen or unseen users by their number of samples."""
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
    """Yields each line with its columns; figures are titles, a user's samples and summary keys."""
    for name, (title, method, tunes) in LINES.items():
        # The paper does not say how heads are initialised: both variants have its figures.
        key = (source.kind, users, name.removesuffix("_fresh"))
        published = {samples: paper.published().get((*key, samples)) for samples in paper.SAMPLES}
        columns = [
            figure(n, "by_samples", samples if tunes else "0", *path, digits=digits)
            for n, samples, path in figures
        ]
        yield [Line(title, jobs[method, users], published)], columns


def reductions(table: Table) -> Table:
    """Returns the reduction of perplexity, in per cent, by FedPerC over each other method."""

    def reduction(cell: Cell[float], other: Cell[float]) -> Cell[float]:
        published = None
        if cell.published and other.published:
            published = 100 * (1 - cell.published / other.published)
        return Cell((100 * (1 - cell.mean / other.mean),), published)

    titles = [LINES[name][0] for name in ("fedperc", "fedperc_generated")]
    others = [title for title in table.cells if title not in (*titles, LINES[paper.FROZEN][0])]
    cells: Cells = {
        f"{title} than {other}": {
            samples: reduction(table.cells[title][samples], table.cells[other][samples])
            for samples in paper.SAMPLES
        }
        for title in titles
        for other in others
    }
    caption = "Reduction of perplexity, in per cent:"
    return Table(f"{table.name}_lower_by", cells, caption, 1, "brackets")


def _paired(name: str, jobs: Jobs) -> Table:
    """Returns the differences of methods from FedPerC and from the base model, paired by user."""

    def increase(other: str, users: str, line: Line) -> Cell | None:
        if line.name == LINES[other][0]:
            return None
        change = difference(line.baseline, _clients(other, jobs[other, users]), _LOG)
        values, ends = (100 * np.expm1(x) for x in (change.values, change.interval or ()))
        return Cell(tuple(values.tolist()), interval=tuple(ends.tolist()) or None)

    blocks = [
        (
            [
                Line(LINES[method][0], baseline=_clients(method, jobs[method, users]))
                for method in paper.IN_TABLES
            ],
            [
                Column(
                    f"{users} users, than {LINES[other][0]}",
                    functools.partial(increase, other, users),
                )
                for other in (BASE, OURS)
            ],
        )
        for users in USERS
    ]
    return Table.of(f"{name}_paired", *blocks)


def _clients(method: str, jobs: Sequence[Job]) -> list[pd.DataFrame]:
    """Returns each test user's perplexity and tokens, a table per seed."""
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
    """Returns Table 3; heads have one row, since their size does not depend on initial values."""
    times = jobs["passes", "seen"][0].summary
    names = {LINES[name][0]: name for name in paper.PAPER_PASSES}

    def kept_or_moved(size: str, job: Job) -> int:
        return _sizes(job)[size]

    def needed(job: Job) -> int:
        return _sizes(job)["kept"] + _sizes(job)["received"]

    def time(number: int, kind: str, line: Line) -> Cell:
        name = names[line.name]
        entry = times[name][kind]
        return Cell((entry["median"],), paper.PAPER_PASSES[name][number], entry["sd"])

    bytes_of_heads = needed(jobs["split_learning", "seen"][0])
    columns = [
        *(
            Column(f"{kind}, ms", functools.partial(time, number, kind))
            for number, kind in enumerate(("train", "test"))
        ),
        *(constant(size, functools.partial(kept_or_moved, size)) for size in _BYTES),
        constant("needed", needed),
        constant("of heads, %", lambda job: 100 * needed(job) / bytes_of_heads, digits=3),
    ]
    lines = [Line(title, jobs[name, "seen"]) for title, name in names.items()]
    return Table.of("passes", (lines, columns), published="brackets")


_BYTES = ("kept", "received", "sent")


def _embedding_note(jobs: Sequence[Job]) -> str:
    """Returns sentences that compare users' embeddings with others' on the users' texts."""
    first: dict[str, Any] = jobs[0].summary
    if not first["num_pairs"]:
        return "Specificity of embeddings: no user shares a context with another."
    shares = (over_seeds(jobs, share, scale=100).text(0) for share in measures.SHARES)
    beats_median, beats_mean, pairs_won = shares
    return (
        "Specificity of embeddings: without fine-tuning, the held-out utterances of "
        f"{beats_median} % of {first['num_users']:,} seen users are likelier with their embedding "
        f"than with the median embedding of others in the same context; those of {beats_mean} % "
        f"are likelier than by the mean of the others' losses. Of {first['num_pairs']:,} pairs of "
        f"a user and another user, the user's embedding is better in {pairs_won} %, by chance 50 %."
    )


def parts(request: Reproduction) -> Report:
    """Runs the missing runs; returns the tables of other parts of the same base."""
    rows = choose_rows(paper.PART_ROWS, request.rows, table="fedperc_parts")
    request = request.with_preset(quick=request.is_generated)
    if request.options.get("base_model"):
        # A base model that the user names is not adapted.
        rows = [row for row in rows if "base_model_adapted" not in row.values]
    source = request.read(TASK, paper.FEDPERC)
    # FedPerC is always included: other rows are compared with it and with the base model.
    reference = paper.FEDPERC_ROW.name
    trained = {
        row.name: request.jobs(
            TASK, row, folder_of(row.name), note=", seen users", evaluate_on="seen"
        )
        for row in dict.fromkeys([paper.FEDPERC_ROW, *rows])
    }
    losses = {name: _loss_jobs(request, name, jobs) for name, jobs in trained.items()}
    for name in list(trained):
        if name.removesuffix(paper.ADAPTED) == reference:
            base = name.replace(reference, BASE_ROW)
            losses[base] = _loss_jobs(request, base, trained[name], base_alone=True)
    request.complete(source, *trained.values(), *losses.values())
    first = losses[reference][0].summary
    about = paper.ABOUT_PARTS.format(
        share=f"{100 * first['repeated']:.1f} %",
        long=f"{100 * first['repeated_long']:.1f} %",
        words=measures.LONG,
        frozen=trained[reference][0].summary["frozen_bytes"],
    )
    parts: list[str | Table] = [
        f"# FedPerC and other parts of a frozen base, on {source.name}",
        f"Preset {request.preset}; {request.seeds_in_words()}. {about}",
        _part_perplexities(trained, losses),
        paper.PAIRED_PARTS,
        Table("paired", _paired_parts(losses, "all")),
        "The same differences on new lines:",
        Table("paired_new", _paired_parts(losses, "new")),
    ]
    return Report("fedperc_parts", request.seeds, parts, facts={"data": source.describe()})


def folder_of(name: str) -> str:
    """Returns the folder of a row."""
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _loss_jobs(request: Reproduction, name: str, jobs: Sequence[Job], **options: bool) -> list[Job]:
    """Returns the jobs that measure users' losses with the trained models of other jobs."""
    measure = functools.partial(measures.measure_losses, **options)
    folder = request.output_dir / f"losses_{folder_of(name)}"
    return [job.followed_by(folder, f"losses, {name}", measure) for job in jobs]


def _part_perplexities(
    trained: Mapping[str, Sequence[Job]], losses: Mapping[str, Sequence[Job]]
) -> Table:
    def perplexity(lines: str, line: Line) -> Cell:
        sums = [job.summary[lines] for job in line.jobs]
        return Cell(tuple(math.exp(sum(one["loss"]) / sum(one["tokens"])) for one in sums))

    def size(way: str, line: Line) -> Cell | None:
        jobs = trained.get(line.name, ())
        if not jobs or jobs[0].options.method not in _FEDERATED:
            return None
        return Cell((_sizes(jobs[0])[way],))

    columns = [
        Column("perplexity", functools.partial(perplexity, "all"), 2),
        Column("new lines", functools.partial(perplexity, "new"), 2),
        *(Column(way, functools.partial(size, way), 0) for way in _BYTES),
    ]
    return Table.of("perplexity", ([Line(name, jobs) for name, jobs in losses.items()], columns))


def _paired_parts(losses: Mapping[str, Sequence[Job]], lines: str) -> Cells:
    """Compares each row with the base model, FedPerC and its shared part, on the same users."""
    cells: Cells = {}
    reference = paper.FEDPERC_ROW.name
    for name in (row for row in losses if row != BASE_ROW):
        shared = paper.SHARED.get(name, name)
        others = {BASE_ROW: BASE_ROW, reference: reference, "the shared part": shared}
        cells[name] = {
            f"than {title}": Cell((_increase(compare(losses[name], losses[other], lines)),))
            for title, other in others.items()
            if other in losses and other != name
        }
    return cells


def compare(first: Sequence[Job], second: Sequence[Job], lines: str) -> PairedDifference:
    """Compares the losses per token of two methods, whose jobs have the same seeds."""
    columns = [[job.summary[lines][c] for c in ("loss", "tokens")] for job in (*first, *second)]
    sums = np.moveaxis(np.array(columns, np.float64), 1, -1)
    return paired_bootstrap(sums[: len(first)], sums[len(first) :])


def _increase(change: PairedDifference) -> str:
    mean, low, high = (100 * math.expm1(d) for d in (change.difference, change.low, change.high))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})" if change.has_interval else f"{mean:+.1f}"
