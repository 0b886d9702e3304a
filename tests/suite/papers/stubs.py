"""Jobs that have run nothing: each figure follows from the job's folder and the figure's name."""

from __future__ import annotations

import functools
import types
import zlib

import numpy as np
import pandas as pd

from fedpersonal.runs.store import LOCAL_STATE
from fedpersonal.suite.papers import jobs
from fedpersonal.suite.tasks.labels.data import (
    LABEL_OF_ALL,
    RATE_OF_ALL,
    SHRUNKEN_RATES,
    USERS_LABEL,
    USERS_RATE,
)

_METRICS = (
    *("loss", "rmse", "accuracy", "auc", "hr@10", "ndcg@10", "hr@10_of_11", "ndcg@10_of_11"),
    *("hr@10_all", "ndcg@10_all", "accuracy_without_oov_or_eos", "accuracy_among_known"),
    "share_hurt",
)
_GUESSES = (LABEL_OF_ALL, RATE_OF_ALL, SHRUNKEN_RATES, USERS_LABEL, USERS_RATE)
_KEEPING = ("fedperc", "furl", "fedsa_lora", "personal_bias", "split_learning")
WEIGHTS = {"word_embedding/global": [9, 4], "lstm/kernel": [4, 8], "word_embedding/oov": [5, 4]}


class Record:
    """What a job has left in its folder, invented."""

    def __init__(self, job, root):
        """Takes the job and the folder that its own is told from."""
        self.job, self.path = job, job.path
        self.place = job.path.relative_to(root).as_posix()

    def number(self, *names, scale=1.0):
        """A number in [0, scale), always the same."""
        return scale * zlib.crc32(f"{self.place}: {names}".encode()) / 2**32

    def count(self, *names, scale):
        """A whole number above 0."""
        return 1 + int(self.number(*names, scale=scale))

    @functools.cached_property
    def summary(self):
        """Every entry that a table reads, whatever the job's task."""
        options = self.job.options
        known = {
            **{f"{way}_bytes_per_client": self.count(way, scale=1e5) for way in _WAYS},
            **{name: self.number(name) for name in ("repeated", "repeated_long", *_SHARES)},
            "test": self._test("test"),
            "draws": {"rmse": {"mean": self.number("draws"), "sd": self.number("draw sd")}},
            "num_training_clients": 40,
            "frozen_bytes": 1234,
            "vocabulary_coverage": self.number("coverage"),
            "by_samples": {n: self._of_samples(n) for n in ("0", "1", "5", "15", "all")},
            "num_users": 7,
            "num_pairs": 18,
            "base": "tiny: 9 parameters",
            "pretrained_here": True,
            "clients": {"client": _USERS, "perplexity_after": self._losses("alone", 9)},
            "tokens": [5 + n for n in range(len(_USERS))],
            **{name: self._sums(name) for name in ("all", "new")},
            **{name: {p: self._time(name, p) for p in ("train", "test")} for name in _PASSES},
        }
        if self.job.task.name == "reddit":
            has_none = options.method == "centralized_personalized"
            known["unseen"] = None if has_none else self._test("unseen")
        if getattr(options, "dp_target_epsilon", None):
            noise = 0.5 + self.number("noise")
            told = {"num_clients": 400, "clients_per_round": 50, "rounds": 30}
            known["privacy"] = {**told, "noise_multiplier": noise}
        return known

    def _test(self, part):
        guesses = {
            g: {m: self.number(part, g, m) for m in ("accuracy", "auc", "rmse")} for g in _GUESSES
        }
        before = {name: self.number(part, "before", name) for name in _METRICS}
        test = {name: self.number(part, name) for name in _METRICS}
        return {**test, "before": before, "guesses": guesses}

    def _of_samples(self, samples):
        percentiles = {f"p{p}": self.number(samples, p, scale=90) for p in (5, 25, 50, 75, 95)}
        perplexity = 20 + self.number(samples, scale=90)
        return {"perplexity": perplexity, "percentiles": {"perplexity": percentiles}}

    def _losses(self, name, low=1.0):
        return [low + self.number(name, user) for user in _USERS]

    def _sums(self, name):
        return {"loss": self._losses(name, 20), "tokens": [6 + n for n in range(len(_USERS))]}

    def _time(self, name, what):
        return {"median": self.number(name, what, scale=90), "sd": self.number(name, what, "sd")}

    @property
    def metrics(self):
        """Validation in rounds 1 and 3."""
        names = [f"eval/{name}" for name in _METRICS]
        rows = [[n, *(self.number(n, m) if n != 2 else np.nan for m in names)] for n in (1, 2, 3)]
        return pd.DataFrame(rows, columns=["round", *names])

    @property
    def boundary(self):
        """Model variables both ways, and one metric."""
        names = [n for n in WEIGHTS if "oov" not in n or "recon" not in self.job.options.method]
        crossings = [(f"{way}.{n}", WEIGHTS[n]) for way in ("down", "up") for n in names]
        crossings = [] if self.job.options.method == "local_only" else crossings
        return [
            {"name": name, "shape": shape, "num_bytes": 4 * int(np.prod(shape))}
            for name, shape in [*crossings, ("up.loss", [2])]
        ]

    @property
    def per_client(self):
        """The test clients that the job's data have, with invented figures."""
        task, options = self.job.task, self.job.options
        key = (task.name, *(getattr(options, name, None) for name in _OF_CLIENTS))
        if key not in _KNOWN:
            _KNOWN[key] = _clients(task, options)
        table = _KNOWN[key].copy()
        for name in table.columns:
            if name.endswith(("_after", "_before")) or name.startswith(("hr@", "ndcg@")):
                known = table[name].notna()
                found = [self.number(name, client) for client in table["client"]]
                table[name] = np.where(known, np.array(found) + 0.1, np.nan)
        return table


