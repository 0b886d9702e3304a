"""The tasks of the leaderboard as data: one entry per task, with a preset for each size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric, lower_is_better
from fedpersonal.methods.method import Method
from fedpersonal.options import Value
from fedpersonal.suite import PRESETS
from fedpersonal.suite.commands.option_flags import read_flagfile
from fedpersonal.suite.papers import fedperc_data, fedrecon_data, furl_data, recommendation
from fedpersonal.suite.papers.reproduction import Row, keep_order
from fedpersonal.suite.tasks.find import find_task, import_task
from fedpersonal.suite.tasks.task import Task

QUICK, FULL = "quick", "full"
# The method with which others are compared.
REFERENCE = "fed_avg_finetuning"
_STEPS = 10  # Steps of Per-FedAvg before it predicts.
# Weights of proximal terms, which pull a model to another one.
_PULLS = ("pull", "proximal", "feddyn_alpha")
# The flags that name folders of data.
DATA, MOVIELENS = "data_dir", "movielens_dir"


@dataclasses.dataclass(frozen=True)
class Size:
    """The options of a task in one size of the table.

    Attributes:
        preset: The file of its hyperparameters; empty for the task's defaults.
        values: Options that replace the preset's.
        data: The flag that names the folder of its data; empty if they are installed or generated.
        server_preset: The file for centralised training; empty for `preset`.
        server: Options that replace those of `server_preset`.
        note: A note for readers of the table.
    """

    preset: str
    values: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    data: str = ""
    server_preset: str = ""
    server: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A task of the table.

    Attributes:
        name: The name in `--tasks`.
        title: The title in tables.
        task: The task's name, or its module, for `find_task`.
        metric: The metric of test clients that tables show.
        compared: The metric of intervals and ranks, with its definition by clients' values.
        is_seen: Whether test clients are seen clients.
        sizes: The options of the task by size.
        chosen_by: The metric of validation clients that chooses settings; empty for `metric`.
        digits: Digits after the decimal point.
        extra_methods: Methods of this task that the table includes besides those of any model.
        first: Methods' options with which tuning begins, which replace the preset's: the options of
            their rows in the tables of the papers.
    """

    name: str
    title: str
    task: str
    metric: str
    compared: ClientMetric
    is_seen: bool
    sizes: Mapping[str, Size]
    chosen_by: str = ""
    digits: int = 3
    extra_methods: Sequence[str] = ()
    first: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)

    @property
    def library(self) -> Task:
        """The task: one of the library's, or a user's."""
        return find_task(self.task)

    @property
    def compared_name(self) -> str:
        """The metric of intervals and ranks."""
        return self.compared.column.removesuffix("_after")

    @property
    def lower(self) -> bool:
        """Whether lower is better."""
        return bool(lower_is_better(self.metric))

    def values(self, size: str, method: type[Method], data: Mapping[str, str]) -> dict[str, Value]:
        """Returns the options of a method that a size sets.

        Args:
            size: The size.
            method: The method.
            data: The folders of data, by flag.
        """
        settings, is_central = self.sizes[size], not method.is_federated
        preset = (is_central and settings.server_preset) or settings.preset
        file = PRESETS / f"{preset}.flags"
        values = read_flagfile(file, self.library.options) if preset else {}
        values.update({**settings.values, **(settings.server if is_central else {})})
        usual = method.server_optimizer
        rate = method.server_learning_rate
        # The server's optimizer and rate are part of a method's definition.
        if usual and (rate or values.get("server_optimizer") != usual):
            values.update(server_optimizer=usual, server_learning_rate=None)
        if settings.data:
            values["data_dir"] = data[settings.data]
        values["method"] = method.name
        if size == FULL:
            keep_order(self.library, values)
        return values

    def first_options(
        self, method: type[Method], values: Mapping[str, Value]
    ) -> Mapping[str, Value]:
        """Returns the options with which a method's tuning begins, which replace `values`.

        They are the method's options in the tables of the papers, or those of a method with the
        same rounds. Methods that share all variables have those of FedAvg with fine-tuning, with
        the rates of FedAvg if their server averages. Without such a row, lookahead steps and
        proximal terms are set by the client's learning rate.
        """
        names = [method.name, method.same_rounds_as] if method.is_federated else []
        if names and method.trains and not method.local_part:
            names.append(REFERENCE)
        first = next((self.first[name] for name in names if name in self.first), {})
        if method.name in self.first:
            return first
        if names and method.server_optimizer == "sgd":  # Rates depend on the server's optimizer.
            first = {**first, **self.first.get("fed_avg", {})}
        options = self.library.with_defaults(self.library.options(**{**values, **first}))
        if getattr(options, "client_optimizer", "") != "sgd":
            return first
        rate, declared = options.client_learning_rate, method.options.declarations()
        ahead = {name: value for name, value in _ahead(rate).items() if name in declared}
        # A proximal step covers weight times rate of the distance, and default weights are for
        # rates up to 0.1.
        factor = min(1.0, 0.1 / rate)
        pulls = {name: factor * declared[name].default for name in _PULLS if name in declared}
        return {**ahead, **pulls, **first}


