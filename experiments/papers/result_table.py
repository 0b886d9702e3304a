"""Results as a table: rows by columns by seeds, the paper's figures beside those measured."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, Union

import tabulate

from experiments.papers.runs import Run
from fedpersonal.files import write_csv, write_json, write_text

FigureT = TypeVar("FigureT", float, str)
Column = Union[str, int, float]


@dataclasses.dataclass(frozen=True)
class Cell(Generic[FigureT]):
    """One figure of a table.

    Attributes:
        values: One a seed, or one of them all.
        published: The paper's, or None.
        deviation: The standard deviation where it is not that of the values.
        interval: Of a difference, as of `differences.difference`.
    """

    values: tuple[FigureT, ...]
    published: FigureT | None = None
    deviation: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def mean(self) -> FigureT:
        """The mean over seeds; a text is the same for all of them."""
        first = self.values[0]
        if isinstance(first, str):
            return first
        return statistics.mean(self.values)

    @property
    def sd(self) -> float | None:
        """The standard deviation over seeds, None for a single one or a text."""
        has_none = len(self.values) == 1 or self.deviation is not None
        if has_none or isinstance(self.values[0], str):
            return self.deviation
        return statistics.stdev(self.values)

    def text(self, digits: int) -> str:
        """Returns the mean and the deviation in words; of a difference the interval between."""
        deviation = "" if self.sd is None else f" ± {_format(self.sd, digits)}"
        if self.interval is None:
            return f"{_format(self.mean, digits)}{deviation}"
        low, high = (f"{end:+.{digits}f}" for end in self.interval)
        noise = ", within noise" if self.interval[0] <= 0 <= self.interval[1] else ""
        return f"{self.mean:+.{digits}f} [{low}, {high}]{deviation}{noise}"


def over_seeds(
    runs: Sequence[Run], *path: str, scale: float = 1.0, published: float | None = None
) -> Cell[float]:
    """Returns the cell of runs that differ by their seed.

    Args:
        runs: The runs.
        *path: Where their summaries have the figure, such as "test", "accuracy".
        scale: Its factor.
        published: The paper's.
    """
    values = []
    for run in runs:
        value: Any = run.summary
        for key in path:
            value = value[key]
        values.append(scale * (value or 0.0))
    return Cell(tuple(values), published)


# Row to column to cell.
Cells = dict[str, dict[Column, Cell]]


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """A table.

    Attributes:
        name: Its name in files.
        cells: Row to column to cell; a row may lack columns.
        caption: Stands above.
        digits: Digits after the point; or column to digits.
        published: Where the paper's figures are: in a `column` of their own, with the `difference`
            too, or in `brackets`.
    """

    name: str
    cells: Mapping[str, Mapping[Column, Cell]]
    caption: str = ""
    digits: int | Mapping[Column, int] = 1
    published: str = "column"

    @property
    def columns(self) -> list[Column]:
        """All columns, in the order in which they first occur."""
        return list(dict.fromkeys(column for row in self.cells.values() for column in row))

    def markdown(self) -> str:
        """Returns the caption and the table in GitHub's Markdown."""
        shown = [("", list(self.cells))]
        for column in self.columns:
            shown += self._show(column, [row.get(column) for row in self.cells.values()])
        headers, texts = zip(*shown)
        table = tabulate.tabulate(zip(*texts), headers, tablefmt="github", disable_numparse=True)
        return f"{self.caption}\n\n{table}" if self.caption else table

    def _show(self, column: Column, found: Sequence[Cell | None]) -> list[tuple[str, list[str]]]:
        """Returns the headers and texts that a column becomes."""
        digits = self.digits if isinstance(self.digits, int) else self.digits[column]
        measured = ["–" if cell is None else cell.text(digits) for cell in found]
        known = [None if cell is None else cell.published for cell in found]
        paper = ["–" if figure is None else _format(figure, digits) for figure in known]
        if not any(figure is not None for figure in known):
            return [(f"{column}", measured)]
        if self.published == "brackets":
            pairs = zip(measured, paper)
            return [(f"{column}", [m if p == "–" else f"{m} ({p})" for m, p in pairs])]
        shown = [(f"{column}, paper", paper), ("measured", measured)]
        if self.published == "difference":
            differences = [
                f"{cell.mean - figure:+.{digits}f}" if cell and figure is not None else "–"
                for cell, figure in zip(found, known)
            ]
            shown.append(("difference", differences))
        return shown

    def records(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the values in long form, one each."""
        return [
            {
                "table": self.name,
                "row": row,
                "column": column,
                "seed": seed,
                "value": value,
                "published": cell.published,
            }
            for row, cells in self.cells.items()
            for column, cell in cells.items()
            for seed, value in zip(seeds, cell.values)
        ]


@dataclasses.dataclass(frozen=True)
class Report:
    """A table or figure of a paper with all that belongs to it.

    Attributes:
        name: Its name in files.
        seeds: The seeds.
        parts: Paragraphs and tables, in the order of the page.
        hidden: Tables for the files alone, such as a picture's points.
        facts: Further entries of the JSON file.
    """

    name: str
    seeds: Sequence[int]
    parts: Sequence[str | ResultTable]
    hidden: Sequence[ResultTable] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: pathlib.Path) -> str:
        """Writes `<name>.md`, `.json` and `.csv`, and returns the page."""
        page = "\n\n".join(p.markdown() if isinstance(p, ResultTable) else p for p in self.parts)
        tables = [*(p for p in self.parts if isinstance(p, ResultTable)), *self.hidden]
        found = {
            table.name: {
                row: {
                    column: {**dataclasses.asdict(cell), "mean": cell.mean, "sd": cell.sd}
                    for column, cell in cells.items()
                }
                for row, cells in table.cells.items()
            }
            for table in tables
        }
        write_text(folder / f"{self.name}.md", page)
        write_json(
            folder / f"{self.name}.json", {"seeds": self.seeds, **self.facts, "tables": found}
        )
        write_csv(
            folder / f"{self.name}.csv", [r for table in tables for r in table.records(self.seeds)]
        )
        return page


def _format(figure: float | str, digits: int) -> str:
    # A bar would end the cell.
    return figure.replace("|", "∣") if isinstance(figure, str) else f"{figure:,.{digits}f}"
