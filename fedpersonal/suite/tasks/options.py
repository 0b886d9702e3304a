"""The options that all tasks share."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeVar

from fedpersonal.data.formats import QUOTING, UTF_8, TableFile
from fedpersonal.data.sources import Sources, find_source
from fedpersonal.errors import UserError
from fedpersonal.methods.fed_recon import FedReconOptions
from fedpersonal.methods.method import FinetuningOptions
from fedpersonal.optimizers import SERVER_OPTIMIZERS
from fedpersonal.options import Options, Value, option
from fedpersonal.runtime import RUNTIMES
from fedpersonal.suite.readers.users import DataT, choose_users
from fedpersonal.training.participation import ClientClock, Participation

_CLOCK = tuple(field.name for field in dataclasses.fields(ClientClock))


class PrivacyOptions(Options):
    """How clients are sampled, and how differential privacy bounds each client's influence."""

    client_sampling: str = option(
        "fixed",
        "fixed: sample --clients_per_round clients in each round. poisson: sample each client "
        "independently with the same probability.",
        choices=("fixed", "poisson"),
    )
    dp_noise_multiplier: float | None = option(
        None,
        "Noise on the sum of updates, as a multiple of the clipping bound; 0: clipping alone. "
        "[default: no differential privacy]",
        at_least=0,
    )
    dp_target_epsilon: float | None = option(
        None, "Epsilon of all rounds; sets the noise.", at_least=1e-3
    )
    dp_delta: float | None = option(
        None,
        "Delta: the probability that epsilon does not hold. [default: 1 / (training clients ^ "
        "1.1)]",
        at_least=1e-15,
        at_most=0.1,
    )
    dp_clipping: str = option(
        "adaptive",
        "adaptive: the clipping bound follows the norms of updates. fixed: it is constant.",
        choices=("adaptive", "fixed"),
    )
    dp_clip_norm: float = option(
        0.1, "The clipping bound; adaptive: its initial value.", at_least=1e-9
    )
    dp_target_quantile: float = option(
        0.5, "adaptive: share of updates within the bound.", at_least=0, at_most=1
    )
    dp_state_clip_norm: float | None = option(
        None,
        "The clipping bound of a client's change of the server's states, for methods with such "
        "states (scaffold).",
        at_least=1e-9,
    )
    dp_noise: str = option(
        "seeded",
        "The source of noise and client sampling. seeded: --seed, which is public. secret: a "
        "secret.",
        choices=("seeded", "secret"),
    )

    @property
    def is_private(self) -> bool:
        """Whether the run has differential privacy."""
        return self.dp_noise_multiplier is not None or self.dp_target_epsilon is not None

    def check(self) -> None:
        """Raises a `UserError` if options of privacy contradict each other."""
        super().check()
        if self.dp_noise_multiplier is not None and self.dp_target_epsilon is not None:
            raise UserError("--dp_target_epsilon sets the noise: give no --dp_noise_multiplier.")
        if not self.is_private:
            names = ("dp_delta", "dp_clipping", "dp_clip_norm", "dp_target_quantile", "dp_noise")
            where = "without --dp_noise_multiplier or --dp_target_epsilon"
            self.refuse_idle(*names, "dp_state_clip_norm", where=where)
        elif self.dp_clipping == "fixed":
            self.refuse_idle("dp_target_quantile", where="with --dp_clipping=fixed")


