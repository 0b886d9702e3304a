"""Table 2 and figures 2 and 3 of the FedRecon paper (Singhal et al., 2021): the next word.

Besides the paper's rows, the table has controls that separate personalisation from other causes:
FedYogi with the same number of buckets, and counts of words without training. `--rows` adds further
methods. Figure 2 is accuracy by the parameters that all clients have communicated. Figure 3 is
accuracy by the number of reconstruction and update steps, in training and in evaluation, with a
fixed number of rounds, as a share of the accuracy with the usual options, the base.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.options import Value
from fedpersonal.runs.saved import read_saved_model
from fedpersonal.suite.papers import fedrecon_data as paper
from fedpersonal.suite.papers import ratings
from fedpersonal.suite.papers.fedrecon_data import METRIC
from fedpersonal.suite.papers.jobs import Job, share_trainings
from fedpersonal.suite.papers.picture import draw
from fedpersonal.suite.papers.reproduction import Reproduction, Row, choose_rows
from fedpersonal.suite.papers.table import (
    DIFFERENCES,
    Cell,
    Cells,
    Column,
    Line,
    Report,
    Table,
    behind,
    constant,
    difference,
    figure,
    over_seeds,
    validation_curve,
)
from fedpersonal.suite.tasks.next_word.counts import score_choices
from fedpersonal.suite.tasks.next_word.data import Sentences
from fedpersonal.suite.tasks.next_word.task import TASK
from fedpersonal.suite.tasks.task import Task

_METRICS = {
    name: ClientMetric(f"{name}_after", "num_known_words", scale=100)
    for name in paper.METRIC_TITLES
}
_BEFORE, _AFTER = (f"personal_word_accuracy_{stage}" for stage in ("before", "after"))
_PERSONAL = ClientMetric(_AFTER, "num_after_personal_words", scale=100)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The jobs of a table or figure.

    Attributes:
        request: The request, with a preset.
        source: The sentences.
        notes: A sentence on vocabularies that are larger than the data's, if there are any.
        jobs: The jobs by vocabulary size and row's name, one per seed.
    """

    request: Reproduction
    source: Sentences
    notes: Sequence[str]
    jobs: Mapping[int, Mapping[str, Sequence[Job]]]

    def heading(self, title: str) -> str:
        """Returns a title, and sentences on the data and the runs."""
        about, request = self.source.describe(), self.request
        options = TASK.options(**request.values(TASK, paper.WORDS))
        substitute = " (a substitute: the paper has Stack Overflow)"
        size = ""
        if "num_users" in about:
            size = f"{about['num_sentences']:,} sentences of {about['num_users']:,} users. "
        return (
            f"# {title} on {about['dataset']}{'' if self.source.is_paper_data else substitute}\n\n"
            f"{size}Preset {request.preset}: {options.total_rounds:,} rounds of "
            f"{options.clients_per_round} users, {options.lstm_units} LSTM units; "
            f"{request.seeds_in_words()}."
        )


def make_plan(request: Reproduction, rows: Sequence[Row]) -> Plan:
    """Returns the jobs that rows need; jobs with the same training share it.

    Raises:
        UserError: If the data have too few words for all of the vocabularies.
    """
    options = {n: v for n, v in request.options.items() if n in TASK.options.declarations()}
    request = request.with_preset(quick=not TASK.read(TASK.options(**options)).is_paper_data)
    source, sizes = request.read(TASK, paper.WORDS), request.vocab_sizes or paper.VOCAB_SIZES
    num_words = source.num_distinct_words(request.seeds)
    left_out = [size for size in sizes if num_words is not None and size > num_words]
    if len(left_out) == len(sizes):
        raise UserError(
            f"the training users have {num_words:,} distinct words, too few for a vocabulary of "
            f"{min(sizes):,}; choose other --vocab_sizes."
        )
    note = (
        f"Left out: vocabularies of {', '.join(f'{size:,}' for size in left_out)} words; the "
        f"training users have {num_words or 0:,} distinct words."
    )
    shared = request.replace(output_dir=request.runs_dir or request.output_dir)
    jobs: dict[int, dict[str, Sequence[Job]]] = {}
    for size in [size for size in sizes if size not in left_out]:
        # All rows, so that a shared training has the same folder for all selections of rows.
        by_row, size_note = {}, f", {size:,} words"
        for row in paper.WORD_ROWS:
            folder = "vocab_{}/{method}_{num_oov_buckets}_oov".format(size, **row.values)
            by_row[row] = shared.jobs(TASK, row, folder, note=size_note, vocab_size=size)
        jobs[size] = {
            row.name: row_jobs for row, row_jobs in share_trainings(by_row).items() if row in rows
        }
    return Plan(request, source, [note] if left_out else [], jobs)


