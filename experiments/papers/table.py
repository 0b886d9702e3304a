"""Results as a table: rows by columns by seeds, the paper's figures beside those measured.

A *line* is what stands in a row: jobs that differ by their seed, or a guess without a training. A
*column* makes a cell of a line. All tables of papers are lines and columns put together.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Union

import pandas as pd
import tabulate

from experiments.papers.jobs import Job
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric, paired_difference
from fedpersonal.files import write_csv, write_json, write_text

FigureT = TypeVar("FigureT", float, str)
Title = Union[str, int, float]

DIFFERENCES = """\
Differences: in brackets the 95 % interval of a paired bootstrap over the test clients that both \
rows share (a client that several seeds test counts as one), then the standard deviation over \
seeds, each with a training of its own. *Within noise*: the interval has 0 in it."""


@dataclasses.dataclass(frozen=True)
class Cell(Generic[FigureT]):
    """One figure of a table.

    Attributes:
        values: One a seed, or one of them all.
        published: The paper's, or None.
        deviation: The standard deviation where it is not that of the values.
        interval: Of a difference, as of `difference`.
    """

    values: tuple[FigureT, ...]
    published: FigureT | None = None
    deviation: float | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Cell[float]:
        """Returns a figure that a JSON file has, by the names of its fields."""
        given = {field.name: content[field.name] for field in dataclasses.fields(Cell)}
        return Cell(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})

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
    jobs: Sequence[Job], *path: str, scale: float = 1.0, published: float | None = None
) -> Cell[float]:
    """Returns the cell of jobs that differ by their seed.

    Args:
        jobs: The jobs.
        *path: Where their summaries have the figure, such as "test", "accuracy".
        scale: Its factor.
        published: The paper's.
    """
    values = []
    for job in jobs:
        value: Any = job.summary
        for key in path:
            if key not in value:
                raise UserError(
                    f"{job.path}: its summary has no {key!r}: another version has run it. Remove "
                    "the folder, and run the table again."
                )
            value = value[key]
        values.append(scale * (value or 0.0))
    return Cell(tuple(values), published)


def validation_curve(
    jobs: Sequence[Job], metric: str, a_round: Callable[[int, int], float]
) -> dict[float, Cell]:
    """Returns a validation metric of trainings, in per cent, by how far they have come.

    Args:
        jobs: The jobs, one a seed.
        metric: The metric.
        a_round: How far a round comes, given the clients that take part in it, and all clients.
    """
    trainers = [job.trainer for job in jobs]
    tables = [job.record.metrics.set_index("round")[f"eval/{metric}"].dropna() for job in trainers]
    users = trainers[0].summary["num_training_clients"]
    step = a_round(min(trainers[0].options.clients_per_round, users), users)
    return {float(n * step): Cell(tuple(100 * t[n] for t in tables)) for n in tables[0].index}


def difference(
    ours: Sequence[pd.DataFrame], others: Sequence[pd.DataFrame], metric: ClientMetric
) -> Cell[float]:
    """Returns the cell of a row minus another one.

    Args:
        ours: The row's test clients, as of `RunRecord.per_client`, a table a seed.
        others: The other row's, seed by seed.
        metric: What is compared.

    Raises:
        ValueError: As `paired_difference`.
    """
    by_seed, found = paired_difference(ours, others, metric)
    interval = (found.low, found.high) if found.has_interval else None
    return Cell(tuple(by_seed.tolist()), interval=interval)


@dataclasses.dataclass(frozen=True)
class Line:
    """What stands in a row.

    Attributes:
        name: The row's name.
        jobs: One a seed; none for a guess.
        published: The paper's figures by column.
        guess: A guess' test clients, a table a seed.
    """

    name: str
    jobs: Sequence[Job] = ()
    published: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    guess: Sequence[pd.DataFrame] = ()

    @property
    def clients(self) -> Sequence[pd.DataFrame]:
        """The test clients, a table a seed."""
        return self.guess or [job.record.per_client for job in self.jobs]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: Its title.
        cell: Makes the cell of a line, or None where the line has none.
        digits: Digits after the point.
    """

    title: Title
    cell: Callable[[Line], Cell | None]
    digits: int = 1


