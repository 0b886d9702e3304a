"""Table 2 and figures 2 and 3 of the FedRecon paper (Singhal et al., 2021): the next word.

Beside the paper's rows stand what tells personalisation from other causes: FedYogi with as many
buckets, and counts of words without any training; by `--rows` also further methods. Figure 2 is
accuracy by the parameters that all clients have communicated. Figure 3 is accuracy by the number of
reconstruction and update steps, which holds for training and for evaluation, with the rounds fixed,
as shares of the accuracy with the usual options, the base.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from experiments.papers import fedrecon_data as paper
from experiments.papers import ratings
from experiments.papers.fedrecon_data import METRIC
from experiments.papers.jobs import Job, share_trainings
from experiments.papers.picture import draw
from experiments.papers.reproduction import Reproduction, Row, choose_rows
from experiments.papers.table import (
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
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.options import Value
from fedpersonal.runs.saved import read_saved_model
from fedpersonal.tasks.next_word.counts import score_choices
from fedpersonal.tasks.next_word.data import Sentences
from fedpersonal.tasks.next_word.task import TASK
from fedpersonal.tasks.task import Task

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
        asked: What is asked, with a preset.
        source: The sentences.
        notes: A sentence on vocabularies that there are too few words for, if there are any.
        jobs: By vocabulary and row's name: one a seed.
    """

    asked: Reproduction
    source: Sentences
    notes: Sequence[str]
    jobs: Mapping[int, Mapping[str, Sequence[Job]]]

    def heading(self, what: str) -> str:
        """Returns a title, and plainly what the numbers are of."""
        about, asked = self.source.describe(), self.asked
        options = TASK.options(**asked.values(TASK, paper.WORDS))
        stand_in = " (a stand-in: the paper's figures are Stack Overflow's)"
        size = ""
        if "num_users" in about:
            size = f"{about['num_sentences']:,} sentences of {about['num_users']:,} users. "
        return (
            f"# {what} on {about['dataset']}{'' if self.source.is_the_papers else stand_in}\n\n"
            f"{size}Preset {asked.preset}: {options.total_rounds:,} rounds of "
            f"{options.clients_per_round} users, {options.lstm_units} LSTM units; "
            f"{asked.seeds_in_words()}."
        )


def make_plan(asked: Reproduction, rows: Sequence[Row]) -> Plan:
    """Settles which jobs some rows need; those that train alike share a training.

    Raises:
        UserError: If there are words enough for none of the vocabularies.
    """
    given = {n: v for n, v in asked.given.items() if n in TASK.options.declarations()}
    asked = asked.with_preset(quick=not TASK.read(TASK.options(**given)).is_the_papers)
    source, wanted = asked.read(TASK, paper.WORDS), asked.vocab_sizes or paper.VOCAB_SIZES
    known = source.num_distinct_words(asked.seeds)
    left_out = [size for size in wanted if known is not None and size > known]
    if len(left_out) == len(wanted):
        raise UserError(
            f"the training users have {known:,} distinct words, too few for a vocabulary of "
            f"{min(wanted):,}; give other --vocab_sizes."
        )
    note = (
        f"Left out: vocabularies of {', '.join(f'{size:,}' for size in left_out)} words; the "
        f"training users have {known or 0:,} distinct words."
    )
    shared = asked.replace(output_dir=asked.runs_dir or asked.output_dir)
    jobs: dict[int, dict[str, Sequence[Job]]] = {}
    for size in [size for size in wanted if size not in left_out]:
        # All rows, so that a training has its folder whichever of them are wanted.
        by_row, note_of = {}, f", {size:,} words"
        for row in paper.WORD_ROWS:
            folder = "vocab_{}/{method}_{num_oov_buckets}_oov".format(size, **row.values)
            by_row[row] = shared.jobs(TASK, row, folder, note=note_of, vocab_size=size)
        jobs[size] = {row.name: own for row, own in share_trainings(by_row).items() if row in rows}
    return Plan(asked, source, [note] if left_out else [], jobs)


def short_size(vocab_size: int) -> str:
    """Returns 10k for 10,000."""
    return f"{vocab_size // 1000}k" if vocab_size % 1000 == 0 else str(vocab_size)


def table2(asked: Reproduction) -> Report:
    """Runs what is missing, and returns the table."""
    every = (*paper.WORD_ROWS, *paper.CONTROLS)
    rows: Sequence[Row] = paper.USUAL_WORD_ROWS
    if asked.rows:
        rows = choose_rows(every, asked.rows, table="table 2")
    plan = make_plan(asked, rows)
    notes = list(plan.notes)
    if plan.source.is_the_papers and not asked.rows:
        rows = [row for row in rows if row not in paper.CONTROLS]
        notes.append("Left out: counts of words; its users are read when they are drawn.")
    by_size = {}
    for size, jobs in plan.jobs.items():
        guesses = {r.name: _counted(plan, r, size) for r in rows if r in paper.CONTROLS}
        by_size[short_size(size)] = [
            Line(row.name, jobs.get(row.name, ()), row.published, guesses.get(row.name, ()))
            for row in rows
        ]
    plan.asked.complete(plan.source, *(own for of in plan.jobs.values() for own in of.values()))
    heading = plan.heading(f"Table 2 for {', '.join(by_size)} words")
    found = [heading, *notes, *_coverage(by_size), *_word_tables(by_size)]
    # Rows that only count words send nothing and are not personalised.
    parts = [part for part in found if isinstance(part, str) or part.cells]
    facts = {"data": plan.source.describe(), "preset": plan.asked.preset}
    return Report("table2", asked.seeds, parts, facts=facts)