def short_size(vocab_size: int) -> str:
    """Returns 10k for 10,000."""
    return f"{vocab_size // 1000}k" if vocab_size % 1000 == 0 else str(vocab_size)


def table2(request: Reproduction) -> Report:
    """Runs the missing runs, and returns the table."""
    every = (*paper.WORD_ROWS, *paper.CONTROLS)
    rows: Sequence[Row] = paper.USUAL_WORD_ROWS
    if request.rows:
        rows = choose_rows(every, request.rows, table="table 2")
    plan = make_plan(request, rows)
    notes = list(plan.notes)
    if plan.source.is_paper_data and not request.rows:
        rows = [row for row in rows if row not in paper.CONTROLS]
        notes.append("Left out: counts of words; the data of users are read when they are sampled.")
    by_size = {}
    for size, jobs in plan.jobs.items():
        controls = {r.name: _control_clients(plan, r, size) for r in rows if r in paper.CONTROLS}
        by_size[short_size(size)] = [
            Line(row.name, jobs.get(row.name, ()), row.published, controls.get(row.name, ()))
            for row in rows
        ]
    plan.request.complete(
        plan.source, *(jobs for by_row in plan.jobs.values() for jobs in by_row.values())
    )
    heading = plan.heading(f"Table 2 for {', '.join(by_size)} words")
    all_parts = [heading, *notes, *_coverage(by_size), *_word_tables(by_size)]
    # Tables may be empty: rows that only count words send nothing and are not personalised.
    parts = [part for part in all_parts if isinstance(part, str) or part.cells]
    facts = {"data": plan.source.describe(), "preset": plan.request.preset}
    return Report("table2", request.seeds, parts, facts=facts)


def _control_clients(plan: Plan, row: Row, vocab_size: int) -> list[pd.DataFrame]:
    """Returns the test clients of a row that counts words, a table per seed."""
    options = {**row.values, "vocab_size": vocab_size}
    data = plan.request.splits(TASK, plan.source, row.preset, **options)
    return [pd.DataFrame(score_choices(one, row.name.partition(" (")[0])) for one in data]


def _coverage(by_size: Mapping[str, Sequence[Line]]) -> list[str]:
    """Returns a sentence on the share of words in the vocabulary, if summaries have it."""
    texts = []
    for size, lines in by_size.items():
        jobs = next((line.jobs for line in lines if line.jobs), ())
        if jobs and jobs[0].summary["vocabulary_coverage"] is not None:
            measured = over_seeds(jobs, "vocabulary_coverage", scale=100).mean
            published = (
                f" ({paper.COVERAGE[size]} % in the paper)" if size in paper.COVERAGE else ""
            )
            texts.append(f"{size} {measured:.1f} %{published}")
    if not texts:
        return []
    return [f"Share of the test users' words in the vocabulary: {', '.join(texts)}."]


def _word_tables(by_size: Mapping[str, Sequence[Line]]) -> list[str | Table]:
    """Returns the tables of lines, with columns by vocabulary size."""

    def table(
        name: str,
        columns: Callable[[str, Sequence[Line]], list[Column]],
        caption: str,
        *,
        with_controls: bool = True,
    ) -> Table:
        blocks = [
            ([line for line in lines if line.jobs or with_controls], columns(size, lines))
            for size, lines in by_size.items()
        ]
        return Table.of(name, *blocks, caption=caption)

    def accuracies(metric: str, size: str, lines: Sequence[Line]) -> list[Column]:
        published = None if metric == METRIC else ""
        return [figure(size, "test", metric, scale=100, metric=_METRICS[metric], paper=published)]

    def differences(metric: str, size: str, lines: Sequence[Line]) -> list[Column]:
        return [
            behind(f"{size} − {name}", lines, name, _METRICS[metric]) for name in paper.REFERENCES
        ]

    captions = paper.WORD_CAPTIONS
    tables: list[str | Table] = [
        table("accuracy" if name == METRIC else name, partial(accuracies, name), captions[name])
        for name in _METRICS
    ]
    compared = [
        table(
            f"{name}_differences",
            partial(differences, name),
            captions["differences"].format(title),
        )
        for name, title in paper.METRIC_TITLES.items()
    ]
    if any(one.columns for one in compared):
        tables += [DIFFERENCES, *compared]
    tables.append(_personal_words(by_size))
    for name, columns in (("communication", _communication), ("before", _before)):
        tables.append(table(name, columns, captions[name], with_controls=False))
    return tables


