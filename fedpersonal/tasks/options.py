"""The options that all tasks have."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeVar

from fedpersonal.data.formats import QUOTING, UTF_8, TableFile
from fedpersonal.data.sources import Sources, find_source
from fedpersonal.data.users import DataT, choose_users
from fedpersonal.errors import UserError
from fedpersonal.methods.fed_recon import FedReconOptions
from fedpersonal.methods.method import FinetuningOptions
from fedpersonal.optimizers import SERVER_OPTIMIZERS
from fedpersonal.options import Options, Value, option
from fedpersonal.runtime import RUNTIMES
from fedpersonal.training.participation import ClientClock, Participation

_CLOCK = tuple(field.name for field in dataclasses.fields(ClientClock))


class PrivacyOptions(Options):
    """How clients are drawn, and what hides each one's part in the global variables."""

    client_sampling: str = option(
        "fixed",
        "Draw as many clients in each round, or each by itself with the same chance.",
        choices=("fixed", "poisson"),
    )
    dp_noise_multiplier: float | None = option(
        None,
        "Noise on the sum of updates, by their bound; 0: clipping alone. [default: no differential "
        "privacy]",
        at_least=0,
    )
    dp_target_epsilon: float | None = option(
        None, "What all rounds may spend; finds the noise.", at_least=1e-3
    )
    dp_delta: float | None = option(
        None,
        "The chance that epsilon does not hold. [default: 1 / (training clients ^ 1.1)]",
        at_least=1e-15,
        at_most=0.1,
    )
    dp_clipping: str = option(
        "adaptive",
        "The bound on an update follows the updates' norms, or is fixed.",
        choices=("adaptive", "fixed"),
    )
    dp_clip_norm: float = option(0.1, "That bound; the first one where adaptive.", at_least=1e-9)
    dp_target_quantile: float = option(
        0.5, "adaptive: share of updates within the bound.", at_least=0, at_most=1
    )
    dp_state_clip_norm: float | None = option(
        None,
        "The bound on what a client sends of the server's states, for methods with such states "
        "(scaffold).",
        at_least=1e-9,
    )
    dp_noise: str = option(
        "seeded",
        "Where noise and the draw of clients come from: --seed, which is public, or a secret.",
        choices=("seeded", "secret"),
    )

    @property
    def is_private(self) -> bool:
        """Whether differential privacy is asked for."""
        return self.dp_noise_multiplier is not None or self.dp_target_epsilon is not None

    def check(self) -> None:
        """Raises a `UserError` where options of privacy contradict each other."""
        super().check()
        if self.dp_noise_multiplier is not None and self.dp_target_epsilon is not None:
            raise UserError("--dp_target_epsilon finds the noise: give no --dp_noise_multiplier.")
        if not self.is_private:
            names = ("dp_delta", "dp_clipping", "dp_clip_norm", "dp_target_quantile", "dp_noise")
            where = "without --dp_noise_multiplier or --dp_target_epsilon"
            self.refuse_idle(*names, "dp_state_clip_norm", where=where)
        elif self.dp_clipping == "fixed":
            self.refuse_idle("dp_target_quantile", where="with --dp_clipping=fixed")


class ParticipationOptions(Options):
    """What becomes of the clients of a round, and the clock that says how long theirs takes."""

    dropout_rate: float = option(
        0.0, "Share of the clients drawn that drop out before they begin.", at_least=0, at_most=0.99
    )
    lost_update_rate: float = option(
        0.0, "Share of clients whose update is lost after their work.", at_least=0, at_most=0.99
    )
    over_selection: float = option(
        0.0,
        "Share of clients drawn beyond --clients_per_round; the first that report are used.",
        at_least=0,
        at_most=100,
    )
    round_time_limit: float | None = option(
        None, "Simulated seconds after which clients are too late. [default: none]", above=0
    )
    min_examples: int = option(0, "Clients with fewer are never drawn.", at_least=0)
    lost_clients_keep: bool = option(
        False, "Clients whose update is not used keep what they have trained of local variables."
    )
    clock_overhead_seconds: float = option(1.0, "What any client's round takes.", at_least=0)
    clock_example_seconds: float = option(
        0.01, "What an example takes on a client of median speed.", at_least=0
    )
    clock_speed_spread: float = option(
        0.5, "Deviation of the logarithm of clients' speed.", at_least=0, at_most=10
    )

    @property
    def participation(self) -> Participation | None:
        """What is asked for; None if all clients take part and nobody asks for the time."""
        asked = {n: getattr(self, n) for n in ParticipationOptions.declarations()}
        clock = {n: asked.pop(f"clock_{n}") for n in _CLOCK}
        found = Participation(**asked, clock=ClientClock(**clock))
        return None if found == Participation() else found


