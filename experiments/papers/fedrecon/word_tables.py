"""Tables of next word prediction: accuracies, differences, and what follows personal words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.papers import differences
from experiments.papers.reproduction import Reproduction, Row
from experiments.papers.result_table import Cell, Cells, ResultTable, over_seeds
from experiments.papers.runs import Run
from fedpersonal.evaluation.client_metric import ClientMetric
from fedpersonal.tasks.next_word.counts import score_choices
from fedpersonal.tasks.next_word.source import Sentences
from fedpersonal.tasks.next_word.task import TASK

METRIC, AMONG_KNOWN = "accuracy_without_oov_or_eos", "accuracy_among_known"
_CAPTIONS = {
    METRIC: "Accuracy in per cent, out-of-vocabulary and end-of-sentence targets not counted, on "
    "test users after personalisation:",
    AMONG_KNOWN: "The same where only known words may be predicted. One bucket for all other words "
    "is often the most likely prediction, one of 500 hardly ever; so this compares them fairly:",
}
_HURT = (
    "Accuracy in per cent before personalisation, and per cent of the test users whose loss "
    "personalisation raises:"
)
_TITLES = {METRIC: "the paper's metric", AMONG_KNOWN: "among known words"}
_METRICS = {name: ClientMetric(f"{name}_after", "num_known_words", scale=100) for name in _TITLES}
_BEFORE, _AFTER = (f"personal_word_accuracy_{stage}" for stage in ("before", "after"))
_PERSONAL = ClientMetric(_AFTER, "num_after_personal_words", scale=100)
_DIFFERENCES = "Points of accuracy, {}, less those of another row."
_PERSONAL_WORDS = """\
Accuracy in per cent of what follows a personal word, before and after personalisation, and the \
gain with its interval. A personal word is out of the vocabulary and occurs in the user's support \
set; only known words are to be predicted and may be. There are {} such targets:"""


@dataclasses.dataclass(frozen=True)
class Compared:
    """The rows of one vocabulary.

    Attributes:
        runs: By row, a run a seed.
        controls: By row, its test clients, a table a seed.
    """

    runs: Mapping[str, Sequence[Run]]
    controls: Mapping[str, Sequence[pd.DataFrame]]

    def clients(self, name: str) -> Sequence[pd.DataFrame]:
        """Returns a row's test clients, a table a seed."""
        if name in self.controls:
            return self.controls[name]
        return [run.record.per_client for run in self.runs[name]]


def count_words(
    asked: Reproduction, source: Sentences, rows: Sequence[Row], vocab_size: int
) -> dict[str, list[pd.DataFrame]]:
    """Returns the test clients of rows that count words, a table a seed.

    Raises:
        UserError: If the sentences are too many to be counted as a whole.
    """
    found: dict[str, list[pd.DataFrame]] = {row.name: [] for row in rows}
    for row in rows:
        for seed in asked.seeds:
            own = {**row.values, "vocab_size": vocab_size, "seed": seed}
            options = TASK.options(**asked.values(TASK, row.preset, **own))
            columns = score_choices(TASK.split(source, options), row.name.partition(" (")[0])
            found[row.name].append(pd.DataFrame(columns))
    return found


def accuracy_table(
    metric: str,
    compared: Mapping[str, Compared],
    names: Sequence[str],
    published: Mapping[str, Mapping[str, Any]] | None = None,
) -> ResultTable:
    """Returns the accuracy of rows after personalisation, by vocabulary."""
    cells: Cells = {name: {} for name in names}
    for size, of_size in compared.items():
        for name, own in of_size.controls.items():
            cells[name][size] = Cell(tuple(_METRICS[metric].overall(t) for t in own))
        for name, runs in of_size.runs.items():
            paper = published[name].get(size) if published else None
            cells[name][size] = over_seeds(runs, "test", metric, scale=100, published=paper)
    return ResultTable("accuracy" if metric == METRIC else metric, cells, _CAPTIONS[metric])


def difference_tables(
    compared: Mapping[str, Compared], names: Sequence[str], references: Sequence[str]
) -> list[str | ResultTable]:
    """Returns how far rows are from those to compare with, a table a metric."""
    references = [name for name in references if name in names]
    tables: list[str | ResultTable] = []
    for metric, title in _TITLES.items():
        cells: Cells = {name: {} for name in names}
        for size, of_size in compared.items():
            for reference in references:
                others = of_size.clients(reference)
                for name in names:
                    if name != reference:
                        cell = differences.difference(
                            of_size.clients(name), others, _METRICS[metric]
                        )
                        cells[name][f"{size} − {reference}"] = cell
        if references:
            caption = _DIFFERENCES.format(title)
            tables.append(ResultTable(f"{metric}_differences", cells, caption))
    return [differences.ABOUT, *tables] if tables else []


def personal_words_table(compared: Mapping[str, Compared], names: Sequence[str]) -> ResultTable:
    """Returns the accuracy of what follows personal words, and what personalisation adds to it."""
    cells: Cells = {name: {} for name in names}
    counts = []
    for size, of_size in compared.items():
        numbers = [table[_PERSONAL.weights].sum() for table in of_size.clients(names[0])]
        counts.append(f"{sum(numbers) / len(numbers):,.0f} ({size})")
        for name in names if all(numbers) else ():
            after, row = of_size.clients(name), cells[name]
            before = [table.assign(**{_AFTER: table.get(_BEFORE)}) for table in after]
            if name in of_size.runs:
                row[f"{size}, before"] = Cell(tuple(map(_PERSONAL.overall, before)))
            row[f"{size}, after"] = Cell(tuple(map(_PERSONAL.overall, after)))
            if name in of_size.runs:
                row[f"{size}, gain"] = differences.difference(after, before, _PERSONAL)
    return ResultTable("personal_words", cells, _PERSONAL_WORDS.format(", ".join(counts)))


def before_table(compared: Mapping[str, Compared]) -> ResultTable:
    """Returns the accuracy of runs before personalisation, and the share of users hurt by it."""
    cells: Cells = {}
    figures = {"before": ("before", METRIC), "hurt": ("share_hurt",)}
    for size, of_size in compared.items():
        for name, runs in of_size.runs.items():
            for note, path in figures.items():
                cell = over_seeds(runs, "test", *path, scale=100)
                cells.setdefault(name, {})[f"{size}, {note}"] = cell
    return ResultTable("before", cells, _HURT)
