"""Table 2 of the FedRecon paper (Singhal et al., section 5.2): next word prediction."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from experiments.papers.communication import measure_communication
from experiments.papers.result_table import Cell, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete, share_training
from experiments.papers.sweep import Row, Sweep, choose_rows
from fedpersonal.errors import UserError
from fedpersonal.tasks.next_word.source import Sentences
from fedpersonal.tasks.next_word.task import TASK

TASKS = (TASK,)
VOCAB_SIZES = (1_000, 5_000, 10_000)
METRIC, AMONG_KNOWN = "accuracy_without_oov_or_eos", "accuracy_among_known"
PRESET = "stackoverflow_{}"
# Share of the words that are in the vocabulary, section 5.2.
_PAPER_COVERAGE = {"1k": 49.2, "5k": 80.1, "10k": 86.9}
_FORMULA = "formula"


def _row(name: str, algorithm: str, buckets: int, accuracies: Sequence[float], sent: str) -> Row:
    values = {"algorithm": algorithm, "num_oov_buckets": buckets}
    published = {short_size(size): value for size, value in zip(VOCAB_SIZES, accuracies)}
    return Row(f"{name} ({buckets} OOV)", PRESET, values, {**published, _FORMULA: sent})


def short_size(vocab_size: int) -> str:
    """Returns 10k for 10,000."""
    return f"{vocab_size // 1000}k" if vocab_size % 1000 == 0 else str(vocab_size)


_ALL, _GLOBAL = "2|l| + 2|g|", "2|g|"
ROWS = (
    _row("FedYogi", "fed_yogi", 1, (24.3, 26.3, 26.7), _ALL),
    _row("FedRecon", "fed_recon", 1, (24.1, 26.2, 26.4), _GLOBAL),
    _row("FedRecon", "fed_recon", 500, (29.6, 28.1, 27.7), _GLOBAL),
    _row("OOV finetuning", "embedding_finetuning", 500, (30.0, 28.1, 27.9), _ALL),
    _row("Full finetuning", "fed_avg_finetuning", 500, (30.8, 29.2, 28.8), _ALL),
    _row("FedRecon + finetune", "fed_recon_finetuning", 500, (30.7, 28.9, 28.6), _GLOBAL),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a table or figure.

    Attributes:
        sweep: What is asked, with a preset.
        source: The sentences.
        vocab_sizes: The vocabularies that the sentences have words enough for.
        notes: A sentence on the others, if there are any.
        runs: By row's name and vocabulary: a run a seed.
    """

    sweep: Sweep
    source: Sentences
    vocab_sizes: Sequence[int]
    notes: Sequence[str]
    runs: Mapping[tuple[str, int], list[Run]]

    def complete(self) -> None:
        """Does the runs that are missing."""
        every = [run for runs in self.runs.values() for run in runs]
        complete(every, self.source.describe(), isolated=self.sweep.isolated)

    def of_size(self, vocab_size: int) -> Plan:
        """Returns the runs of one vocabulary alone."""
        runs = {key: own for key, own in self.runs.items() if key[1] == vocab_size}
        return dataclasses.replace(self, vocab_sizes=[vocab_size], runs=runs)

    def heading(self, what: str) -> str:
        """Returns a title, and plainly what the numbers are of."""
        about, options = self.source.describe(), next(iter(self.runs.values()))[0].options
        stand_in = " (a stand-in: the paper's figures are Stack Overflow's)"
        size = ""
        if "num_users" in about:
            size = f"{about['num_sentences']:,} sentences of {about['num_users']:,} users. "
        return (
            f"# {what} on {about['dataset']}{'' if self.source.is_the_papers else stand_in}\n\n"
            f"{size}Preset {self.sweep.preset}: {options.total_rounds:,} rounds of "
            f"{options.clients_per_round} users, {options.lstm_units} LSTM units; "
            f"{self.sweep.seeds_in_words()}."
        )


