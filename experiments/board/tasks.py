"""The tasks of the leaderboard as data: one entry each, with a preset for each size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from experiments.option_flags import read_flagfile
from experiments.papers import fedperc_data, fedrecon_data, furl_data, recommendation
from experiments.papers.reproduction import PRESETS, Row, keep_order
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric, lower_is_better
from fedpersonal.methods.method import Method
from fedpersonal.options import Value
from fedpersonal.tasks.find import find_task, import_task
from fedpersonal.tasks.task import Task

QUICK, FULL = "quick", "full"
# What others are compared with.
BASELINE = "fed_avg_finetuning"
_STEPS = 10  # Of Per-FedAvg, before it predicts.
# Weights of terms that pull a model to another one.
_PULLS = ("pull", "proximal", "feddyn_alpha")
# The flags that say where data are.
DATA, MOVIELENS = "data_dir", "movielens_dir"


@dataclasses.dataclass(frozen=True)
class Size:
    """How a task is run in one size of the table.

    Attributes:
        preset: The file of its hyperparameters; empty for the task's defaults.
        values: Options in place of the preset's.
        data: The flag that says where its data are; empty of data that are installed or generated.
        server_preset: The file for methods whose server has all data; empty for the same one.
        server: Their options in place of that file's.
        note: What a reader has to know of it.
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
        name: As `--tasks` takes it.
        title: For people.
        task: The task's name, or its module, as of `find_task`.
        metric: The metric of test clients that is shown.
        compared: How clients' values make what intervals and ranks are of.
        is_seen: Whether test clients are those that train.
        sizes: By name.
        chosen_by: The metric of validation clients that chooses settings; empty for `metric`.
        digits: Digits after the point.
        own: Methods of this task alone that the table has, beside those of any model.
        first: Methods' options with which tuning begins, in place of the preset's: what their rows
            in the tables of the papers add to a preset.
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
    own: Sequence[str] = ()
    first: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)

    @property
    def library(self) -> Task:
        """The library's task, or an own one."""
        return find_task(self.task)

    @property
    def compared_name(self) -> str:
        """The metric that intervals and ranks are of."""
        return self.compared.column.removesuffix("_after")

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return bool(lower_is_better(self.metric))

    def values(self, size: str, method: type[Method], data: Mapping[str, str]) -> dict[str, Value]:
        """Returns the options of a method that a size settles.

        Args:
            size: The size.
            method: The method.
            data: The flags that say where data are, and what they say.
        """
        own, is_central = self.sizes[size], not method.is_federated
        preset = (is_central and own.server_preset) or own.preset
        file = PRESETS / f"{preset}.flags"
        values = read_flagfile(file, self.library.options) if preset else {}
        values.update({**own.values, **(own.server if is_central else {})})
        usual = method.server_optimizer
        rate = method.server_learning_rate
        # They are part of what a method is.
        if usual and (rate or values.get("server_optimizer") != usual):
            values.update(server_optimizer=usual, server_learning_rate=None)
        if own.data:
            values["data_dir"] = data[own.data]
        values["method"] = method.name
        if size == FULL:
            keep_order(self.library, values)
        return values

    def first_options(
        self, method: type[Method], values: Mapping[str, Value]
    ) -> Mapping[str, Value]:
        """Returns the options with which a method's tuning begins, in place of `values`.

        They are its own; or of one with the same rounds; or, where it shares as much, FedAvg's
        with fine-tuning, with FedAvg's own rates if its server averages as well. Of what no table
        has, steps ahead and pulls that suit a client's rate.
        """
        names = [method.name, method.trains_as] if method.is_federated else []
        if names and method.trains and not method.local_part:
            names.append(BASELINE)
        own = next((self.first[name] for name in names if name in self.first), {})
        if method.name in self.first:
            return own
        if names and method.server_optimizer == "sgd":  # Rates go with the server's optimizer.
            own = {**own, **self.first.get("fed_avg", {})}
        options = self.library.settle(self.library.options(**{**values, **own}))
        if getattr(options, "client_optimizer", "") != "sgd":
            return own
        rate, declared = options.client_learning_rate, method.options.declarations()
        ahead = {name: value for name, value in _ahead(rate).items() if name in declared}
        # A pull goes its weight times the rate of the way: usual weights are for rates up to .1.
        weaker = min(1.0, 0.1 / rate)
        pulls = {name: weaker * declared[name].default for name in _PULLS if name in declared}
        return {**ahead, **pulls, **own}


def _ahead(rate: float) -> dict[str, Value]:
    """Returns options of copies that look ahead, about as far as a step at a client's rate.

    pFedMe's steps of the copy come to most of one, and those of the model follow it. Per-FedAvg's
    come to one before it predicts, in as many as the tables give it on films and words.
    """
    return {
        "adaptation_learning_rate": rate / _STEPS,
        "adaptation_steps": _STEPS,
        "outer_learning_rate": rate,
        "inner_learning_rate": rate / 5,
        "envelope": 1 / rate,
    }


# What clients keep may be a model each, and is written to disk once, not every few rounds.
_PERIODS = ("total_rounds", "rounds_per_eval", "rounds_per_checkpoint")


def _rounds(number: int, **values: Value) -> dict[str, Value]:
    """Returns options of a training of so many rounds, validated and saved at its end."""
    return {**dict.fromkeys(_PERIODS, number), **values}