def _ahead(rate: float) -> dict[str, Value]:
    """Returns options of lookahead steps that add up to about one step at a client's rate.

    For pFedMe, the steps of the copy add up to most of one step, and those of the model follow it.
    For Per-FedAvg, the steps before prediction add up to one step; their number is that of the
    papers' tables on films and words.
    """
    return {
        "adaptation_learning_rate": rate / _STEPS,
        "adaptation_steps": _STEPS,
        "outer_learning_rate": rate,
        "inner_learning_rate": rate / 5,
        "envelope": 1 / rate,
    }


# Clients may keep a model each, so these are written to disk only once, not every few rounds.
_PERIODS = ("total_rounds", "rounds_per_eval", "rounds_per_checkpoint")


def _rounds(number: int, **values: Value) -> dict[str, Value]:
    """Returns options of a training with a number of rounds, validated and saved at its end."""
    return {**dict.fromkeys(_PERIODS, number), **values}


# Options that a size sets for all methods.
_SIZE_OPTIONS = {
    *_PERIODS,
    "method",
    "evaluate_on",
    "num_oov_buckets",
    "lora_matrices",
    "lora_rank",
}


def _rows(rows: Iterable[Row], **required: Value) -> dict[str, Mapping[str, Value]]:
    """Returns methods' options in the tables of a paper, from the first row of each method.

    Args:
        rows: The rows of such tables.
        **required: Values that a row must have, such as the kind of test clients.
    """
    by_method: dict[str, Mapping[str, Value]] = {}
    for row in rows:
        if "method" in row.values and required.items() <= row.values.items():
            values = {n: value for n, value in row.values.items() if n not in _SIZE_OPTIONS}
            by_method.setdefault(str(row.values["method"]), values)
    return by_method


def _furl_options(data: str) -> dict[str, Mapping[str, Value]]:
    """Returns each method's options on data of FURL's paper, for methods that have some."""
    of_methods = furl_data.METHOD_OPTIONS.items()
    return {name: values[data] for name, values in of_methods if data in values}


