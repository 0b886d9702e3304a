"""Rounds with very large numbers of clients and items, and with very large cohorts.

    python -m benchmarks.scale --cases=rebuilt,kept --cohorts=100,1000

Each measurement runs in a separate process and prints a line of JSON: seconds until the data are
ready, until the first round has ended, and for opening a store; medians in milliseconds of making a
cohort (training hides this time by making it one round ahead), of a round, and of committing the
values that clients keep; and peak memory.

The cases: `rebuilt` and `kept`, matrix factorization with vectors of 50 floats that clients rebuild
or keep, with all kept vectors in the store beforehand; `items`, with 100 clients per round;
`evaluation`, of unseen clients with 3 to 300 ratings: seconds for packing them, for their results
before and after rebuilding their vectors, and for writing results to the run folder and its page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags

from fedpersonal.suite.commands import launch

if TYPE_CHECKING:
    import numpy as np

    from fedpersonal.model.variables import VariableSpec
    from fedpersonal.suite.readers.ratings import Ratings

FLAGS = flags.FLAGS

CASES = ("rebuilt", "kept", "items", "evaluation")
flags.DEFINE_list("cases", ["rebuilt", "kept"], "Cases, among " + ", ".join(CASES) + ".")
flags.DEFINE_integer("clients", 1_000_000, "Clients with ratings.", lower_bound=1)
flags.DEFINE_list("ratings", ["3", "20"], "Ratings per client.")
flags.DEFINE_list("cohorts", ["100", "1000", "10000"], "Clients per round.")
flags.DEFINE_list("items", ["100000", "1000000"], "Items of the case `items`.")
flags.DEFINE_list("evaluated", ["1000", "10000", "100000"], "Clients of the case `evaluation`.")
flags.DEFINE_integer("rounds", 5, "Timed rounds of each measurement.", lower_bound=1)
flags.DEFINE_integer("shards", None, "Shards of a cohort. [default: one per processor]")

FEW_ITEMS = 3706
_ROWS_A_COMMIT = 100_000


def main() -> None:
    """Runs all measurements that the flags select."""
    import itertools

    from fedpersonal.suite.commands.children import run_in_child

    measurements: list[dict[str, int]] = []
    for case in FLAGS.cases:
        if case == "evaluation":
            for clients in FLAGS.evaluated:
                run_in_child(evaluate, int(clients), FLAGS.shards)
            continue
        if case == "items":
            ratings = {"clients": 6040, "ratings": 100, "cohort": 100}
            measurements += [{"keeps": 0, "items": int(n), **ratings} for n in FLAGS.items]
            continue
        for each, cohort in itertools.product(FLAGS.ratings, FLAGS.cohorts):
            sizes = {"items": FEW_ITEMS, "ratings": int(each), "cohort": int(cohort)}
            measurements.append({"keeps": int(case == "kept"), "clients": FLAGS.clients, **sizes})
    for sizes in measurements:
        run_in_child(measure, sizes, FLAGS.rounds, FLAGS.shards)


def measure(sizes: Mapping[str, int], rounds: int, shards: int | None) -> None:
    """Trains for a number of rounds and prints the JSON line.

    Args:
        sizes: Whether each client `keeps` its vector; the numbers of `clients`, of `ratings` per
            client and of `items`; and the number of clients in a `cohort`.
        rounds: Timed rounds, after the first.
        shards: Number of shards of a cohort.
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
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.ratings.task import TASK

    seconds: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def timed(what):
        begin = time.perf_counter()
        yield
        seconds.setdefault(what, []).append(time.perf_counter() - begin)

    options = TASK.options(
        method="furl" if sizes["keeps"] else "fed_recon",
        clients_per_round=sizes["cohort"],
        # A client with few ratings must have batches for its query set.
        client_batch_size=min(5, sizes["ratings"] // 2),
    )
    source = _random_ratings(sizes["clients"], sizes["ratings"], sizes["items"])
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        with timed("build"):
            experiment = build_experiment(TASK, source, options, shards=shards)
            trainer = experiment.trainer
        store, sizes_on_disk = None, {}
        if sizes["keeps"]:
            path = os.path.join(folder, "store")
            _fill_store(path, trainer.model.local_variables, experiment.data.train.client_ids)
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
        f"{what}_ms": round(1000 * statistics.median(times), 1)
        for what, times in seconds.items()
        if times
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
    """Evaluates a number of clients, writes their results, and prints the JSON line."""
    import json
    import tempfile
    import time

    import numpy as np

    from fedpersonal import runtime
    from fedpersonal.data.splits import split_support_query
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.ratings.task import TASK
    from fedpersonal.suite.tasks.task import EvaluationSet
    from fedpersonal.training.tested import EvaluationReport, report_run

    options = TASK.options(method="fed_recon")
    # Most clients have few ratings.
    counts = (3 * 100 ** np.random.default_rng(1).random(clients) ** 2).astype(int)
    source = _random_ratings(clients, counts, FEW_ITEMS)
    experiment = build_experiment(TASK, source, options, shards=shards)
    sets = split_support_query(source.to_client_dataset(), batch_size=options.client_batch_size)
    times = [time.perf_counter()]
    evaluation = experiment.evaluation(EvaluationSet(*sets))
    times.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as path, experiment.trainer.untrained() as trained:
        results = evaluation(trained)
        times.append(time.perf_counter())
        folder = RunFolder.open(path, {"method": options.method})
        description = {"dataset": source.name, "method": options.method, "rounds": 0}
        folder.write_boundary([])
        report_run(folder, EvaluationReport(results), description=description, baselines={})
        times.append(time.perf_counter())
    seconds = [round(end - start, 1) for start, end in zip(times, times[1:])]
    report = {
        "clients": clients,
        "ratings": len(source.ratings),
        **dict(zip(("pack_s", "evaluate_s", "report_s"), seconds)),
        "peak_mb": round(runtime.peak_rss_mb()),
    }
    print(json.dumps(report), flush=True)


def _random_ratings(users: int, counts: int | np.ndarray, items: int) -> Ratings:
    """Generates random ratings quickly; `counts` is the number of ratings per user."""
    import numpy as np

    from fedpersonal.suite.readers.ratings import Ratings

    random = np.random.default_rng(0)
    raters = np.repeat(np.arange(users, dtype=np.int32), counts)
    return Ratings(
        name="random",
        users=raters,
        items=random.integers(0, items, len(raters), np.int32),
        ratings=random.integers(1, 6, len(raters)).astype(np.float32),
        times=None,
        user_ids=np.array([f"user{number}" for number in range(users)], object),
        item_ids=np.array([f"item{number}" for number in range(items)], object),
    )


def _fill_store(path: str, variables: Sequence[VariableSpec], names: np.ndarray) -> None:
    """Writes a row for each of these clients to a store."""
    import contextlib

    import numpy as np

    from fedpersonal.runs.store import LocalStateStore, SavedRun

    random = np.random.default_rng(0)
    with contextlib.closing(LocalStateStore.open(path, variables)) as store:
        for start in range(0, len(names), _ROWS_A_COMMIT):
            chunk = names[start : start + _ROWS_A_COMMIT].tolist()
            values = {
                v.name: random.normal(size=[len(chunk), *v.shape]).astype(np.float32)
                for v in store.variables
            }
            store.commit(dict(zip(chunk, store.pack(values))), SavedRun(0, b""))


if __name__ == "__main__":
    launch.run(main)
