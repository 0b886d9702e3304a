"""What is asked of a table or figure: its rows, seeds, hyperparameters and data."""

from __future__ import annotations

import dataclasses
import difflib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.option_flags import read_flagfile
from experiments.papers.jobs import Job, complete
from experiments.papers.table import Line
from fedpersonal.errors import UserError
from fedpersonal.options import Value
from fedpersonal.tasks.task import DataT, SourceT, Task

PRESETS = pathlib.Path(__file__).parents[1] / "presets"
_ROUNDS = ("total_rounds", "rounds_per_eval", "decay_rounds")


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A row of a table.

    Attributes:
        name: As in the paper; without a comma, at which `--rows` is parted.
        preset: The file of its hyperparameters; `{}` stands for `quick` or `paper`.
        values: Options of its own.
        published: The paper's figures by column.
    """

    name: str
    preset: str
    values: Mapping[str, Value]
    published: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if "," in self.name:
            raise ValueError(
                f"A row's name has no comma, since `--rows` is parted at it: {self.name!r}."
            )


def choose_rows(rows: Sequence[Row], names: Sequence[str], *, table: str) -> list[Row]:
    """Returns the rows of these names, in the table's order; all of them for no names.

    Raises:
        UserError: If a name is no row's.
    """
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 3, cutoff=0)
            raise UserError(
                f"--rows: {name!r} is no row of {table}; the nearest of its {len(known)} are: "
                f"{'; '.join(nearest)}."
            )
    return [row for row in rows if not names or row.name in names]


def lines_of(jobs: Mapping[Row, Sequence[Job]]) -> list[Line]:
    """Returns the lines of rows."""
    return [Line(row.name, own, row.published) for row, own in jobs.items()]


def keep_order(task: Task, values: dict[str, Value]) -> None:
    """Adds `--shuffle=never` to options of a method with rounds, unless they have another order.

    Tables that take hours were measured before there was another one.
    """
    name = values.get("method", task.options.declarations()["method"].default)
    method = task.methods[str(name)]
    if method.is_federated and method.trains:
        values.setdefault("shuffle", "never")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What is asked.

    Attributes:
        output_dir: Receives tables, pictures and runs.
        seeds: Seeds to run each row with.
        preset: `quick`, `paper` or `auto`.
        scale_rounds: Factor of the rounds.
        given: Options that stand for all rows, such as where the data are.
        rows: Names of the rows wanted; none for all of the paper's.
        vocab_sizes: Vocabularies, where a table has several; none for the paper's.
        datasets: Data sets, where a table has several; none for `given`'s.
        movielens_dir: The folder of MovieLens-1M, for a figure that has sentences as well.
        runs_dir: Holds runs that several tables share; None for `output_dir`.
    """

    output_dir: pathlib.Path
    seeds: Sequence[int] = (0,)
    preset: str = "auto"
    scale_rounds: float = 1.0
    given: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    rows: Sequence[str] = ()
    vocab_sizes: Sequence[int] = ()
    datasets: Sequence[str] = ()
    movielens_dir: str | None = None
    runs_dir: pathlib.Path | None = None

    def with_preset(self, *, quick: bool) -> Reproduction:
        """Returns the same with a preset in place of `auto`."""
        automatic = "quick" if quick else "paper"
        return self.replace(preset=automatic if self.preset == "auto" else self.preset)

    def replace(self, **changes: Any) -> Reproduction:
        """Returns the same with other attributes."""
        return dataclasses.replace(self, **changes)

    @property
    def dataset(self) -> str:
        """The data set asked for."""
        return str(self.given.get("dataset", "auto"))

    @property
    def is_generated(self) -> bool:
        """Whether the texts are made up."""
        has_files = any(self.given.get(name) for name in ("text_file", "data_dir"))
        return self.dataset.startswith("generated") or (self.dataset == "auto" and not has_files)

    def values(self, task: Task, preset: str, **own: Value) -> dict[str, Value]:
        """Returns options by name: of a preset, of all rows and of one row, scaled.

        Args:
            task: The task.
            preset: The preset's file, `{}` for the kind asked for.
            **own: Options of one row.
        """
        declared = task.options.declarations()
        values = read_flagfile(PRESETS / f"{preset.format(self.preset)}.flags", task.options)
        # What data there are, the flags say, not hyperparameters.
        values["dataset"] = declared["dataset"].default
        values.update({n: value for n, value in self.given.items() if n in declared}, **own)
        keep_order(task, values)
        for name in _ROUNDS:
            rounds = values.get(name, declared[name].default)
            if rounds:
                values[name] = max(1, round(self.scale_rounds * rounds))
        return values

    def read(self, task: Task[Any, SourceT, Any], preset: str, **own: Value) -> SourceT:
        """Reads the data and says what there is; the arguments are those of `values`."""
        source = task.read(task.options(**self.values(task, preset, **own)))
        print(source.summary(), flush=True)
        return source

    def jobs(
        self, task: Task, row: Row, folder: str | pathlib.Path, *, note: str = "", **own: Value
    ) -> list[Job]:
        """Returns the jobs of a row, one a seed.

        Args:
            task: The task.
            row: The row.
            folder: Their folder, in the output's.
            note: Stands in their titles.
            **own: Options beside the row's.
        """
        return [
            Job(
                f"{row.name}{note}, seed {seed}",
                self.output_dir / folder / f"seed_{seed}",
                task,
                self.values(task, row.preset, **{**row.values, **own, "seed": seed}),
            )
            for seed in self.seeds
        ]

    def splits(
        self, task: Task[Any, SourceT, DataT], source: SourceT, preset: str, **own: Value
    ) -> list[DataT]:
        """Returns the clients' data as each seed splits them; `preset` and `own` as of `values`."""
        return [
            task.split(source, task.options(**self.values(task, preset, **own, seed=seed)))
            for seed in self.seeds
        ]

    def complete(self, source: Any, *jobs: Sequence[Job]) -> None:
        """Does the jobs on a source that are missing."""
        complete([job for own in jobs for job in own], source.describe())

    def seeds_in_words(self) -> str:
        """Says what numbers are means of."""
        if len(self.seeds) == 1:
            return "a single seed, hence no standard deviation"
        return f"mean ± standard deviation over {len(self.seeds)} seeds"