class ParticipationOptions(Options):
    """Dropout of sampled clients, and the simulated clock of their rounds."""

    dropout_rate: float = option(
        0.0, "Share of sampled clients that drop out before they train.", at_least=0, at_most=0.99
    )
    lost_update_rate: float = option(
        0.0, "Share of clients whose update is lost after training.", at_least=0, at_most=0.99
    )
    over_selection: float = option(
        0.0,
        "Share of clients sampled beyond --clients_per_round; a round uses the first that report.",
        at_least=0,
        at_most=100,
    )
    round_time_limit: float | None = option(
        None, "Simulated seconds after which clients are too late. [default: none]", above=0
    )
    min_examples: int = option(
        0, "Examples that a client needs to be sampled; 0: none.", at_least=0
    )
    lost_clients_keep: bool = option(
        False, "Clients whose update is lost or unused keep the local variables that they trained."
    )
    clock_overhead_seconds: float = option(
        1.0, "Simulated seconds of any client's round, besides examples.", at_least=0
    )
    clock_example_seconds: float = option(
        0.01, "Simulated seconds for an example on a client of median speed.", at_least=0
    )
    clock_speed_spread: float = option(
        0.5, "Standard deviation of the logarithm of clients' speed.", at_least=0, at_most=10
    )

    @property
    def participation(self) -> Participation | None:
        """The simulated participation; None if all clients take part and no clock is set."""
        values = {n: getattr(self, n) for n in ParticipationOptions.declarations()}
        clock = {n: values.pop(f"clock_{n}") for n in _CLOCK}
        participation = Participation(**values, clock=ClientClock(**clock))
        return None if participation == Participation() else participation


RunOptionsT = TypeVar("RunOptionsT", bound="RunOptions")


class RunOptions(FedReconOptions, FinetuningOptions, PrivacyOptions, ParticipationOptions):
    """The method, the rounds, their clients and server, and evaluation."""

    method: str = option("fed_recon", "The method to train with.", in_help=True)
    total_rounds: int = option(
        500, "Rounds of training.", at_least=1, may_differ=True, in_help=True
    )
    clients_per_round: int = option(100, "Clients sampled in each round.", at_least=1, in_help=True)
    client_batch_size: int = option(5, "Examples in a client's batch.", at_least=1, at_most=10**6)
    runtime: str = option(
        "local",
        "The runtime: this process, a Ray cluster, or TFF's program (which other users of the "
        "machine can reach).",
        choices=RUNTIMES,
        may_differ=True,
    )
    compile: bool = option(True, "local, ray: compile clients' work by XLA where it is faster.")
    ray_address: str | None = option(
        None, "ray: the cluster's host:port. [default: start a local Ray]", may_differ=True
    )
    shards: int | None = option(
        None,
        "Shards into which a cohort is divided. [default: one per processor]",
        at_least=1,
        at_most=10**4,
    )
    packing: str = option(
        "stacked",
        "stacked: clients of a shard take their steps at once. pooled: their examples form one "
        "batch.",
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
        "Stop after this number of validations in a row without improvement, by --best or the "
        "task's first metric. [default: never]",
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
        "Seed of the split into training, validation and test data. [default: --seed]",
        at_least=0,
        at_most=2**31 - 1,
    )
    server_optimizer: str | None = option(
        None,
        "The optimizer that applies the averaged update. [default: the method's]",
        choices=SERVER_OPTIMIZERS,
    )
    server_learning_rate: float | None = option(
        None, "The server's learning rate. [default: 1 with sgd, else 0.1]", above=0
    )
    server_epsilon: float = option(1e-3, "Epsilon of adam, yogi and adagrad.", at_least=0)
    server_initial_accumulator: float = option(
        0.0, "Initial value of yogi and adagrad.", at_least=0
    )
    decay_rounds: int = option(
        0,
        "Rounds until the learning rates of the server and of local variables reach 0; 0: constant "
        "rates.",
        at_least=0,
    )

    @property
    def for_split(self: RunOptionsT) -> RunOptionsT:
        """The options for splitting the data, with `split_seed` as their seed."""
        return self if self.split_seed is None else self.replace(seed=self.split_seed)

    @property
    def watches(self) -> bool:
        """Whether validation chooses the round to test or to stop at."""
        return self.best is not None or self.early_stopping is not None

    def check(self) -> None:
        """Raises a `UserError` if options of different kinds contradict each other."""
        super().check()
        if self.participation is not None:
            self.participation.check_sampling(self.client_sampling, is_private=self.is_private)
        if self.is_private and self.weighting != "uniform":
            raise UserError(
                "differential privacy needs equal weights of clients: give --weighting=uniform "
                f"with --dp_...; it is {self.weighting}."
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
        "The separator of values: comma, semicolon, tab, pipe, space, whitespace (any run of it), "
        "or the characters themselves, such as ::. [default: comma in .csv, tab in .tsv]",
    )
    header: tuple[str, ...] = option(
        (),
        "The columns' names, in the file's order, for a table whose first line is data; - for "
        "unused columns. [default: the first line]",
    )
    quoting: str = option(
        "auto",
        "none: quotes are text. double: quotes may enclose a value with separators, line ends and "
        "doubled quotes. auto: none if tabs, spaces or several characters separate values, else "
        "double, but a value that seems to hold other rows is refused.",
        choices=QUOTING,
    )
    encoding: str = option(
        UTF_8,
        "Encoding of the table and of --users_file, such as latin-1. A byte-order mark takes "
        "precedence over utf-8.",
    )

    def changed(self) -> dict[str, Value]:
        """Returns the options of the format that are not at their defaults."""
        declared = FormatOptions.declarations()
        return {n: getattr(self, n) for n in declared if getattr(self, n) != declared[n].default}

    def table(self, path: str) -> TableFile:
        """Returns a table file with this format."""
        return TableFile.from_path(path, **{name: getattr(self, name) for name in _FORMAT})

    def check(self) -> None:
        """Raises a `UserError` if no file can have this format."""
        super().check()
        self.table("any.csv")