def _personal_words(by_size: Mapping[str, Sequence[Line]]) -> Table:
    """Returns the accuracy on words after personal words, and its gain by personalisation."""

    def before(line: Line) -> list[pd.DataFrame]:
        return [table.assign(**{_AFTER: table.get(_BEFORE)}) for table in line.clients]

    def cell_before(line: Line) -> Cell | None:
        return Cell(tuple(map(_PERSONAL.overall, before(line)))) if line.jobs else None

    def cell_after(line: Line) -> Cell:
        return Cell(tuple(map(_PERSONAL.overall, line.clients)))

    def gain(line: Line) -> Cell | None:
        return difference(line.clients, before(line), _PERSONAL) if line.jobs else None

    blocks, counts = [], []
    for size, lines in by_size.items():
        numbers = [table[_PERSONAL.weights].sum() for table in lines[0].clients]
        counts.append(f"{sum(numbers) / len(numbers):,.0f} ({size})")
        cells = {"before": cell_before, "after": cell_after, "gain": gain}
        columns = [Column(f"{size}, {stage}", cell) for stage, cell in cells.items()]
        blocks.append((lines, columns if all(numbers) else []))
    caption = paper.WORD_CAPTIONS["personal_words"].format(", ".join(counts))
    return Table.of("personal_words", *blocks, caption=caption)


def _communication(size: str, lines: Sequence[Line]) -> list[Column]:
    return [
        constant("formula", lambda job: communication(job)[0]),
        constant(f"{size}, numbers", lambda job: communication(job)[1]),
        constant(f"{size}, MB", lambda job: communication(job)[2] / 1e6, digits=2),
    ]


def _before(size: str, lines: Sequence[Line]) -> list[Column]:
    return [
        figure(f"{size}, before", "test", "before", METRIC, scale=100),
        figure(f"{size}, worse", "test", "share_hurt", scale=100),
    ]


def communication(job: Job) -> tuple[str, int, int]:
    """Returns the total communication of a client in a round, both ways, without metrics.

    Returns:
        The formula of the paper, for local and global variables l and g; the count of numbers of
        model variables that crossed the boundary; and their bytes.
    """
    record = job.trainer.record
    variables = read_saved_model(record.path).weights
    sent = [c for c in record.boundary if c["name"].rpartition(".")[2] in variables]
    # The variables l of the formula, whether or not they are local in this job.
    has_local = any(name.split("/")[0] in TASK.layers.embedding for name in variables)
    numbers = sum(math.prod(crossing["shape"]) for crossing in sent)
    num_bytes = sum(crossing["num_bytes"] for crossing in sent)
    formula = paper.ALL if has_local else paper.GLOBAL
    return formula if sent else paper.NOTHING, numbers, num_bytes


def figure2(request: Reproduction) -> Report:
    """Runs the missing runs of table 2, draws the curves, and returns them as a table."""
    plan = make_plan(request, [row for row in paper.PAPER_ROWS if row.name in paper.CURVES])
    # The first requested size; without a request, the largest that the data have words for.
    size = list(plan.jobs)[0 if request.vocab_sizes else -1]
    plan.request.complete(plan.source, *plan.jobs[size].values())
    curves = {name: _curve(jobs) for name, jobs in plan.jobs[size].items()}
    least = min(max(curve) for curve in curves.values())
    unit, scale = next((unit for unit in paper.UNITS if least >= unit[1]), paper.UNITS[-1])
    points = {name: {x / scale: c for x, c in curve.items()} for name, curve in curves.items()}
    picture = Table("points", points)
    draw(
        [picture],
        request.output_dir / "figure2.png",
        title=f"{plan.source.name}, {size:,} words",
        x_label=f"parameters communicated by all clients ({unit})",
        y_label="validation accuracy (%)",
    )
    reached: Cells = {name: {} for name in curves}
    for name, curve in curves.items():
        for share in paper.COMPARED_AT:
            x = share * least / scale
            # The last point up to x.
            for cell in [cell for at, cell in curve.items() if at / scale <= x * (1 + 1e-9)][-1:]:
                reached[name][f"{x:.3g} {unit}"] = cell
    facts = {"data": plan.source.describe(), "preset": plan.request.preset, "unit": unit}
    parts: list[str | Table] = [
        plan.heading(f"Figure 2 for {short_size(size)} words"),
        Table("reached", reached, paper.CURVES_CAPTION),
    ]
    return Report("figure2", request.seeds, parts, hidden=[picture], facts=facts)