# What a size settles for all methods.
_OF_SIZE = {*_PERIODS, "method", "evaluate_on", "num_oov_buckets", "lora_matrices", "lora_rank"}


def _rows(rows: Iterable[Row], **of_size: Value) -> dict[str, Mapping[str, Value]]:
    """Returns methods' options as the tables of a paper have them, of each the first row's.

    Args:
        rows: The rows of such tables.
        **of_size: What those that are wanted have, such as whom they are tested on.
    """
    found: dict[str, Mapping[str, Value]] = {}
    for row in rows:
        if "method" in row.values and of_size.items() <= row.values.items():
            own = {name: value for name, value in row.values.items() if name not in _OF_SIZE}
            found.setdefault(str(row.values["method"]), own)
    return found


_RMSE = ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt)
_ACCURACY = ClientMetric("accuracy_after")
# A user's texts are one batch there, which cannot be split.
_SHARED: dict[str, Value] = {"support_query_split": "shared"}
_SEEN: dict[str, Value] = {"evaluate_on": "seen"}
# Passes of a server over all ratings; the rates are those of movielens_centralized.flags.
_SERVER = _rounds(12, client_learning_rate=1.0, l2=0.05)
_SERVER_RANKS = _rounds(
    24, client_optimizer="adam", client_learning_rate=0.003, local_steps=0, l2=0.003
)
# Some methods have a copy of the table of words for each client.
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
    "A new user's embedding is rebuilt by least squares for every row, also of methods that share "
    "all variables."
)
_RATINGS = {
    QUICK: Size("movielens_quick", _rounds(100), server=_SERVER, note=_REBUILT),
    FULL: Size("movielens_best", _rounds(500), MOVIELENS, server=_SERVER, note=_REBUILT),
}
# Some presets name the method.
_RATES: dict[str, Mapping[str, Value]] = {
    "local_only": {"finetuning_learning_rate": 0.02},
    "fed_avg": {"client_learning_rate": 0.2, "l2": 0.02, "max_update_norm": 20.0},
    **_rows(fedrecon_data.RATING_ROWS, evaluate_on="unseen"),
}
# That one's rates go with a server that averages; these train as it does, by another server.
_RATES.update(dict.fromkeys(("fed_yogi", "fed_adam", "embedding_finetuning"), _RATES[BASELINE]))
_RANKS = _rows(recommendation.ROWS)
# There they have the same rounds.
_RANKS.update(dict.fromkeys(("fed_per", "fed_sim"), _RANKS["furl"]))
_WORDS = _rows(fedrecon_data.WORD_ROWS, num_oov_buckets=500)
# Who rebuilds a body or a head cannot take the embedding's rate either.
_WORDS.update(dict.fromkeys(("fed_per", "fed_rep", "lg_fed_avg", "pfedrec"), fedrecon_data.COPY))
_UTTERANCES = _rows(fedperc_data.PART_ROWS)
# As tv_shows_paper_rivals.flags has it.
_UTTERANCES["split_learning"] = {
    **_rows(fedperc_data.TABLE_ROWS)["split_learning"],
    "finetuning_learning_rate": 0.0001,
    "proximal": 1.0,
}
# As many steps as clients fine-tune by: five passes over all that a user says take minutes.
_UTTERANCES["fed_recon"] = {"max_reconstruction_steps": 15}
ENTRIES = (
    Entry(
        *("ratings", "Ratings, new users", "movielens", "rmse", _RMSE, False, _RATINGS),
        first=_RATES,
    ),
    Entry(
        "ratings_seen",
        "Ratings, known users",
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
                note="Texts are generated, and rare words mean something else to each user: this "
                "is what FedRecon is made for.",
            ),
            FULL: Size(
                "stackoverflow_quick",
                _rounds(200, clients_per_round=10),
                DATA,
                note="Ditto and APFL keep nothing here: a copy that a training user kept would "
                "serve no new one.",
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
        first={name: own["reddit"] for name, own in furl_data.OWN.items() if "reddit" in own},
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
        first={name: own["films"] for name, own in furl_data.OWN.items() if "films" in own},
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
            # One pass a round, not ten: a server with all data is at rest after the first.
            FULL: Size("tv_shows_paper", _rounds(8), DATA, server={"local_steps": 0}),
        },
        digits=2,
        first=_UTTERANCES,
        own=(
            *("fedperc", "lora", "ffa_lora", "fedsa_lora", "rolora", "feddpa", "personal_lora"),
            *("shared_prefix", "split_learning", "meta_learning"),
        ),
    ),
    Entry(
        "digits",
        "Digits of unlike hands",
        "digits",
        "accuracy",
        _ACCURACY,
        True,
        {QUICK: Size("digits_quick"), FULL: Size("digits_quick")},
    ),
)


def own_entry(module: str) -> Entry:
    """Returns the entry of an own task, with its defaults in each size, by its module.

    Raises:
        UserError: If there is no such task, its data cannot be read, or nobody knows which way its
            first metric gets better.
    """
    task = import_task(module, [entry.name for entry in ENTRIES])
    metric, options = task.metrics[0], task.settle(task.options())
    if lower_is_better(metric) is None:
        raise UserError(
            f"--tasks={module}: it is not known whether less or more of {metric} is better."
        )
    is_seen = task.split(task.read(options), options).test.seen
    compared, size = ClientMetric.of(metric, f"{metric}_after"), Size("")
    return Entry(module, task.name, module, metric, compared, is_seen, {QUICK: size, FULL: size})