def _counted(plan: Plan, row: Row, vocab_size: int) -> list[pd.DataFrame]:
    """Returns the test clients of a row that counts words, a table a seed."""
    own = {**row.values, "vocab_size": vocab_size}
    data = plan.asked.splits(TASK, plan.source, row.preset, **own)
    return [pd.DataFrame(score_choices(one, row.name.partition(" (")[0])) for one in data]


def _coverage(by_size: Mapping[str, Sequence[Line]]) -> list[str]:
    """Returns a sentence on how many words are known, where data tell."""
    said = []
    for size, lines in by_size.items():
        own = next((line.jobs for line in lines if line.jobs), ())
        if own and own[0].summary["vocabulary_coverage"] is not None:
            measured = over_seeds(own, "vocabulary_coverage", scale=100).mean
            known = f" ({paper.COVERAGE[size]} % in the paper)" if size in paper.COVERAGE else ""
            said.append(f"{size} {measured:.1f} %{known}")
    return [f"Share of the test users' words in the vocabulary: {', '.join(said)}."] if said else []


def _word_tables(by_size: Mapping[str, Sequence[Line]]) -> list[str | Table]:
    """Returns the tables of lines, by vocabulary."""

    def table(
        name: str,
        columns: Callable[[str, Sequence[Line]], list[Column]],
        caption: str,
        *,
        with_guesses: bool = True,
    ) -> Table:
        blocks = [
            ([line for line in lines if line.jobs or with_guesses], columns(size, lines))
            for size, lines in by_size.items()
        ]
        return Table.of(name, *blocks, caption=caption)

    def accuracies(metric: str, size: str, lines: Sequence[Line]) -> list[Column]:
        known = None if metric == METRIC else ""
        return [figure(size, "test", metric, scale=100, metric=_METRICS[metric], paper=known)]

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
    if any(found.columns for found in compared):
        tables += [DIFFERENCES, *compared]
    tables.append(_personal_words(by_size))
    for name, columns in (("communication", _communication), ("before", _before)):
        tables.append(table(name, columns, captions[name], with_guesses=False))
    return tables


def _personal_words(by_size: Mapping[str, Sequence[Line]]) -> Table:
    """Returns the accuracy of what follows personal words, and what personalisation adds to it."""

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
        columns = [Column(f"{size}, {what}", cell) for what, cell in cells.items()]
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
        figure(f"{size}, hurt", "test", "share_hurt", scale=100),
    ]


def communication(job: Job) -> tuple[str, int, int]:
    """Returns what a client receives and sends in a round, together; metrics are left out.

    Returns:
        The formula of the paper, for local and global variables l and g; and numbers of model
        variables, and their bytes, as they have crossed the boundary.
    """
    record = job.trainer.record
    variables = read_saved_model(record.path).weights
    sent = [c for c in record.boundary if c["name"].rpartition(".")[2] in variables]
    # l, whether or not this job keeps it local.
    has_local = any(name.split("/")[0] in TASK.layers.embedding for name in variables)
    numbers = sum(math.prod(crossing["shape"]) for crossing in sent)
    num_bytes = sum(crossing["num_bytes"] for crossing in sent)
    formula = paper.ALL if has_local else paper.GLOBAL
    return formula if sent else paper.NOTHING, numbers, num_bytes


def figure2(asked: Reproduction) -> Report:
    """Runs what is missing of table 2, draws the curves, and returns them as a table."""
    plan = make_plan(asked, [row for row in paper.PAPER_ROWS if row.name in paper.CURVES])
    # Of those asked for the first one; else the largest that there are words for.
    size = list(plan.jobs)[0 if asked.vocab_sizes else -1]
    plan.asked.complete(plan.source, *plan.jobs[size].values())
    curves = {name: _curve(jobs) for name, jobs in plan.jobs[size].items()}
    least = min(max(curve) for curve in curves.values())
    unit, scale = next((unit for unit in paper.UNITS if least >= unit[1]), paper.UNITS[-1])
    points = {name: {x / scale: c for x, c in curve.items()} for name, curve in curves.items()}
    picture = Table("points", points)
    draw(
        [picture],
        asked.output_dir / "figure2.png",
        title=f"{plan.source.name}, {size:,} words",
        x_label=f"parameters communicated by all clients together ({unit})",
        y_label="validation accuracy (%)",
    )
    reached: Cells = {name: {} for name in curves}
    for name, curve in curves.items():
        for share in paper.COMPARED_AT:
            x = share * least / scale
            # The last point that is not beyond.
            for cell in [cell for at, cell in curve.items() if at / scale <= x * (1 + 1e-9)][-1:]:
                reached[name][f"{x:.3g} {unit}"] = cell
    facts = {"data": plan.source.describe(), "preset": plan.asked.preset, "unit": unit}
    parts: list[str | Table] = [
        plan.heading(f"Figure 2 for {short_size(size)} words"),
        Table("reached", reached, paper.CURVES_CAPTION),
    ]
    return Report("figure2", asked.seeds, parts, hidden=[picture], facts=facts)


