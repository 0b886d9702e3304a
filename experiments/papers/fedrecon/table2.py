"""Table 2 of the FedRecon paper (Singhal et al., section 5.2): next word prediction."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedpersonal.tasks.next_word.choice import TextChoice
from fedpersonal.tasks.next_word.methods import METHODS

from experiments.papers.fedrecon.next_word_runs import (
    METRIC,
    METRIC_AMONG_KNOWN,
    NextWordRun,
    complete,
)
from experiments.papers.presets import Preset
from experiments.papers.sweep import as_github_table, mean_and_deviation, with_deviation
from fedpersonal.atomic_files import write_json, write_text
from fedpersonal.errors import UserError

VOCAB_SIZES = (1_000, 5_000, 10_000)
# Share of the words that are in the vocabulary, section 5.2.
_PAPER_COVERAGE = {1_000: 49.2, 5_000: 80.1, 10_000: 86.9}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: As in the paper, with the number of hash buckets.
        algorithm: The method.
        num_oov_buckets: Its hash buckets.
        paper_accuracy: The paper's accuracy in per cent, by vocabulary size.
        paper_communication: The paper's parameters for a client and round.
    """

    name: str
    algorithm: str
    num_oov_buckets: int
    paper_accuracy: Mapping[int, float]
    paper_communication: str

    @property
    def run_name(self) -> str:
        """The training run that this row is evaluated from: that of the first row alike."""
        first = next(r for r in ROWS if _trains(r) == _trains(self))
        return f"{first.algorithm}_{first.num_oov_buckets}_oov"


def _trains(row: Row) -> tuple[Any, ...]:
    return (*METHODS[row.algorithm].trains_like, row.num_oov_buckets)


def _by_size(*accuracies: float) -> dict[int, float]:
    return dict(zip(VOCAB_SIZES, accuracies))


_ALL, _GLOBAL = "2|l| + 2|g|", "2|g|"
ROWS = (
    Row("FedYogi (1 OOV)", "fed_yogi", 1, _by_size(24.3, 26.3, 26.7), _ALL),
    Row("FedRecon (1 OOV)", "fed_recon", 1, _by_size(24.1, 26.2, 26.4), _GLOBAL),
    Row("FedRecon (500 OOV)", "fed_recon", 500, _by_size(29.6, 28.1, 27.7), _GLOBAL),
    Row("OOV finetuning (500 OOV)", "oov_finetuning", 500, _by_size(30.0, 28.1, 27.9), _ALL),
    Row("Full finetuning (500 OOV)", "full_finetuning", 500, _by_size(30.8, 29.2, 28.8), _ALL),
    Row(
        "FedRecon + finetune (500 OOV)",
        "fed_recon_finetuning",
        500,
        _by_size(30.7, 28.9, 28.6),
        _GLOBAL,
    ),
)


