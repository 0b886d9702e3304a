"""Results as a table: rows by columns by seeds, with the paper's figures and measured ones.

A *line* is the content of a row: jobs that differ by their seed, or a baseline without training. A
*column* makes the cell of a line. All tables of papers consist of lines and columns.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Union

import pandas as pd
import tabulate

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric, paired_difference
from fedpersonal.files import write_csv, write_json, write_text
from fedpersonal.suite.papers.jobs import Job

FigureT = TypeVar("FigureT", float, str)
Title = Union[str, int, float]

DIFFERENCES = """\
Differences: brackets have the 95 % interval of a paired bootstrap over the test clients that both \
rows share (a client that several seeds test counts once); the number after ± is the standard \
deviation over seeds, each with its own training. *Within noise*: the interval contains 0."""


@dataclasses.dataclass(frozen=True)
class Cell(Generic[FigureT]):
    """One figure of a table.

    Attributes:
        values: One value per seed, or one value for all seeds.
        published: The paper's figure, or None.
        deviation: The standard deviation, if it is not that of the values.
        interval: The interval of a difference, from `difference`.
    """

    values: tuple[FigureT, ...]
    published: FigureT | None = None
    deviation: float | None = None
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Cell[float]:
        """Returns the cell of an entry in a JSON file, which has the names of the fields."""
        fields = {field.name: content[field.name] for field in dataclasses.fields(Cell)}
        return Cell(**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})

    @property
    def mean(self) -> FigureT:
        """The mean over seeds; a text is equal for all seeds."""
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
        """Returns the mean and the deviation as text; for a difference, also the interval."""
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
        *path: The keys of the figure in summaries, such as "test", "accuracy".
        scale: A factor of the figure.
        published: The paper's figure.
    """
    values = []
    for job in jobs:
        value: Any = job.summary
        for key in path:
            if key not in value:
                raise UserError(
                    f"{job.path}: its summary has no {key!r}, since another version wrote it. "
                    "Remove the folder, and run the table again."
                )
            value = value[key]
        values.append(scale * (value or 0.0))
    return Cell(tuple(values), published)


def validation_curve(
    jobs: Sequence[Job], metric: str, a_round: Callable[[int, int], float]
) -> dict[float, Cell]:
    """Returns a validation metric of trainings, in per cent, by their progress.

    Args:
        jobs: The jobs, one per seed.
        metric: The metric.
        a_round: Returns the progress of a round; receives the numbers of its clients and of all
            clients.
    """
    trainers = [job.trainer for job in jobs]
    tables = [job.record.metrics.set_index("round")[f"eval/{metric}"].dropna() for job in trainers]
    users = trainers[0].summary["num_training_clients"]
    step = a_round(min(trainers[0].options.clients_per_round, users), users)
    return {float(n * step): Cell(tuple(100 * t[n] for t in tables)) for n in tables[0].index}


def difference(
    clients: Sequence[pd.DataFrame], reference: Sequence[pd.DataFrame], metric: ClientMetric
) -> Cell[float]:
    """Returns the cell of the difference of two rows, the first minus the second.

    Args:
        clients: The test clients of the first row, from `RunRecord.per_client`, a table per seed.
        reference: The test clients of the second row, by the same seeds.
        metric: The metric to compare.

    Raises:
        ValueError: As by `paired_difference`.
    """
    by_seed, mean = paired_difference(clients, reference, metric)
    interval = (mean.low, mean.high) if mean.has_interval else None
    return Cell(tuple(by_seed.tolist()), interval=interval)


