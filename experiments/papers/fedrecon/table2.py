"""Table 2 of the FedRecon paper (Singhal et al., section 5.2): next word prediction.

Beside the paper's rows stand what tells personalisation from other causes: FedYogi with as many
buckets, and counts of words without any training; by `--rows` also further methods.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.fedrecon.word_tables import (
    AMONG_KNOWN,
    METRIC,
    Compared,
    accuracy_table,
    before_table,
    count_words,
    difference_tables,
    personal_words_table,
)
from experiments.papers.reproduction import Reproduction, Row, choose_rows
from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete, share_trainings
from fedpersonal.errors import UserError
from fedpersonal.options import Value
from fedpersonal.saved_model import read_saved_model
from fedpersonal.tasks.next_word.source import Sentences
from fedpersonal.tasks.next_word.task import TASK

VOCAB_SIZES = (1_000, 5_000, 10_000)
PRESET = "stackoverflow_{}"
# Share of the words that are in the vocabulary, section 5.2.
_COVERAGE = {"1k": 49.2, "5k": 80.1, "10k": 86.9}
_SENT = (
    "Communication of a client in a round, both ways, as read off what crosses the boundary, for "
    "local variables l and global ones g:"
)
# A model of one's own starts from nothing: it needs more steps than a shared one's copy.
_LOCAL: dict[str, Value] = {"finetuning_learning_rate": 1.0, "finetuning_epochs": 20}
_ADAPTATION: dict[str, Value] = {"adaptation_learning_rate": 0.3, "adaptation_steps": 10}
# The product of lambda and eta is 1: w goes all the way to theta.
_ENVELOPE: dict[str, Value] = {
    "inner_learning_rate": 0.3,
    "inner_steps": 2,
    "outer_learning_rate": 10.0,
    "envelope": 0.1,
    "finetuning_epochs": 5,
}


def short_size(vocab_size: int) -> str:
    """Returns 10k for 10,000."""
    return f"{vocab_size // 1000}k" if vocab_size % 1000 == 0 else str(vocab_size)


def _row(
    name: str,
    algorithm: str,
    buckets: int,
    published: tuple[str, float, float, float] | None = None,
    own: Mapping[str, Value] | None = None,
) -> Row:
    figures = zip(("formula", *map(short_size, VOCAB_SIZES)), published or ())
    values: dict[str, Value] = {"algorithm": algorithm, "num_oov_buckets": buckets, **(own or {})}
    return Row(f"{name} ({buckets} OOV)", PRESET, values, dict(figures))


_ALL, _GLOBAL, _NOTHING = "2|l| + 2|g|", "2|g|", "0"
PAPER_ROWS = (
    _row("FedYogi", "fed_yogi", 1, (_ALL, 24.3, 26.3, 26.7)),
    _row("FedRecon", "fed_recon", 1, (_GLOBAL, 24.1, 26.2, 26.4)),
    _row("FedRecon", "fed_recon", 500, (_GLOBAL, 29.6, 28.1, 27.7)),
    _row("OOV finetuning", "embedding_finetuning", 500, (_ALL, 30.0, 28.1, 27.9)),
    _row("Full finetuning", "fed_avg_finetuning", 500, (_ALL, 30.8, 29.2, 28.8)),
    _row("FedRecon + finetune", "fed_recon_finetuning", 500, (_GLOBAL, 30.7, 28.9, 28.6)),
)
_NOT_PERSONALISED = _row("FedYogi", "fed_yogi", 500)
# The preset's rate of reconstruction is for embeddings: ten times what a copy of the model bears.
_COPY: dict[str, Value] = {"reconstruction_learning_rate": 0.3}
# What training users would keep of these reaches nobody else, and takes 6 GB.
_REBUILT: dict[str, Value] = {**_COPY, "local_state": "rebuilt"}
_DITTO: dict[str, Value] = {**_REBUILT, "reconstruction_epochs": 5, "pull": 0.1}
ROWS = (
    *PAPER_ROWS,
    _NOT_PERSONALISED,
    _row("Local training", "local_only", 500, own=_LOCAL),
    _row("Ditto", "ditto", 500, own=_DITTO),
    _row("APFL", "apfl", 500, own=_REBUILT),
    _row("MR-MTL", "mr_mtl", 500, own={**_COPY, "reconstruction_epochs": 5}),
    _row("Per-FedAvg", "per_fed_avg", 500, own=_ADAPTATION),
    _row("pFedMe", "pfedme", 500, own=_ENVELOPE),
)
CONTROLS = (
    Row("Most frequent word", PRESET, {"num_oov_buckets": 1}),
    Row("Trigram counts (1 OOV)", PRESET, {"num_oov_buckets": 1}),
    Row("Trigram counts (500 OOV)", PRESET, {"num_oov_buckets": 500}),
)
# The others, by `--rows`: models of each user's own take many times as long.
USUAL_ROWS = (*PAPER_ROWS, _NOT_PERSONALISED, *CONTROLS)
# What rows are compared with.
REFERENCES = (PAPER_ROWS[0].name, PAPER_ROWS[2].name)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a table or figure.

    Attributes:
        asked: What is asked, with a preset.
        source: The sentences.
        notes: A sentence on vocabularies that there are too few words for, if there are any.
        runs: By vocabulary and row's name: a run a seed.
    """

    asked: Reproduction
    source: Sentences
    notes: Sequence[str]
    runs: Mapping[int, Mapping[str, Sequence[Run]]]

    def complete(self, *vocab_sizes: int) -> None:
        """Does the runs of some vocabularies that are missing."""
        every = [run for size in vocab_sizes for own in self.runs[size].values() for run in own]
        complete(every, self.source.describe(), isolated=self.asked.isolated)

    def heading(self, what: str) -> str:
        """Returns a title, and plainly what the numbers are of."""
        about, asked = self.source.describe(), self.asked
        options = TASK.options(**asked.values(TASK, PRESET))
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
    """Settles which runs some rows need; those that train alike share a training.

    Raises:
        UserError: If there are words enough for none of the vocabularies.
    """
    given = {n: v for n, v in asked.given.items() if n in TASK.options.declarations()}
    asked = asked.with_preset(quick=not TASK.read(TASK.options(**given)).is_the_papers)
    source, wanted = asked.read(TASK, PRESET), asked.vocab_sizes or VOCAB_SIZES
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
    runs: dict[int, dict[str, Sequence[Run]]] = {}
    for size in [size for size in wanted if size not in left_out]:
        # All rows, so that a training has its folder whichever of them are wanted.
        by_row = {}
        for row in ROWS:
            folder = "vocab_{}/{algorithm}_{num_oov_buckets}_oov".format(size, **row.values)
            words = f", {size:,} words"
            by_row[row] = shared.runs(TASK, row, folder, note=words, vocab_size=size)
        runs[size] = {row.name: own for row, own in share_trainings(by_row).items() if row in rows}
    return Plan(asked, source, [note] if left_out else [], runs)