def choose_rows(names: Sequence[str]) -> tuple[Row, ...]:
    """Returns the rows of these names, in the table's order; all of them for no names.

    Raises:
        UserError: If a name is no row's.
    """
    known = [row.name for row in ROWS]
    for name in names:
        if name not in known:
            raise UserError(
                f"--rows: {name!r} is no row of table 2; these are: {', '.join(known)}."
            )
    return tuple(row for row in ROWS if not names or row.name in names)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a table or figure.

    Attributes:
        vocab_sizes: The vocabularies that the sentences have words enough for.
        left_out: The others that were asked for.
        num_distinct_words: Words of the training users, the reason; None if unknown.
        seeds: The seeds.
        runs: By vocabulary size, run name and seed.
    """

    vocab_sizes: tuple[int, ...]
    left_out: tuple[int, ...]
    num_distinct_words: int | None
    seeds: tuple[int, ...]
    runs: Mapping[tuple[int, str, int], NextWordRun]


def make_plan(
    rows: Sequence[Row],
    choice: TextChoice,
    preset: Preset,
    runs_dir: str,
    *,
    vocab_sizes: Sequence[int],
    seeds: Sequence[int],
    scale_rounds: float = 1.0,
    with_tests: bool = True,
) -> Plan:
    """Settles which runs some rows need; rows that train alike share theirs.

    Args:
        rows: The rows.
        choice: The sentences.
        preset: The hyperparameters.
        runs_dir: Holds the run folders.
        vocab_sizes: The vocabularies asked for.
        seeds: Seeds to run everything with.
        scale_rounds: Factor of the rounds.
        with_tests: Whether the rows are evaluated on the test users.

    Raises:
        UserError: If there are words enough for none of the vocabularies.
    """
    known = choice.num_distinct_words(seeds)
    fitting = tuple(size for size in vocab_sizes if known is None or size <= known)
    if not fitting:
        raise UserError(
            f"the training users have {known:,} distinct words, too few for a vocabulary of "
            f"{min(vocab_sizes):,}; give other --vocab_sizes."
        )
    runs = {}
    for seed in seeds:
        for size in fitting:
            for name in dict.fromkeys(row.run_name for row in rows):
                first = next(row for row in ROWS if row.run_name == name)
                sharing = [row for row in rows if row.run_name == name] if with_tests else []
                options = [
                    preset.options_of(
                        row.algorithm,
                        scale_rounds=scale_rounds,
                        vocab_size=size,
                        num_oov_buckets=row.num_oov_buckets,
                        seed=seed,
                    )
                    for row in (first, *sharing)
                ]
                runs[size, name, seed] = NextWordRun(
                    f"{first.name}, {size:,} words, seed {seed}",
                    pathlib.Path(runs_dir) / f"vocab_{size}" / name / f"seed_{seed}",
                    options[0],
                    tuple(options[1:]),
                )
    left_out = tuple(size for size in vocab_sizes if size not in fitting)
    return Plan(fitting, left_out, known, tuple(seeds), runs)


def run(
    choice: TextChoice,
    preset: Preset,
    output_dir: str,
    *,
    seeds: Sequence[int],
    rows: Sequence[Row] = ROWS,
    vocab_sizes: Sequence[int] = VOCAB_SIZES,
    scale_rounds: float = 1.0,
    runs_dir: str | None = None,
    isolated: bool = True,
) -> str:
    """Runs what is missing of the table and writes `table2.md` and `table2.json`.

    Args:
        choice: The sentences.
        preset: The hyperparameters.
        output_dir: Receives the table.
        seeds: Seeds to run each row with.
        rows: The rows, some of `ROWS`.
        vocab_sizes: Columns; those for which there are too few words are left out.
        scale_rounds: Factor of the rounds.
        runs_dir: Holds the run folders; None for `output_dir`.
        isolated: Whether each run has a process of its own.

    Returns:
        The table as Markdown.

    Raises:
        UserError: If a run diverges, its folder holds another one, or words are too few.
    """
    plan = make_plan(
        rows,
        choice,
        preset,
        runs_dir or output_dir,
        vocab_sizes=vocab_sizes,
        seeds=seeds,
        scale_rounds=scale_rounds,
    )
    complete(list(plan.runs.values()), choice, isolated=isolated)
    table = {
        "data": choice.describe(),
        "preset": preset.name,
        "seeds": list(seeds),
        "vocab_sizes": plan.vocab_sizes,
        "left_out_vocab_sizes": plan.left_out,
        "vocabulary_coverage": {size: _coverage(plan, size) for size in plan.vocab_sizes},
        "rows": [
            {
                "name": row.name,
                "algorithm": row.algorithm,
                "num_oov_buckets": row.num_oov_buckets,
                "paper_communication": row.paper_communication,
                "by_vocab_size": {size: _measure(plan, row, size) for size in plan.vocab_sizes},
            }
            for row in rows
        ],
    }
    markdown = "\n\n".join(
        [heading("Table 2", choice, preset, plan), *_notes(plan), *_tables(rows, table, plan)]
    )
    folder = pathlib.Path(output_dir)
    write_json(folder / "table2.json", table)
    write_text(folder / "table2.md", markdown)
    return markdown


def heading(what: str, choice: TextChoice, preset: Preset, plan: Plan) -> str:
    """Returns the title of a table or figure, and plainly what its numbers are of."""
    about = choice.describe()
    options = next(iter(plan.runs.values())).options
    data = f"# {what} on {about['dataset']}"
    if not choice.is_the_papers:
        data += " (a stand-in: the paper's figures are Stack Overflow's)"
    size = ""
    if "num_users" in about:
        size = f"{about['num_sentences']:,} sentences of {about['num_users']:,} users. "
    seeds = f"mean ± standard deviation over {len(plan.seeds)} seeds"
    if len(plan.seeds) == 1:
        seeds = "a single seed, hence no standard deviation"
    return (
        f"{data}\n\n{size}Preset {preset.name}: {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users, {options.lstm_units} LSTM units; {seeds}."
    )


def left_out_note(plan: Plan) -> list[str]:
    """Returns a sentence on the vocabularies that are left out, if any are."""
    if not plan.left_out:
        return []
    sizes = ", ".join(f"{size:,}" for size in plan.left_out)
    return [
        f"Left out: vocabularies of {sizes} words; the training users have "
        f"{plan.num_distinct_words:,} distinct words."
    ]


def short_size(vocab_size: int) -> str:
    """Returns 10k for 10,000."""
    return f"{vocab_size // 1000}k" if vocab_size % 1000 == 0 else str(vocab_size)


def _notes(plan: Plan) -> list[str]:
    covered = []
    for size in plan.vocab_sizes:
        measured = _coverage(plan, size)
        if measured is not None:
            paper = f" ({_PAPER_COVERAGE[size]} % in the paper)" if size in _PAPER_COVERAGE else ""
            covered.append(f"{short_size(size)} {100 * measured:.1f} %{paper}")
    words = [f"Share of the test users' words in the vocabulary: {', '.join(covered)}."]
    return [*left_out_note(plan), *(words if covered else [])]


def _tables(rows: Sequence[Row], table: Mapping[str, Any], plan: Plan) -> list[str]:
    sizes = plan.vocab_sizes
    accuracy, known, hurt, sent = [], [], [], []
    for row, measured in zip(rows, table["rows"]):
        cells = [measured["by_vocab_size"][size] for size in sizes]
        accuracy.append([row.name])
        known.append([row.name, *(_with_deviation(cell, "accuracy_among_known") for cell in cells)])
        hurt.append([row.name])
        sent.append([row.name, _bars(row.paper_communication), _bars(cells[0]["formula"])])
        for size, cell in zip(sizes, cells):
            paper = row.paper_accuracy.get(size)
            accuracy[-1] += [
                "–" if paper is None else f"{paper:.1f}",
                _with_deviation(cell, "accuracy"),
            ]
            hurt[-1] += [f"{cell['accuracy_before']:.1f}", f"{cell['share_hurt']:.1f}"]
            sent[-1].append(_sent(cell["communication"]))
    names = [short_size(size) for size in sizes]
    return [
        "Accuracy in per cent, out-of-vocabulary and end-of-sentence targets not counted, on "
        "test users after personalisation:",
        as_github_table(
            accuracy, ["", *(c for n in names for c in (f"{n}, paper", f"{n}, measured"))]
        ),
        "The same where only known words may be predicted. One bucket for all other words is often "
        "the most likely prediction, one of 500 hardly ever; so this compares them fairly:",
        as_github_table(known, ["", *(f"{n}, measured" for n in names)]),
        "Communication of a client in a round, as read off what crosses the boundary, for local "
        "variables l and global ones g:",
        as_github_table(sent, ["", "paper", "measured", *names]),
        "Accuracy in per cent before personalisation, and per cent of the test users whose loss "
        "personalisation raises:",
        as_github_table(hurt, ["", *(c for n in names for c in (f"{n}, before", f"{n}, hurt"))]),
    ]


def _measure(plan: Plan, row: Row, size: int) -> dict[str, Any]:
    runs = [plan.runs[size, row.run_name, seed] for seed in plan.seeds]
    tests = [run.test(row.algorithm) for run in runs]
    values = {
        "accuracy": [100 * test[METRIC] for test in tests],
        "accuracy_before": [100 * test["before"][METRIC] for test in tests],
        "accuracy_among_known": [100 * test[METRIC_AMONG_KNOWN] for test in tests],
        "share_hurt": [100 * test["share_hurt"] for test in tests],
    }
    measured: dict[str, Any] = {"paper_accuracy": row.paper_accuracy.get(size)}
    for name, over_seeds in values.items():
        measured[name], measured[f"{name}_sd"] = mean_and_deviation(over_seeds)
    communication = runs[0].communication()
    return {
        **measured,
        "formula": communication.formula,
        "communication": dataclasses.asdict(communication),
    }


def _coverage(plan: Plan, size: int) -> float | None:
    runs = [r for (vocab_size, _, _), r in plan.runs.items() if vocab_size == size]
    shares = [run.training()["vocabulary_coverage"] for run in runs]
    return None if None in shares else mean_and_deviation(shares)[0]


def _with_deviation(cell: Mapping[str, Any], name: str) -> str:
    return with_deviation(cell[name], cell[f"{name}_sd"], digits=1)


def _sent(communication: Mapping[str, Any]) -> str:
    down, up = communication["broadcast_parameters"], communication["aggregated_parameters"]
    numbers = f"2 × {down:,}" if down == up else f"{down:,} + {up:,}"
    return f"{numbers} ({communication['num_bytes'] / 1e6:.2f} MB)"


def _bars(formula: str) -> str:
    """Returns a formula whose bars do not end a table's cell."""
    return formula.replace("|", "∣")
