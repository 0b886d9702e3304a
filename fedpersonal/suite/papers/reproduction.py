"""The request for a table or figure: its rows, seeds, hyperparameters and data."""

from __future__ import annotations

import dataclasses
import difflib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.options import Value
from fedpersonal.suite import PRESETS
from fedpersonal.suite.commands.option_flags import read_flagfile
from fedpersonal.suite.papers.jobs import Job, complete
from fedpersonal.suite.papers.table import Line
from fedpersonal.suite.tasks.task import DataT, SourceT, Task

_ROUNDS = ("total_rounds", "rounds_per_eval", "decay_rounds")


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A row of a table.

    Attributes:
        name: The paper's name, without commas, which separate names in `--rows`.
        preset: The file of its hyperparameters; `{}` is replaced by `quick` or `paper`.
        values: Options that replace the preset's.
        published: The paper's figures by column.
    """

    name: str
    preset: str
    values: Mapping[str, Value]
    published: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if "," in self.name:
            raise ValueError(
                f"A row's name has no comma, which separates names in `--rows`: {self.name!r}."
            )


def choose_rows(rows: Sequence[Row], names: Sequence[str], *, table: str) -> list[Row]:
    """Returns the rows with the names, in the table's order; all rows for no names.

    Raises:
        UserError: If no row has a name.
    """
    choices = [row.name for row in rows]
    for name in names:
        if name not in choices:
            nearest = difflib.get_close_matches(name, choices, 3, cutoff=0)
            raise UserError(
                f"--rows: {name!r} is no row of {table}; the nearest of its {len(choices)} are: "
                f"{'; '.join(nearest)}."
            )
    return [row for row in rows if not names or row.name in names]


def lines_of(jobs: Mapping[Row, Sequence[Job]]) -> list[Line]:
    """Returns the lines of rows."""
    return [Line(row.name, row_jobs, row.published) for row, row_jobs in jobs.items()]


def keep_order(task: Task, values: dict[str, Value]) -> None:
    """Adds `--shuffle=never` to the options of a method with rounds, unless they set `shuffle`.

    The tables, which take hours, were measured before this option existed.
    """
    name = values.get("method", task.options.declarations()["method"].default)
    method = task.methods[str(name)]
    if method.is_federated and method.trains:
        values.setdefault("shuffle", "never")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """A request for a table or figure.

    Attributes:
        output_dir: The folder of tables, pictures and runs.
        seeds: Seeds of each row.
        preset: `quick`, `paper` or `auto`.
        scale_rounds: Factor of the rounds.
        options: Options of all rows, such as the folder of data.
        rows: Names of rows; empty for all of the paper's.
        vocab_sizes: Sizes of vocabularies, for tables with several; empty for the paper's.
        datasets: Data sets, for tables with several; empty for the one in `options`.
        movielens_dir: The folder of MovieLens-1M, for a figure that also has sentences.
        runs_dir: The folder of runs that several tables share; None for `output_dir`.
    """

    output_dir: pathlib.Path
    seeds: Sequence[int] = (0,)
    preset: str = "auto"
    scale_rounds: float = 1.0
    options: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    rows: Sequence[str] = ()
    vocab_sizes: Sequence[int] = ()
    datasets: Sequence[str] = ()
    movielens_dir: str | None = None
    runs_dir: pathlib.Path | None = None

    def with_preset(self, *, quick: bool) -> Reproduction:
        """Returns the request with `auto` replaced by a preset."""
        automatic = "quick" if quick else "paper"
        return self.replace(preset=automatic if self.preset == "auto" else self.preset)

    def replace(self, **changes: Any) -> Reproduction:
        """Returns the request with other attributes."""
        return dataclasses.replace(self, **changes)

    @property
    def dataset(self) -> str:
        """The requested data set."""
        return str(self.options.get("dataset", "auto"))

    @property
    def is_generated(self) -> bool:
        """Whether the texts are generated."""
        has_files = any(self.options.get(name) for name in ("text_file", "data_dir"))
        return self.dataset.startswith("generated") or (self.dataset == "auto" and not has_files)

    def values(self, task: Task, preset: str, **options: Value) -> dict[str, Value]:
        """Returns options by name, from a preset, the request and a row, with scaled rounds.

        Args:
            task: The task.
            preset: The preset's file, with `{}` for the requested kind.
            **options: Options of the row.
        """
        declared = task.options.declarations()
        values = read_flagfile(PRESETS / f"{preset.format(self.preset)}.flags", task.options)
        # Flags set the data, not presets.
        values["dataset"] = declared["dataset"].default
        values.update({n: value for n, value in self.options.items() if n in declared}, **options)
        keep_order(task, values)
        for name in _ROUNDS:
            rounds = values.get(name, declared[name].default)
            if rounds:
                values[name] = max(1, round(self.scale_rounds * rounds))
        return values

    def read(self, task: Task[Any, SourceT, Any], preset: str, **options: Value) -> SourceT:
        """Reads the data and prints their summary; the arguments are those of `values`."""
        source = task.read(task.options(**self.values(task, preset, **options)))
        print(source.summary(), flush=True)
        return source

    def jobs(
        self, task: Task, row: Row, folder: str | pathlib.Path, *, note: str = "", **options: Value
    ) -> list[Job]:
        """Returns the jobs of a row, one per seed.

        Args:
            task: The task.
            row: The row.
            folder: Their folder, in the output folder.
            note: A note in their titles.
            **options: Options that replace the row's.
        """
        return [
            Job(
                f"{row.name}{note}, seed {seed}",
                self.output_dir / folder / f"seed_{seed}",
                task,
                self.values(task, row.preset, **{**row.values, **options, "seed": seed}),
            )
            for seed in self.seeds
        ]

    def splits(
        self, task: Task[Any, SourceT, DataT], source: SourceT, preset: str, **options: Value
    ) -> list[DataT]:
        """Returns the clients' data, split by each seed; other arguments are those of `values`."""
        return [
            task.split(source, task.options(**self.values(task, preset, **options, seed=seed)))
            for seed in self.seeds
        ]

    def complete(self, source: Any, *jobs: Sequence[Job]) -> None:
        """Runs the missing jobs on a source."""
        complete([job for row in jobs for job in row], source.describe())

    def seeds_in_words(self) -> str:
        """Returns the number of seeds in words."""
        if len(self.seeds) == 1:
            return "a single seed, hence no standard deviation"
        return f"mean ± standard deviation over {len(self.seeds)} seeds"