def figure(
    title: str,
    *path: str,
    digits: int = 1,
    scale: float = 1.0,
    metric: ClientMetric | None = None,
    paper: str | None = None,
) -> Column:
    """Returns the column of a figure in summaries.

    Args:
        title: Its title.
        *path: As of `over_seeds`.
        digits: Digits after the point.
        scale: Factor of the figure.
        metric: Makes the figure of a guess' test clients; None if there are no guesses.
        paper: What the paper's figures of lines go by; None for the title.
    """

    def cell(line: Line) -> Cell | None:
        if line.jobs:
            published = line.published.get(title if paper is None else paper)
            return over_seeds(line.jobs, *path, scale=scale, published=published)
        return Cell(tuple(metric.overall(table) for table in line.guess)) if metric else None

    return Column(title, cell, digits)


def behind(
    title: str,
    lines: Sequence[Line],
    name: str,
    metric: ClientMetric,
    *,
    digits: int = 1,
    counted: Sequence[str] = (),
) -> Column:
    """Returns the column of differences from another line.

    Args:
        title: Its title.
        lines: All lines; without that one among them the column is empty.
        name: That of the line that is subtracted.
        metric: What is compared.
        digits: Digits after the point.
        counted: Clients without a figure in one of these columns of theirs are left out.
    """
    other = next((line for line in lines if line.name == name), None)

    def cell(line: Line) -> Cell | None:
        if other is None or line.name == name:
            return None
        ours, others = (
            [table.dropna(subset=list(counted)) for table in one.clients] for one in (line, other)
        )
        return difference(ours, others, metric)

    return Column(title, cell, digits)


def constant(title: str, value: Callable[[Job], float | str | None], *, digits: int = 0) -> Column:
    """Returns the column of what is the same for all seeds; None of a job is no cell."""

    def cell(line: Line) -> Cell | None:
        found = value(line.jobs[0]) if line.jobs else None
        return None if found is None else Cell((found,), line.published.get(title))

    return Column(title, cell, digits)


# Row to column to cell.
Cells = dict[str, dict[Title, Cell]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Its name in files.
        cells: Row to column to cell; a row may lack columns.
        caption: Stands above.
        digits: Digits after the point; or column to digits.
        published: Where the paper's figures are: in a `column` of their own, or in `brackets`.
    """

    name: str
    cells: Mapping[str, Mapping[Any, Cell]]
    caption: str = ""
    digits: int | Mapping[Title, int] = 1
    published: str = "column"

    @classmethod
    def of(
        cls, name: str, *blocks: tuple[Iterable[Line], Sequence[Column]], **options: Any
    ) -> Table:
        """Returns the table of lines and columns.

        Args:
            name: Its name.
            *blocks: Lines with columns of theirs; a row may be in several.
            **options: Further attributes, such as the caption.
        """
        cells: Cells = {}
        digits: dict[Title, int] = {}
        for lines, columns in blocks:
            digits.update((column.title, column.digits) for column in columns)
            for line in lines:
                row = cells.setdefault(line.name, {})
                made = ((column.title, column.cell(line)) for column in columns)
                row.update((title, cell) for title, cell in made if cell is not None)
        return cls(name, cells, digits=digits, **options)

    @property
    def columns(self) -> list[Title]:
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

    def _show(self, column: Title, found: Sequence[Cell | None]) -> list[tuple[str, list[str]]]:
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
        return [(f"{column}, paper", paper), ("measured", measured)]

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
    parts: Sequence[str | Table]
    hidden: Sequence[Table] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, folder: pathlib.Path) -> str:
        """Writes `<name>.md`, `.json` and `.csv`, and returns the page."""
        page = "\n\n".join(p.markdown() if isinstance(p, Table) else p for p in self.parts)
        tables = [*(p for p in self.parts if isinstance(p, Table)), *self.hidden]
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