_FORMAT = tuple(FormatOptions.declarations())


class TableOptions(FormatOptions):
    """Where a table of clients' examples is, and the names of its columns."""

    dataset: str = option("auto", "The data.", in_help=True)
    data_dir: str | None = option(None, "The folder with the data.", in_help=True)
    user_column: str = option("user", "The table's column of users.")
    time_column: str = option("time", "The table's column of times, if there is one.")
    num_users: int | None = option(
        None, "Use this number of users, sampled by --seed. [default: all]", at_least=1
    )
    users_file: str | None = option(
        None, "Use only the users that this file names, one per line. [default: all]"
    )

    def find(self, sources: Sources) -> tuple[str, str | None]:
        """Returns the data set, also for `auto`, and where it is, as `find_source` does.

        Raises:
            UserError: As `find_source`, or if options name a folder that is not read, or the
                format or the columns of a table without reading one.
        """
        file = getattr(self, sources.file_flag)
        source = find_source(sources, dataset=self.dataset, file=file, data_dir=self.data_dir)
        where = f"with the dataset {source[0]}"
        if source[0] not in sources.tables:
            idle = [name for name in _FORMAT if name != "encoding" or self.users_file is None]
            idle += [name for name in self.declarations() if name.endswith("_column")]
            self.refuse_idle(*idle, where=where, unless=f"a table by --{sources.file_flag}")
        if file or source[1] is None:
            where = f"with --{sources.file_flag}" if file else where
            self.refuse_idle("data_dir", where=where)
        return source

    def find_table(self, sources: Sources) -> tuple[str, str | os.PathLike | None]:
        """Returns the result of `find`, with a `TableFile` in place of the path of a table."""
        source, path = self.find(sources)
        return source, self.table(path) if path and source in sources.tables else path

    def columns(self, *names: str) -> dict[str, Any]:
        """Returns the columns' names as keyword arguments for readers of tables."""
        return {key: getattr(self, key) for key in (f"{name}_column" for name in names)}

    def choose_users(self, data: DataT) -> DataT:
        """Returns the data of the users that the options select, by `data.users.choose_users`."""
        run: Any = getattr(self, "for_split", self)  # The options of a run have a seed.
        seed = getattr(run, "seed", 0)
        number, file = self.num_users, self.users_file
        return choose_users(
            data, num_users=number, users_file=file, seed=seed, encoding=self.encoding
        )


class TextOptions(TableOptions):
    """Where a table of clients' texts is."""

    text_file: str | None = option(
        None,
        "Your table of texts, CSV or JSON lines. --user_column, --text_column and others name its "
        "columns.",
        in_help=True,
    )
    text_column: str = option("text", "The table's column of texts.")