def make_plan(sweep: Sweep, rows: Sequence[Row], vocab_sizes: Sequence[int]) -> Plan:
    """Settles which runs some rows need; those that train alike share a training.

    Args:
        sweep: What is asked.
        rows: The rows.
        vocab_sizes: The vocabularies wanted.

    Raises:
        UserError: If there are words enough for none of them.
    """
    given = {n: v for n, v in sweep.given.items() if n in TASK.options.declarations()}
    sweep = sweep.with_preset(quick=not TASK.read(TASK.options(**given)).is_the_papers)
    source = sweep.read(TASK, PRESET)
    known = source.num_distinct_words(sweep.seeds)
    sizes = [size for size in vocab_sizes if known is None or size <= known]
    left_out = ", ".join(f"{size:,}" for size in vocab_sizes if size not in sizes)
    if not sizes:
        raise UserError(
            f"the training users have {known:,} distinct words, too few for a vocabulary of "
            f"{min(vocab_sizes):,}; give other --vocab_sizes."
        )
    notes = [
        f"Left out: vocabularies of {left_out} words; the training users have {known:,} distinct "
        "words."
    ]
    shared = sweep.replace(output_dir=sweep.runs_dir or sweep.output_dir)
    runs = {}
    for size in sizes:
        # All rows, so that a training has its folder whichever of them are wanted.
        by_row = [
            shared.runs(
                TASK,
                row,
                f"vocab_{size}/{row.values['algorithm']}_{row.values['num_oov_buckets']}_oov",
                note=f", {size:,} words",
                vocab_size=size,
            )
            for row in ROWS
        ]
        by_seed = zip(*(share_training(own) for own in zip(*by_row)))
        runs.update({(row.name, size): list(own) for row, own in zip(ROWS, by_seed)})
    wanted = {(row.name, size): runs[row.name, size] for size in sizes for row in rows}
    return Plan(sweep, source, sizes, notes if left_out else [], wanted)


def run(sweep: Sweep) -> Report:
    """Runs what is missing, and returns the table."""
    rows = choose_rows(ROWS, sweep.rows, table="table 2")
    plan = make_plan(sweep, rows, sweep.vocab_sizes or VOCAB_SIZES)
    plan.complete()
    sizes = {short_size(size): size for size in plan.vocab_sizes}

    def table(name: str, caption: str, figures: Mapping[str, tuple], *, paper: bool = False):
        cells = {
            row.name: {
                f"{size}{note}": over_seeds(
                    plan.runs[row.name, sizes[size]],
                    "test",
                    *path,
                    scale=100,
                    published=row.published.get(size) if paper else None,
                )
                for size in sizes
                for note, path in figures.items()
            }
            for row in rows
        }
        return ResultTable(name, cells, caption)

    parts = [
        plan.heading("Table 2"),
        *plan.notes,
        *_coverage(plan),
        table(
            "accuracy",
            "Accuracy in per cent, out-of-vocabulary and end-of-sentence targets not counted, on "
            "test users after personalisation:",
            {"": (METRIC,)},
            paper=True,
        ),
        table(
            "accuracy_among_known",
            "The same where only known words may be predicted. One bucket for all other words is "
            "often the most likely prediction, one of 500 hardly ever; so this compares them "
            "fairly:",
            {"": (AMONG_KNOWN,)},
        ),
        _communication(plan, rows, sizes),
        table(
            "personalisation",
            "Accuracy in per cent before personalisation, and per cent of the test users whose "
            "loss personalisation raises:",
            {", before": ("before", METRIC), ", hurt": ("share_hurt",)},
        ),
    ]
    facts = {"data": plan.source.describe(), "preset": plan.sweep.preset}
    return Report("table2", sweep.seeds, parts, facts=facts)


def _coverage(plan: Plan) -> list[str]:
    """Returns a sentence on how many words are known, where data tell."""
    said = []
    for size in plan.vocab_sizes:
        runs = next(own for (_, of), own in plan.runs.items() if of == size)
        shares = [run.summary["vocabulary_coverage"] for run in runs]
        if None not in shares:
            name = short_size(size)
            paper = f" ({_PAPER_COVERAGE[name]} % in the paper)" if name in _PAPER_COVERAGE else ""
            said.append(f"{name} {100 * statistics.mean(shares):.1f} %{paper}")
    return [f"Share of the test users' words in the vocabulary: {', '.join(said)}."] if said else []


def _communication(plan: Plan, rows: Sequence[Row], sizes: Mapping[str, int]) -> ResultTable:
    (local_layer,) = TASK.layers.embedding
    cells = {}
    for row in rows:
        found = {
            name: measure_communication(
                plan.runs[row.name, size][0].trainer.record, local_layer=local_layer
            )
            for name, size in sizes.items()
        }
        (first, *_) = found.values()
        cells[row.name] = {_FORMULA: Cell((first.formula,), row.published[_FORMULA])}
        for name, sent in found.items():
            cells[row.name][f"{name}, numbers"] = Cell((sent.parameters,))
            cells[row.name][f"{name}, MB"] = Cell((sent.num_bytes / 1e6,))
    columns = next(iter(cells.values()))
    return ResultTable(
        "communication",
        cells,
        "Communication of a client in a round, both ways, as read off what crosses the boundary, "
        "for local variables l and global ones g:",
        digits={column: 2 if column.endswith("MB") else 0 for column in columns},
    )