def communication(run: Run) -> tuple[str, int, int]:
    """Returns what a client receives and sends in a round, together; metrics are left out.

    Returns:
        The formula of the paper, for local and global variables l and g; and numbers of model
        variables, and their bytes, as they have crossed the boundary.
    """
    record = run.trainer.record
    variables = read_saved_model(record.path).weights
    sent = [c for c in record.boundary if c["name"].rpartition(".")[2] in variables]
    # l, whether or not this run keeps it local.
    has_local = any(name.split("/")[0] in TASK.layers.embedding for name in variables)
    numbers = sum(math.prod(crossing["shape"]) for crossing in sent)
    num_bytes = sum(crossing["num_bytes"] for crossing in sent)
    formula = _ALL if has_local else _GLOBAL
    return formula if sent else _NOTHING, numbers, num_bytes


def run(asked: Reproduction) -> Report:
    """Runs what is missing, and returns the table."""
    every = (*ROWS, *CONTROLS)
    rows = choose_rows(every, asked.rows, table="table 2") if asked.rows else USUAL_ROWS
    plan = make_plan(asked, rows)
    notes = list(plan.notes)
    if plan.source.is_the_papers and not asked.rows:
        rows = [row for row in rows if row not in CONTROLS]
        notes.append("Left out: counts of words; its users are read when they are drawn.")
    controls = [row for row in rows if row in CONTROLS]
    compared = {
        short_size(size): Compared(runs, count_words(plan.asked, plan.source, controls, size))
        for size, runs in plan.runs.items()
    }
    plan.complete(*plan.runs)
    names = [row.name for row in rows]
    published = {row.name: row.published for row in rows}
    parts: list[str | ResultTable] = [
        plan.heading(f"Table 2 for {', '.join(compared)} words"),
        *notes,
        *_coverage(compared),
        accuracy_table(METRIC, compared, names, published),
        accuracy_table(AMONG_KNOWN, compared, names),
        *difference_tables(compared, names, REFERENCES),
        personal_words_table(compared, names),
        _communication_table(compared, published),
        before_table(compared),
    ]
    # Rows that only count words send nothing and are not personalised.
    parts = [part for part in parts if isinstance(part, str) or part.cells]
    facts = {"data": plan.source.describe(), "preset": plan.asked.preset}
    return Report("table2", asked.seeds, parts, facts=facts)


def _communication_table(
    compared: Mapping[str, Compared], published: Mapping[str, Mapping[str, Any]]
) -> ResultTable:
    sent: Cells = {}
    digits: dict[Column, int] = {"formula": 0}
    for size, of_size in compared.items():
        for name, runs in of_size.runs.items():
            formula, numbers, num_bytes = communication(runs[0])
            row = sent.setdefault(name, {})
            row["formula"] = Cell((formula,), published[name].get("formula"))
            row[f"{size}, numbers"] = Cell((numbers,))
            row[f"{size}, MB"] = Cell((num_bytes / 1e6,))
        digits.update({f"{size}, numbers": 0, f"{size}, MB": 2})
    return ResultTable("communication", sent, _SENT, digits)


def _coverage(compared: Mapping[str, Compared]) -> list[str]:
    """Returns a sentence on how many words are known, where data tell."""
    said = []
    for size, of_size in compared.items():
        own = next(iter(of_size.runs.values()), ())
        if own and own[0].summary["vocabulary_coverage"] is not None:
            measured = over_seeds(own, "vocabulary_coverage", scale=100).mean
            paper = f" ({_COVERAGE[size]} % in the paper)" if size in _COVERAGE else ""
            said.append(f"{size} {measured:.1f} %{paper}")
    return [f"Share of the test users' words in the vocabulary: {', '.join(said)}."] if said else []