RunOptionsT = TypeVar("RunOptionsT", bound="RunOptions")


class RunOptions(FedReconOptions, FinetuningOptions, PrivacyOptions, ParticipationOptions):
    """The algorithm, the rounds, what clients and server do in them, and what comes after."""

    method: str = option("fed_recon", "What to train with.", in_help=True)
    total_rounds: int = option(
        500, "Rounds of training.", at_least=1, may_differ=True, in_help=True
    )
    clients_per_round: int = option(100, "Clients drawn for a round.", at_least=1, in_help=True)
    client_batch_size: int = option(5, "Examples of a client's batch.", at_least=1, at_most=10**6)
    runtime: str = option(
        "local",
        "Where it computes: this process, a Ray cluster, or TFF's own program (open to others).",
        choices=RUNTIMES,
        may_differ=True,
    )
    compile: bool = option(True, "local, ray: XLA compiles clients' work, where that pays.")
    ray_address: str | None = option(
        None, "ray: the cluster's host:port. [default: a Ray of its own]", may_differ=True
    )
    shards: int | None = option(
        None,
        "Shards that a cohort is divided into. [default: one a processor]",
        at_least=1,
        at_most=10**4,
    )
    packing: str = option(
        "stacked",
        "Clients step together, or pool their examples.",
        choices=("stacked", "pooled"),
    )
    rounds_per_eval: int = option(50, "Rounds from one evaluation to the next.", at_least=1)
    best: str | None = option(
        None,
        "Test the model of the round with the best validation by this metric, such as loss. "
        "[default: the last round's]",
    )
    early_stopping: int | None = option(
        None,
        "Stop after so many validations in a row that are no better, by --best or the task's first "
        "metric. [default: never]",
        at_least=1,
    )
    rounds_per_checkpoint: int = option(
        50, "Rounds from one checkpoint to the next.", at_least=1, may_differ=True
    )
    seed: int = option(
        0, "Fixes every random choice of the run.", at_least=0, at_most=2**31 - 1, in_help=True
    )
    split_seed: int | None = option(
        None,
        "Fixes who and what trains, validates and tests, in place of --seed. [default: --seed]",
        at_least=0,
        at_most=2**31 - 1,
    )
    server_optimizer: str | None = option(
        None, "Applies the averaged update. [default: the algorithm's]", choices=SERVER_OPTIMIZERS
    )
    server_learning_rate: float | None = option(
        None, "Its learning rate. [default: 1 with sgd, else 0.1]", above=0
    )
    server_epsilon: float = option(1e-3, "Epsilon of adam, yogi and adagrad.", at_least=0)
    server_initial_accumulator: float = option(
        0.0, "Initial value of yogi and adagrad.", at_least=0
    )
    decay_rounds: int = option(
        0, "Rounds until the server's and local rates are 0; 0: constant.", at_least=0
    )

    @property
    def for_split(self: RunOptionsT) -> RunOptionsT:
        """The options by which data are split: their seed is that of the split."""
        return self if self.split_seed is None else self.replace(seed=self.split_seed)

    @property
    def watches(self) -> bool:
        """Whether rounds are chosen by their validation."""
        return self.best is not None or self.early_stopping is not None

    def check(self) -> None:
        """Raises a `UserError` where options of different kinds contradict each other."""
        super().check()
        if self.participation is not None:
            self.participation.check_draw(self.client_sampling, is_private=self.is_private)
        if self.is_private and self.weighting != "uniform":
            raise UserError(
                "differential privacy bounds every client alike: give --weighting=uniform with "
                f"--dp_...; it is {self.weighting}."
            )
        if self.ray_address is not None and self.runtime != "ray":
            raise UserError(
                f"--ray_address is {self.ray_address}, but --runtime is {self.runtime}; give "
                "--runtime=ray with it."
            )