_RMSE = ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt)
_ACCURACY = ClientMetric("accuracy_after")
# A user's texts are one batch in this task, so support and query sets are shared.
_SHARED: dict[str, Value] = {"support_query_split": "shared"}
_SEEN: dict[str, Value] = {"evaluate_on": "seen"}
# Centralised passes over all ratings; the rates are those of movielens_centralized.flags.
_SERVER = _rounds(12, client_learning_rate=1.0, l2=0.05)
_SERVER_RANKS = _rounds(
    24, client_optimizer="adam", client_learning_rate=0.003, local_steps=0, l2=0.003
)
# Smaller tables of words, since methods with personal copies have one for each client.
_FEW_ROWS: dict[str, Value] = {"word_buckets": 4096}
_FEW_WORDS: dict[str, Value] = {**_FEW_ROWS, "word_dim": 8, "user_dim": 8}
_SMALL: dict[str, Value] = {
    "clients_per_round": 10,
    "embedding_dim": 16,
    "lstm_units": 32,
    "projection_dim": 16,
    "finetuning_learning_rate": 0.3,
    "finetuning_epochs": 2,
}
_REBUILT = (
    "Embeddings of unseen users are rebuilt by least squares for every row, also for methods that "
    "share all variables."
)
_RATINGS = {
    QUICK: Size("movielens_quick", _rounds(100), server=_SERVER, note=_REBUILT),
    FULL: Size("movielens_best", _rounds(500), MOVIELENS, server=_SERVER, note=_REBUILT),
}
# Options for ratings by method.
_RATES: dict[str, Mapping[str, Value]] = {
    "local_only": {"finetuning_learning_rate": 0.02},
    "fed_avg": {"client_learning_rate": 0.2, "l2": 0.02, "max_update_norm": 20.0},
    **_rows(fedrecon_data.RATING_ROWS, evaluate_on="unseen"),
}
# The rates of FedAvg are for a server that averages; these methods have the clients of FedAvg with
# another server optimizer.
_RATES.update(dict.fromkeys(("fed_yogi", "fed_adam", "embedding_finetuning"), _RATES[REFERENCE]))
_RANKS = _rows(recommendation.ROWS)
# On this task, their rounds equal those of FURL.
_RANKS.update(dict.fromkeys(("fed_per", "fed_sim"), _RANKS["furl"]))
_WORDS = _rows(fedrecon_data.WORD_ROWS, num_oov_buckets=500)
# The learning rate of the embedding is too high for methods that rebuild a body or a head.
_WORDS.update(dict.fromkeys(("fed_per", "fed_rep", "lg_fed_avg", "pfedrec"), fedrecon_data.COPY))
_UTTERANCES = _rows(fedperc_data.PART_ROWS)
# The values of tv_shows_paper_rivals.flags.
_UTTERANCES["split_learning"] = {
    **_rows(fedperc_data.TABLE_ROWS)["split_learning"],
    "finetuning_learning_rate": 0.0001,
    "proximal": 1.0,
}
# The number of fine-tuning steps: five passes over all texts of a user would take minutes.
_UTTERANCES["fed_recon"] = {"max_reconstruction_steps": 15}
ENTRIES = (
    Entry(
        *("ratings", "Ratings, unseen users", "movielens", "rmse", _RMSE, False, _RATINGS),
        first=_RATES,
    ),
    Entry(
        "ratings_seen",
        "Ratings, seen users",
        "movielens",
        "rmse",
        _RMSE,
        True,
        {
            n: dataclasses.replace(s, values={**s.values, **_SEEN}, note="")
            for n, s in _RATINGS.items()
        },
        first={**_RATES, **_rows(fedrecon_data.RATING_ROWS, **_SEEN)},
    ),
    Entry(
        "ranking",
        "Next item among all",
        "interactions",
        "ndcg@10_all",
        ClientMetric("ndcg@10_all", weights=None),
        True,
        {
            QUICK: Size("interactions_quick", _rounds(100), server=_SERVER_RANKS),
            FULL: Size(
                "interactions_quick",
                _rounds(200, clients_per_round=300, dataset="movielens_1m"),
                MOVIELENS,
                server=_SERVER_RANKS,
            ),
        },
        chosen_by="ndcg@10",
        digits=4,
        first=_RANKS,
    ),
    Entry(
        "next_word",
        "Next word",
        "stackoverflow",
        "accuracy_without_oov_or_eos",
        ClientMetric("accuracy_without_oov_or_eos_after", "num_known_words"),
        False,
        {
            QUICK: Size(
                "stackoverflow_generated",
                _rounds(80, **_SMALL),
                note="Texts are generated, and rare words mean something else to each user, a "
                "setting made for FedRecon.",
            ),
            FULL: Size(
                "stackoverflow_quick",
                _rounds(200, clients_per_round=10),
                DATA,
                note="Ditto and APFL keep no values here, since unseen users could not use the "
                "copies kept by seen users.",
            ),
        },
        first=_WORDS,
    ),
    Entry(
        "texts",
        "Labels of texts",
        "reddit",
        "accuracy",
        _ACCURACY,
        True,
        {
            QUICK: Size(
                "reddit_quick",
                _rounds(200, **_SHARED, **_FEW_WORDS),
                "",
                "reddit_quick_server",
                note="Texts are generated.",
            ),
            FULL: Size(
                "reddit_paper",
                _rounds(240, **_SHARED, **_FEW_ROWS),
                DATA,
                "reddit_paper_server",
            ),
        },
        first=_furl_options("reddit"),
    ),
    Entry(
        "films",
        "Films that users like",
        "reddit",
        "auc",
        _ACCURACY,
        True,
        {
            QUICK: Size(
                "films_quick",
                _rounds(100, decay_rounds=100, **_FEW_WORDS),
                "",
                "films_quick_server",
            ),
            FULL: Size(
                "films_paper",
                _rounds(500, decay_rounds=500, **_FEW_WORDS),
                MOVIELENS,
                "films_paper_server",
            ),
        },
        first=_furl_options("films"),
    ),
    Entry(
        "utterances",
        "Utterances",
        "tv_shows",
        "perplexity",
        ClientMetric("perplexity_after", "num_tokens", np.log, np.exp),
        True,
        {
            QUICK: Size(
                "tv_shows_quick", _rounds(3, local_steps=5), note="Dialogues are generated."
            ),
            # One pass per round, not ten: centralised training converges in the first.
            FULL: Size("tv_shows_paper", _rounds(8), DATA, server={"local_steps": 0}),
        },
        digits=2,
        first=_UTTERANCES,
        extra_methods=(
            *("fedperc", "lora", "ffa_lora", "fedsa_lora", "rolora", "feddpa", "personal_lora"),
            *("shared_prefix", "split_learning", "meta_learning"),
        ),
    ),
    Entry(
        "digits",
        "Digits, heterogeneous writers",
        "digits",
        "accuracy",
        _ACCURACY,
        True,
        {QUICK: Size("digits_quick"), FULL: Size("digits_quick")},
    ),
)


def user_entry(module: str) -> Entry:
    """Returns the entry of a user's task, with its defaults in each size, by its module.

    Raises:
        UserError: If there is no such task, its data cannot be read, or it is unknown whether lower
            or higher values of its first metric are better.
    """
    task = import_task(module, [entry.name for entry in ENTRIES])
    metric, options = task.metrics[0], task.with_defaults(task.options())
    if lower_is_better(metric) is None:
        raise UserError(
            f"--tasks={module}: it is unknown whether lower or higher {metric} is better."
        )
    is_seen = task.split(task.read(options), options).test.seen
    compared, size = ClientMetric.for_metric(metric, f"{metric}_after"), Size("")
    return Entry(module, task.name, module, metric, compared, is_seen, {QUICK: size, FULL: size})
