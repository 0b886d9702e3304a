"""A round of clients that keep a vector of 64 floats each, by how many clients there are.

    python -m benchmarks.local_state_round

FURL trains a small dense model with 100 clients a round; every client of the population has a row
in the store beforehand. Prints a table: the median seconds of a round and of the commit after it,
those of opening the store, and its size beside that of the vectors alone. Files go to a temporary
folder of about 0.4 GB at a million clients.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_list("populations", ["1000", "100000", "1000000"], "How many clients there are.")
flags.DEFINE_integer("clients_per_round", 100, "Clients a round.", lower_bound=1)
flags.DEFINE_integer("rounds", 20, "Rounds timed, each.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)

VECTOR = 64
FEATURES = 16
EXAMPLES = 20
BATCH_SIZE = 10
LAYER = "own_vector"
ROWS_A_COMMIT = 100_000
OPENINGS = 5


def main() -> None:
    """Fills a store of each size and times rounds on it."""
    import collections
    import contextlib
    import os
    import statistics
    import tempfile
    import time

    import numpy as np
    import tabulate
    import tensorflow as tf
    import tensorflow_federated as tff

    from fedpersonal.algorithms.furl import furl
    from fedpersonal.data.client_dataset import ClientDataset
    from fedpersonal.local_state.rounds import Rounds
    from fedpersonal.local_state.store import LocalStateStore, SavedRun
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.process.execution import Execution
    from fedpersonal.process.process import build_process
    from fedpersonal.process.shards import Cohort, make_cohort
    from fedpersonal.simulation.store_checkpoints import StoreCheckpoints

    random = np.random.default_rng(FLAGS.seed)
    cohort_size = FLAGS.clients_per_round

    def build_model() -> tf.keras.Model:
        inputs = {
            "x": tf.keras.Input([FEATURES], name="x"),
            "user": tf.keras.Input([], dtype=tf.int32, name="user"),
        }
        vector = tf.keras.layers.Embedding(1, VECTOR, name=LAYER)(inputs["user"])
        hidden = tf.keras.layers.Dense(VECTOR, activation="relu")(
            tf.concat([inputs["x"], vector], axis=-1)
        )
        return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))

    model = PartitionedModel(build_model, local_layers=[LAYER], lookups={LAYER: "user"})
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    execution = Execution.packed(batch_size=BATCH_SIZE, clients_per_shard=cohort_size)
    process = build_process(
        model,
        furl(client_optimizer=sgd),
        server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
        execution=execution,
        seed=FLAGS.seed,
    )

    def fill(store: LocalStateStore, population: int) -> None:
        """Gives every client of the population a row."""
        variable = store.variables[0]
        for start in range(0, population, ROWS_A_COMMIT):
            names = [f"user{number}" for number in range(start, population)][:ROWS_A_COMMIT]
            vectors = random.normal(size=[len(names), *variable.shape]).astype(np.float32)
            rows = store.pack({variable.name: vectors})
            store.commit(dict(zip(names, rows)), SavedRun(0, b""))

    def draw_cohort(population: int) -> Cohort:
        """Draws clients and their examples."""
        count = cohort_size * EXAMPLES
        clients = random.choice(population, cohort_size, replace=False)
        dataset = ClientDataset(
            client_ids=np.array([f"user{number}" for number in clients], object),
            offsets=np.arange(cohort_size + 1) * EXAMPLES,
            features={
                "x": random.normal(size=[count, FEATURES]).astype(np.float32),
                "user": np.zeros(count, np.int32),
            },
            labels=random.normal(size=count).astype(np.float32),
        )
        return make_cohort(model, dataset, np.arange(cohort_size), execution=execution)

    @contextlib.contextmanager
    def timed(seconds: dict[str, list[float]], what: str):
        begin = time.perf_counter()
        yield
        seconds[what].append(time.perf_counter() - begin)

    def measure(path: str, population: int) -> list[str]:
        """Returns a row of the table."""
        seconds = collections.defaultdict(list)
        with contextlib.closing(LocalStateStore.open(path, model.local_variables)) as store:
            fill(store, population)
        for _ in range(OPENINGS):
            with timed(seconds, "open"):
                store = LocalStateStore.open(path, model.local_variables)
            store.close()
        with contextlib.closing(LocalStateStore.open(path, model.local_variables)) as store:
            with_store, saved_in = Rounds(process, store), StoreCheckpoints(store)
            state = with_store.initialize()
            for round_number in range(1, FLAGS.rounds + 2):
                cohort = draw_cohort(population)
                with timed(seconds, "round"):
                    state = with_store.next(state, cohort).state
                with timed(seconds, "commit"):
                    saved_in.save(round_number, {"state": state})
            if store.num_clients != population:
                raise AssertionError(f"{store.num_clients} clients instead of {population}.")
        del seconds["round"][0]  # It compiles.
        megabytes, data = os.path.getsize(path) / 1e6, population * VECTOR * 4 / 1e6
        return [
            f"{population:,}",
            *(f"{statistics.median(seconds[what]):.4f}" for what in ("round", "commit", "open")),
            f"{megabytes:.1f}",
            f"{data:.1f}",
            f"{megabytes / data:.2f}",
        ]

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for population in map(int, FLAGS.populations):
            path = os.path.join(folder, str(population))
            rows.append(measure(path, population))
            os.remove(path)
    headers = ["clients", "round s", "commit s", "open s", "store MB", "data MB", "ratio"]
    print(tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    launch.run(main)