# What of a job's options its test clients depend on, and those known.
_OF_CLIENTS = (
    *("seed", "dataset", "ratings_file", "interactions_file", "evaluate_on", "split_by"),
    *("max_ratings_per_user", "vocab_size", "num_oov_buckets", "support_query_split"),
)
_KNOWN: dict[tuple, pd.DataFrame] = {}
_USERS = [f"u{n}" for n in range(9)]
_WAYS = ("broadcast", "aggregated", "local")
_SHARES = ("beats_median", "beats_mean", "pairs_won")
_PASSES = ("fedperc", "fedperc_generated", "split_learning", "meta_learning")


def _clients(task, options):
    """Test clients of data, with the columns that tables compare."""
    if task.name == "tv_shows":
        tokens = [5 + n for n in range(len(_USERS))]
        return pd.DataFrame({"client": _USERS, "num_tokens": tokens, "perplexity_after": 1.0})
    data = task.split(task.read(options), options)
    query = data.test.query
    if task.name == "stackoverflow":
        from fedpersonal.suite.tasks.next_word.counts import score_choices

        table = pd.DataFrame(score_choices(data, "Most frequent word"))
        stage = "personal_word_accuracy"
        return table.assign(**{f"{stage}_before": 1.0, f"{stage}_after": 1.0})
    if task.name == "interactions":
        from fedpersonal.suite.tasks.ranking.data import rank_by_popularity

        return pd.DataFrame({"client": query.client_ids, **rank_by_popularity(data, data.test)})
    figures = dict.fromkeys(("rmse_after", "accuracy_after"), 1.0)
    table = {"client": query.client_ids, "num_examples": query.counts, **figures}
    return pd.DataFrame(table)[query.counts > 0]


def stub(patch, root, modules):
    """Makes jobs whose folders are in `root` be done, with invented figures."""

    def is_done(job):
        if getattr(job.options, "method", None) in _KEEPING:
            job.path.mkdir(parents=True, exist_ok=True)
            (job.path / LOCAL_STATE).touch()
        return True

    records = {}

    def record(job):
        return records.setdefault(job.path, Record(job, root))

    patch.setattr(jobs.Job, "is_done", is_done)
    patch.setattr(jobs.Job, "record", property(record))
    patch.setattr(jobs, "check_folders", lambda *_, **__: None)
    saved = types.SimpleNamespace(weights=dict.fromkeys(WEIGHTS))

    def embeddings(job):
        size = 40 if job.options.method == "furl" else 50
        number = records[job.path].number
        rows = [[number(user, d) for d in range(3)] for user in range(size)]
        train = job.task.split(job.task.read(job.options), job.options).train
        return pd.DataFrame(rows, index=train.client_ids[:size])

    for module in modules:
        if hasattr(module, "read_saved_model"):
            patch.setattr(module, "read_saved_model", lambda path: saved)
        if hasattr(module, "user_embeddings"):
            patch.setattr(module, "user_embeddings", embeddings)