def _curve(jobs: Sequence[Job]) -> dict[float, Cell]:
    """Returns parameters that have been communicated to validation accuracy, a value a seed."""
    a_client = communication(jobs[0])[1]
    return validation_curve(jobs, METRIC, lambda clients, users: a_client * clients)


def figure3(asked: Reproduction) -> Report:
    """Runs what is missing, draws the figure, and returns its numbers."""
    row = paper.PAPER_ROWS[2]
    plan = make_plan(asked, [row])
    # By line: the metric, the jobs of the base, and those by panel and number of steps.
    lines: dict[str, tuple[str, Sequence[Job], Mapping[tuple[str, int], Sequence[Job]]]] = {}
    for size, jobs in plan.jobs.items():
        varied = vary(plan.asked, TASK, row, f"vocab_{size}", vocab_size=size)
        lines[f"{short_size(size)} words"] = METRIC, jobs[row.name], varied
    # A folder of sentences has no ratings.
    given = {"data_dir": asked.movielens_dir} if asked.movielens_dir else {}
    asked_ratings = asked.replace(given=given)
    rated = Row("Ratings", paper.FED_RECON.preset, {})
    source = asked_ratings.read(ratings.TASK, rated.preset)
    base = asked_ratings.jobs(ratings.TASK, rated, "ratings/base")
    varied = vary(asked_ratings, ratings.TASK, rated, "ratings")
    asked.complete(source, base, *varied.values())
    plan.asked.complete(
        plan.source, *(own for _, base, more in lines.values() for own in (base, *more.values()))
    )
    lines[source.name] = "accuracy", base, varied
    bases: Cells = {
        name: {"accuracy, %": over_seeds(own, "test", metric, scale=100)}
        for name, (metric, own, _) in lines.items()
    }
    tables = []
    for panel, (steps, _) in paper.PANELS.items():
        cells: Cells = {
            name: {n: relative(name, metric, own, varied[panel, n]) for n in steps}
            for name, (metric, own, varied) in lines.items()
        }
        tables.append(Table(panel.replace(" ", "_"), cells, f"By {panel}:"))
    draw(
        tables,
        asked.output_dir / "figure3.png",
        title=f"FedRecon on {plan.source.name} and {source.name}",
        x_label=list(paper.PANELS),
        y_label="accuracy, % of the base's",
        baselines=[("the base", 100.0)],
        share_y=True,
    )
    options = base[0].options
    parts: list[str | Table] = [
        plan.heading("Figure 3"),
        f"Ratings: {ratings.about_ratings(source)}, {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users.",
        *plan.notes,
        Table("base", bases, "Accuracy with the usual numbers of steps, the base:"),
        f"Accuracy in per cent of the base's (of {plan.source.name}, targets that are out of "
        "vocabulary or the end of a sentence are not counted):",
        *tables,
    ]
    facts = {"data": plan.source.describe(), "ratings": source.name, "preset": plan.asked.preset}
    return Report("figure3", asked.seeds, parts, facts=facts)


def relative(name: str, metric: str, base: Sequence[Job], varied: Sequence[Job]) -> Cell[float]:
    """Returns the accuracies of jobs in per cent of the base's with the same seed."""
    bases = over_seeds(base, "test", metric).values
    if min(bases) <= 0:
        raise UserError(
            f"{name}: the base run predicts nothing right, so there is nothing to compare "
            "with; run more rounds."
        )
    pairs = zip(over_seeds(varied, "test", metric).values, bases)
    return Cell(tuple(100 * own / of_base for own, of_base in pairs))


def vary(
    asked: Reproduction, task: Task, row: Row, folder: str, **own: Value
) -> Mapping[tuple[str, int], Sequence[Job]]:
    """Returns the jobs with each panel's numbers of steps."""
    found = {}
    for panel, (numbers, options) in paper.PANELS.items():
        for steps in numbers:
            path = f"{folder}/{panel.replace(' ', '_')}_{steps}"
            # As many passes suffice, since each has a step at least; 0 leave initial values.
            values = {**own, **dict(zip(options, (steps, max(1, steps))))}
            note = f", {panel} {steps}"
            found[panel, steps] = asked.jobs(task, row, path, note=note, **values)
    return found