def _curve(jobs: Sequence[Job]) -> dict[float, Cell]:
    """Returns the validation accuracy by communicated parameters, with one value per seed."""
    per_client = communication(jobs[0])[1]
    return validation_curve(jobs, METRIC, lambda clients, users: per_client * clients)


def figure3(request: Reproduction) -> Report:
    """Runs the missing runs, draws the figure, and returns its numbers."""
    row = paper.PAPER_ROWS[2]
    plan = make_plan(request, [row])
    # By line: the metric, the jobs of the base, and the jobs by panel and number of steps.
    lines: dict[str, tuple[str, Sequence[Job], Mapping[tuple[str, int], Sequence[Job]]]] = {}
    for size, jobs in plan.jobs.items():
        varied = vary(plan.request, TASK, row, f"vocab_{size}", vocab_size=size)
        lines[f"{short_size(size)} words"] = METRIC, jobs[row.name], varied
    # Ratings have another folder than sentences.
    options = {"data_dir": request.movielens_dir} if request.movielens_dir else {}
    ratings_request = request.replace(options=options)
    ratings_row = Row("Ratings", paper.FED_RECON.preset, {})
    source = ratings_request.read(ratings.TASK, ratings_row.preset)
    base = ratings_request.jobs(ratings.TASK, ratings_row, "ratings/base")
    varied = vary(ratings_request, ratings.TASK, ratings_row, "ratings")
    request.complete(source, base, *varied.values())
    plan.request.complete(
        plan.source, *(jobs for _, base, more in lines.values() for jobs in (base, *more.values()))
    )
    lines[source.name] = "accuracy", base, varied
    bases: Cells = {
        name: {"accuracy, %": over_seeds(jobs, "test", metric, scale=100)}
        for name, (metric, jobs, _) in lines.items()
    }
    tables = []
    for panel, (steps, _) in paper.PANELS.items():
        cells: Cells = {
            name: {n: relative(name, metric, base_jobs, varied[panel, n]) for n in steps}
            for name, (metric, base_jobs, varied) in lines.items()
        }
        tables.append(Table(panel.replace(" ", "_"), cells, f"By {panel}:"))
    draw(
        tables,
        request.output_dir / "figure3.png",
        title=f"FedRecon on {plan.source.name} and {source.name}",
        x_label=list(paper.PANELS),
        y_label="accuracy, % of the base's",
        baselines=[("the base", 100.0)],
        share_y=True,
    )
    run_options = base[0].options
    parts: list[str | Table] = [
        plan.heading("Figure 3"),
        f"Ratings: {ratings.about_ratings(source)}, {run_options.total_rounds:,} rounds of "
        f"{run_options.clients_per_round} users.",
        *plan.notes,
        Table("base", bases, "Accuracy with the usual numbers of steps, the base:"),
        f"Accuracy in per cent of the base's (on {plan.source.name}, out-of-vocabulary and "
        "end-of-sentence targets are not counted):",
        *tables,
    ]
    facts = {"data": plan.source.describe(), "ratings": source.name, "preset": plan.request.preset}
    return Report("figure3", request.seeds, parts, facts=facts)


def relative(name: str, metric: str, base: Sequence[Job], varied: Sequence[Job]) -> Cell[float]:
    """Returns the accuracies of jobs in per cent of those of the base with the same seeds."""
    bases = over_seeds(base, "test", metric).values
    if min(bases) <= 0:
        raise UserError(
            f"{name}: the base run predicts nothing right, so there is nothing to compare "
            "with; run more rounds."
        )
    pairs = zip(over_seeds(varied, "test", metric).values, bases)
    return Cell(tuple(100 * value / base_value for value, base_value in pairs))


def vary(
    request: Reproduction, task: Task, row: Row, folder: str, **options: Value
) -> Mapping[tuple[str, int], Sequence[Job]]:
    """Returns the jobs with each panel's numbers of steps."""
    jobs = {}
    for panel, (numbers, names) in paper.PANELS.items():
        for steps in numbers:
            path = f"{folder}/{panel.replace(' ', '_')}_{steps}"
            # A pass has at least one step, so `steps` passes suffice; 0 passes keep initial values.
            values = {**options, **dict(zip(names, (steps, max(1, steps))))}
            note = f", {panel} {steps}"
            jobs[panel, steps] = request.jobs(task, row, path, note=note, **values)
    return jobs
