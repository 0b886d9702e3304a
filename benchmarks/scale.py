"""Rounds of very many clients, of very many items and of very large cohorts.

    python -m benchmarks.scale --cases=rebuilt,kept --cohorts=100,1000

Each measurement has a process of its own and prints a line of JSON: seconds until the data are
there, until the first round is done and of opening a store; milliseconds (medians) of making a
cohort, which training hides by making it a round ahead, of a round, and of committing what clients
keep; and peak memory.

The cases: `rebuilt` and `kept`, matrix factorization with vectors of 50 floats that clients rebuild
or keep, all of them in the store beforehand; `items`, with 100 clients a round; `evaluation`, of
unseen clients, who have 3 to 300 ratings: seconds until they are packed, until their results are
there, before and after their vectors are rebuilt, and until those are in the run folder and on its
page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags

from experiments import launch

if TYPE_CHECKING:
    import numpy as np

    from fedpersonal.data.ratings import Ratings
    from fedpersonal.model.variables import VariableSpec

FLAGS = flags.FLAGS

CASES = ("rebuilt", "kept", "items", "evaluation")
flags.DEFINE_list("cases", ["rebuilt", "kept"], "Of " + ", ".join(CASES) + ".")
flags.DEFINE_integer("clients", 1_000_000, "How many clients have ratings.", lower_bound=1)
flags.DEFINE_list("ratings", ["3", "20"], "Ratings of a client.")
flags.DEFINE_list("cohorts", ["100", "1000", "10000"], "Clients a round.")
flags.DEFINE_list("items", ["100000", "1000000"], "Of the case `items`.")
flags.DEFINE_list("evaluated", ["1000", "10000", "100000"], "Clients of the case `evaluation`.")
flags.DEFINE_integer("rounds", 5, "Rounds timed, each.", lower_bound=1)
flags.DEFINE_integer("shards", None, "As of the experiments. [default: one a processor]")

FEW_ITEMS = 3706
_ROWS_A_COMMIT = 100_000


def main() -> None:
    """Measures everything that is asked for."""
    import itertools

    from experiments.children import run_in_child

    wanted: list[dict[str, int]] = []
    for case in FLAGS.cases:
        if case == "evaluation":
            for clients in FLAGS.evaluated:
                run_in_child(evaluate, int(clients), FLAGS.shards)
            continue
        if case == "items":
            ratings = {"clients": 6040, "ratings": 100, "cohort": 100}
            wanted += [{"keeps": 0, "items": int(n), **ratings} for n in FLAGS.items]
            continue
        for each, cohort in itertools.product(FLAGS.ratings, FLAGS.cohorts):
            sizes = {"items": FEW_ITEMS, "ratings": int(each), "cohort": int(cohort)}
            wanted.append({"keeps": int(case == "kept"), "clients": FLAGS.clients, **sizes})
    for sizes in wanted:
        run_in_child(measure, sizes, FLAGS.rounds, FLAGS.shards)


def measure(sizes: Mapping[str, int], rounds: int, shards: int | None) -> None:
    """Trains for some rounds and prints the line.

    Args:
        sizes: Whether each client `keeps` its vector; how many `clients`, `ratings` of each and
            `items` there are; and clients in a `cohort`.
        rounds: Rounds timed, after the first.
        shards: Into how many a cohort is divided.
    """
    import contextlib
    import json
    import os
    import statistics
    import tempfile
    import time

    from fedpersonal import runtime
    from fedpersonal.runs.checkpoints import StoreCheckpoints
    from fedpersonal.runs.kept import Rounds
    from fedpersonal.runs.store import LocalStateStore
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.ratings.task import TASK

    seconds: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def timed(what):
        begin = time.perf_counter()
        yield
        seconds.setdefault(what, []).append(time.perf_counter() - begin)

    options = TASK.options(
        method="furl" if sizes["keeps"] else "fed_recon",
        clients_per_round=sizes["cohort"],
        # A client of few ratings must have batches for its query set.
        client_batch_size=min(5, sizes["ratings"] // 2),
    )
    source = _draw_ratings(sizes["clients"], sizes["ratings"], sizes["items"])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        with timed("build"):
            experiment = build_experiment(TASK, source, options, shards=shards)
            trainer = experiment.trainer
        store, sizes_on_disk = None, {}
        if sizes["keeps"]:
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
    medians = {
        f"{what}_ms": round(1000 * statistics.median(own), 1)
        for what, own in seconds.items()
        if own
    }
    report = {
        **sizes,
        "first_round_after_s": round(sum(first), 1),
        "build_s": round(first[0], 1),
        **medians,
        **sizes_on_disk,
        "peak_mb": round(runtime.peak_rss_mb()),
    }
    print(json.dumps(report), flush=True)


def evaluate(clients: int, shards: int | None) -> None:
    """Evaluates so many clients, writes their results, and prints the line."""
    import json
    import tempfile
    import time

    import numpy as np

    from fedpersonal import runtime
    from fedpersonal.data.splits import split_support_query
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.runs.tested import TestReport, report_run
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.ratings.task import TASK
    from fedpersonal.tasks.task import EvaluationSet

    options = TASK.options(method="fed_recon")
    # Many have few ratings, and few many.
    each = (3 * 100 ** np.random.default_rng(1).random(clients) ** 2).astype(int)
    source = _draw_ratings(clients, each, FEW_ITEMS)
    experiment = build_experiment(TASK, source, options, shards=shards)
    sets = split_support_query(source.to_client_dataset(), batch_size=options.client_batch_size)
    times = [time.perf_counter()]
    evaluation = experiment.evaluation(EvaluationSet(*sets))
    times.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as path, experiment.trainer.untrained() as trained:
        results = evaluation(trained)
        times.append(time.perf_counter())
        folder = RunFolder.open(path, {"method": options.method})
        told = {"dataset": source.name, "method": options.method, "rounds": 0}
        folder.write_boundary([])
        report_run(folder, TestReport(results), description=told, guesses={})
        times.append(time.perf_counter())
    seconds = [round(end - start, 1) for start, end in zip(times, times[1:])]
    report = {
        "clients": clients,
        "ratings": len(source.ratings),
        **dict(zip(("pack_s", "evaluate_s", "report_s"), seconds)),
        "peak_mb": round(runtime.peak_rss_mb()),
    }
    print(json.dumps(report), flush=True)


def _draw_ratings(users: int, each: int | np.ndarray, items: int) -> Ratings:
    """Returns random ratings, as quickly as may be; `each` is how many a user has."""
    import numpy as np

    from fedpersonal.data.ratings import Ratings

    random = np.random.default_rng(0)
    raters = np.repeat(np.arange(users, dtype=np.int32), each)
    return Ratings(
        name="random",
        users=raters,
        items=random.integers(0, items, len(raters), np.int32),
        ratings=random.integers(1, 6, len(raters)).astype(np.float32),
        times=None,
        user_ids=np.array([f"user{number}" for number in range(users)], object),
        item_ids=np.array([f"item{number}" for number in range(items)], object),
    )


def _fill(path: str, variables: Sequence[VariableSpec], names: np.ndarray) -> None:
    """Gives every client named a row in a store."""
    import contextlib

    import numpy as np

    from fedpersonal.runs.store import LocalStateStore, SavedRun

    random = np.random.default_rng(0)
    with contextlib.closing(LocalStateStore.open(path, variables)) as store:
        for start in range(0, len(names), _ROWS_A_COMMIT):
            some = names[start : start + _ROWS_A_COMMIT].tolist()
            values = {
                v.name: random.normal(size=[len(some), *v.shape]).astype(np.float32)
                for v in store.variables
            }
            store.commit(dict(zip(some, store.pack(values))), SavedRun(0, b""))


if __name__ == "__main__":
    launch.run(main)