class FormatOptions(Options):
    """How a table is written."""

    separator: str | None = option(
        None,
        "What divides values: comma, semicolon, tab, pipe, space, whitespace (any run of it), or "
        "the characters themselves, such as ::. [default: comma in .csv, tab in .tsv]",
    )
    header: tuple[str, ...] = option(
        (),
        "The columns' names, in the file's order, of a table whose first line is data; - for "
        "columns of no use. [default: the first line]",
    )
    quoting: str = option(
        "auto",
        "Quotes are text (none), or may enclose a value with separators, line ends and doubled "
        "quotes (double). auto: none where tabs, spaces or several characters divide values, else "
        "double, but a value that seems to hold other rows is refused.",
        choices=QUOTING,
    )
    encoding: str = option(
        UTF_8,
        "Encoding of the table and of --users_file, such as latin-1. A byte-order mark wins over "
        "utf-8.",
    )

    def changed(self) -> dict[str, Value]:
        """Returns the options of the format that are not at their defaults."""
        declared = FormatOptions.declarations()
        return {n: getattr(self, n) for n in declared if getattr(self, n) != declared[n].default}

    def table(self, path: str) -> TableFile:
        """Returns a file that is written so."""
        return TableFile.of(path, **{name: getattr(self, name) for name in _FORMAT})

    def check(self) -> None:
        """Raises a `UserError` where the format is of no use for any file."""
        super().check()
        self.table("any.csv")


_FORMAT = tuple(FormatOptions.declarations())


class TableOptions(FormatOptions):
    """Where a table of clients' examples is, and what its columns are called."""

    dataset: str = option("auto", "The data.", in_help=True)
    data_dir: str | None = option(None, "The folder with the data.", in_help=True)
    user_column: str = option("user", "The table's column of users.")
    time_column: str = option("time", "Its column of times; may be missing.")
    num_users: int | None = option(
        None, "Takes so many users alone, drawn by --seed. [default: all]", at_least=1
    )
    users_file: str | None = option(
        None, "Takes the users alone whom this file names, one a line. [default: all]"
    )

    def find(self, sources: Sources) -> tuple[str, str | None]:
        """Finds out what `auto` means, and where the data are, as `find_source` does.

        Raises:
            UserError: As of `find_source`, or if options name a folder that is not read, or the
                format or the columns of a table where none is read.
        """
        file = getattr(self, sources.file_flag)
        found = find_source(sources, dataset=self.dataset, file=file, data_dir=self.data_dir)
        where = f"with the dataset {found[0]}"
        if found[0] not in sources.tables:
            idle = [name for name in _FORMAT if name != "encoding" or self.users_file is None]
            idle += [name for name in self.declarations() if name.endswith("_column")]
            self.refuse_idle(*idle, where=where, unless=f"a table by --{sources.file_flag}")
        if file or found[1] is None:
            where = f"with --{sources.file_flag}" if file else where
            self.refuse_idle("data_dir", where=where)
        return found

    def find_table(self, sources: Sources) -> tuple[str, str | os.PathLike | None]:
        """As of `find`, with a `TableFile` in place of the path of a table."""
        source, path = self.find(sources)
        return source, self.table(path) if path and source in sources.tables else path

    def columns(self, *names: str) -> dict[str, Any]:
        """Returns what columns are called, as readers of tables take it."""
        return {key: getattr(self, key) for key in (f"{name}_column" for name in names)}

    def choose_users(self, data: DataT) -> DataT:
        """Returns the data of the users that options ask for, as `data.users.choose_users` does."""
        run: Any = getattr(self, "for_split", self)  # Any run has a seed.
        seed = getattr(run, "seed", 0)
        number, file = self.num_users, self.users_file
        return choose_users(
            data, num_users=number, users_file=file, seed=seed, encoding=self.encoding
        )


class TextOptions(TableOptions):
    """Where a table of clients' texts is."""

    text_file: str | None = option(
        None,
        "An own table of texts, CSV or JSON lines. --user_column, --text_column and others say "
        "what its columns are called.",
        in_help=True,
    )
    text_column: str = option("text", "Its column of texts.")
