"""One measurement of `benchmarks.scale`."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal import runtime
from fedpersonal.data.generated.documents import generate_subreddits
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.local_state.rounds import Rounds
from fedpersonal.local_state.store import LocalStateStore, SavedRun
from fedpersonal.model.variables import VariableSpec
from fedpersonal.simulation.checkpoints import StoreCheckpoints
from fedpersonal.tasks.documents.task import TASK as DOCUMENTS
from fedpersonal.tasks.experiment import build_experiment
from fedpersonal.tasks.ratings.task import TASK as RATINGS

_ROWS_A_COMMIT = 100_000
_TEXTS_A_USER = 10
_METHODS = {"rebuilt": "fed_recon", "kept": "furl", "items": "fed_recon", "texts": "furl"}


def measure(sizes: Mapping[str, Any], rounds: int, shards: int | None) -> None:
    """Trains for some rounds and prints the line.

    Args:
        sizes: The `case`, how many `clients`, `ratings` each, `items` or `texts` there are, and
            clients in a `cohort`.
        rounds: Rounds timed, after the first.
        shards: Into how many a cohort is divided.
    """
    seconds: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def timed(what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds.setdefault(what, []).append(time.perf_counter() - begin)

    method = _METHODS[sizes["case"]]
    work = {"algorithm": method, "clients_per_round": sizes["cohort"]}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if sizes["case"] == "texts":
            task: Any = DOCUMENTS
            options = task.options(**work, text_encoder="chars", client_batch_size=64)
            users, each = sizes["texts"] // _TEXTS_A_USER, (_TEXTS_A_USER, _TEXTS_A_USER)
            source: Any = generate_subreddits(num_users=users, texts_per_user=each, seed=0)
        else:
            # A client of few ratings must have batches for its query set.
            batch_size = min(5, sizes["ratings"] // 2)
            task, options = RATINGS, RATINGS.options(**work, client_batch_size=batch_size)
            source = _ratings(sizes["clients"], sizes["ratings"], sizes["items"])
        with timed("build"):
            experiment = build_experiment(task, source, options, shards=shards)
            trainer = experiment.trainer
        store, sizes_on_disk = None, {}
        if trainer.algorithm.keeps:
            path = os.path.join(folder, "store")
            _fill(path, trainer.model.local_variables, experiment.data.train.client_ids)
            with timed("open"):
                store = LocalStateStore.open(path, trainer.model.local_variables)
            stack.callback(store.close)
            sizes_on_disk = {"store_mb": round(os.path.getsize(path) / 1e6, 1)}
        run = Rounds(trainer.process, store)
        with timed("initialize"):
            state = run.initialize()
        for number in range(1, rounds + 2):
            with timed("cohort"):
                cohort = trainer.cohort(number)
            with timed("round"):
                state = run.next(state, cohort).state
            if store is not None:
                with timed("commit"):
                    StoreCheckpoints(store).save(number, {"state": state})
    first = [seconds[what].pop(0) for what in ("build", "initialize", "cohort", "round")]
    report = {
        **sizes,
        "first_round_after_s": round(sum(first), 1),
        "build_s": round(first[0], 1),
        **{
            f"{what}_ms": round(1000 * statistics.median(own), 1)
            for what, own in seconds.items()
            if own
        },
        **sizes_on_disk,
        "peak_mb": round(runtime.peak_rss_mb()),
    }
    print(json.dumps(report), flush=True)


def _ratings(users: int, each: int, items: int) -> Ratings:
    """Returns random ratings, as quickly as may be."""
    random = np.random.default_rng(0)
    return Ratings(
        name="random",
        users=np.repeat(np.arange(users, dtype=np.int32), each),
        items=random.integers(0, items, users * each, np.int32),
        ratings=random.integers(1, 6, users * each).astype(np.float32),
        times=None,
        user_ids=np.array([f"user{number}" for number in range(users)], object),
        item_ids=np.array([f"item{number}" for number in range(items)], object),
    )


def _fill(path: str, variables: Sequence[VariableSpec], names: np.ndarray) -> None:
    """Gives every client named a row in a store."""
    random = np.random.default_rng(0)
    with contextlib.closing(LocalStateStore.open(path, variables)) as store:
        for start in range(0, len(names), _ROWS_A_COMMIT):
            some = names[start : start + _ROWS_A_COMMIT].tolist()
            values = {
                v.name: random.normal(size=[len(some), *v.shape]).astype(np.float32)
                for v in store.variables
            }
            store.commit(dict(zip(some, store.pack(values))), SavedRun(0, b""))