@dataclasses.dataclass(frozen=True)
class Line:
    """The content of a row.

    Attributes:
        name: The row's name.
        jobs: The jobs, one per seed; none for a baseline.
        published: The paper's figures by column.
        baseline: A baseline's test clients, a table per seed.
    """

    name: str
    jobs: Sequence[Job] = ()
    published: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    baseline: Sequence[pd.DataFrame] = ()

    @property
    def clients(self) -> Sequence[pd.DataFrame]:
        """The test clients, a table per seed."""
        return self.baseline or [job.record.per_client for job in self.jobs]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: The title.
        cell: Makes the cell of a line; None if the line has none.
        digits: Digits after the decimal point.
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
        title: The title.
        *path: The keys of the figure, as for `over_seeds`.
        digits: Digits after the decimal point.
        scale: A factor of the figure.
        metric: Makes the figure from a baseline's test clients; None if there are no baselines.
        paper: The key of the paper's figures in lines; None for the title.
    """

    def cell(line: Line) -> Cell | None:
        if line.jobs:
            published = line.published.get(title if paper is None else paper)
            return over_seeds(line.jobs, *path, scale=scale, published=published)
        return Cell(tuple(metric.overall(table) for table in line.baseline)) if metric else None

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
        title: The title.
        lines: All lines; if the line `name` is not among them, the column is empty.
        name: The name of the line to subtract.
        metric: The metric to compare.
        digits: Digits after the decimal point.
        counted: Columns of clients; clients without a figure in one of them are left out.
    """
    other = next((line for line in lines if line.name == name), None)

    def cell(line: Line) -> Cell | None:
        if other is None or line.name == name:
            return None
        clients, reference = (
            [table.dropna(subset=list(counted)) for table in one.clients] for one in (line, other)
        )
        return difference(clients, reference, metric)

    return Column(title, cell, digits)


def constant(title: str, value: Callable[[Job], float | str | None], *, digits: int = 0) -> Column:
    """Returns the column of a value that is equal for all seeds; a job's None makes no cell."""

    def cell(line: Line) -> Cell | None:
        content = value(line.jobs[0]) if line.jobs else None
        return None if content is None else Cell((content,), line.published.get(title))

    return Column(title, cell, digits)


# Row to column to cell.
Cells = dict[str, dict[Title, Cell]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: The name in files.
        cells: The cells by row and column; a row may lack columns.
        caption: The text above the table.
        digits: Digits after the decimal point; or digits by column.
        published: The place of the paper's figures: a separate `column`, or `brackets`.
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
            name: The name.
            *blocks: Lines with their columns; several blocks may have lines of one row.
            **options: Further attributes, such as the caption.
        """
        cells: Cells = {}
        digits: dict[Title, int] = {}
        for lines, columns in blocks:
            digits.update((column.title, column.digits) for column in columns)
            for line in lines:
                row = cells.setdefault(line.name, {})
                pairs = ((column.title, column.cell(line)) for column in columns)
                row.update((title, cell) for title, cell in pairs if cell is not None)
        return cls(name, cells, digits=digits, **options)

    @property
    def columns(self) -> list[Title]:
        """All columns, in the order of their first occurrence."""
        return list(dict.fromkeys(column for row in self.cells.values() for column in row))

    def markdown(self) -> str:
        """Returns the caption and the table in GitHub's Markdown."""
        columns = [("", list(self.cells))]
        for column in self.columns:
            columns += self._column_texts(column, [row.get(column) for row in self.cells.values()])
        headers, texts = zip(*columns)
        table = tabulate.tabulate(zip(*texts), headers, tablefmt="github", disable_numparse=True)
        return f"{self.caption}\n\n{table}" if self.caption else table

    def _column_texts(
        self, column: Title, cells: Sequence[Cell | None]
    ) -> list[tuple[str, list[str]]]:
        """Returns the headers and texts of a column: one, or two with the paper's figures."""
        digits = self.digits if isinstance(self.digits, int) else self.digits[column]
        measured = ["–" if cell is None else cell.text(digits) for cell in cells]
        published = [None if cell is None else cell.published for cell in cells]
        paper = ["–" if figure is None else _format(figure, digits) for figure in published]
        if not any(figure is not None for figure in published):
            return [(f"{column}", measured)]
        if self.published == "brackets":
            pairs = zip(measured, paper)
            return [(f"{column}", [m if p == "–" else f"{m} ({p})" for m, p in pairs])]
        return [(f"{column}, paper", paper), ("measured", measured)]

    def records(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the values in long form, one record per value."""
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
    """The page of a table or figure of a paper.

    Attributes:
        name: The name in files.
        seeds: The seeds.
        parts: Paragraphs and tables, in the order of the page.
        hidden: Tables that only the files have, such as a picture's points.
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
        content = {
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
            folder / f"{self.name}.json", {"seeds": self.seeds, **self.facts, "tables": content}
        )
        write_csv(
            folder / f"{self.name}.csv", [r for table in tables for r in table.records(self.seeds)]
        )
        return page


def _format(figure: float | str, digits: int) -> str:
    # A bar would end the cell of a Markdown table.
    return figure.replace("|", "∣") if isinstance(figure, str) else f"{figure:,.{digits}f}"
