"""One FedRecon round of the paper's MovieLens preset, compared with other implementations.

    python -m benchmarks.movielens_round --data_dir=path/to/ml-1m

The implementations: TFF's `build_fed_recon`; fedpersonal in this process, with and without XLA; the
same round by hand in JAX, `jit(vmap(scan))`, and in Numba; a NumPy loop over clients; and, with
--library, other libraries, each in a separate process and environment (`make rivals`).
Implementations that are not installed are skipped with a message. All train the same model from the
same weights on the same cohorts, ten rounds in turn. Prints a table, and one line of JSON with its
numbers: medians of time and of processor time, and the largest difference between the resulting
global weights and TFF's. Without --data_dir, ratings of MovieLens-1M's size are generated.
"""

from __future__ import annotations

import importlib.util
import pathlib

from absl import flags

from fedpersonal.suite.commands import launch

# Each is benchmarks/libraries/on_NAME.py.
LIBRARIES = {
    "flower": "Flower: its simulation on Ray, clients in NumPy",
    "fedjax": "FedJAX: `for_each_client`, jitted steps",
    "pfl": "pfl-research: its simulated backend, clients in NumPy",
}

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: generated ratings]")
flags.DEFINE_integer("rounds", 10, "Timed rounds of each implementation.", lower_bound=3)
flags.DEFINE_integer("clients_per_round", 100, "Clients per round.", lower_bound=1)
flags.DEFINE_integer("shards", None, "Shards of a cohort. [default: one per processor]")
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)
flags.DEFINE_multi_enum("library", [], [*LIBRARIES], "A library to time, too; may be repeated.")
flags.DEFINE_string("page", None, "A page whose table of one round is updated.")

BASE, LIMIT = "TFF's `build_fed_recon`", "Numba by hand: loops, one thread"
ENVIRONMENTS = pathlib.Path(__file__).parents[1] / ".venv" / "rivals"
# Sizes of generated ratings, equal to MovieLens-1M's.
USERS, ITEMS = 6040, 3706


def main() -> None:
    """Times all implementations and prints the table and the JSON line."""
    import json

    import tensorflow as tf

    from benchmarks.by_numpy import USER_START, Steps, cut_batches
    from benchmarks.child import Child
    from benchmarks.rivals import JaxRounds, NumbaRounds, NumpyRounds, TffRounds, pad_cohort
    from benchmarks.side_by_side import (
        Side,
        TrainerRounds,
        as_table,
        new_context,
        summarize,
        time_rounds,
        write_table,
    )
    from fedpersonal.methods import fed_recon
    from fedpersonal.methods.method import Layers
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.optimizers import build_server_optimizer
    from fedpersonal.suite.models.factorization import matrix_factorization
    from fedpersonal.suite.readers.generated.ratings import generate_ratings
    from fedpersonal.suite.readers.movielens import load_movielens_1m
    from fedpersonal.suite.tasks.ratings.task import TASK
    from fedpersonal.training.clients import ClientSampler
    from fedpersonal.training.trainer import Trainer

    if FLAGS.data_dir:
        ratings = load_movielens_1m(FLAGS.data_dir)
    else:
        ratings = generate_ratings(
            num_users=USERS, num_items=ITEMS, seed=FLAGS.seed, min_ratings=20, max_ratings=300
        )
    train = ratings.to_client_dataset().head(300)
    number = FLAGS.clients_per_round
    options = TASK.with_defaults(
        TASK.options(method="fed_recon", clients_per_round=number, seed=FLAGS.seed)
    )
    assert options.server_optimizer and options.server_learning_rate  # Set by defaults.
    size = options.client_batch_size
    # All implementations must start from equal local variables, not from random ones.
    build_model = matrix_factorization(
        num_items=len(ratings.item_ids),
        user_initializer=tf.keras.initializers.Constant(USER_START),
    )
    trainer = Trainer(
        PartitionedModel(
            build_model,
            local_layers=("user_embedding",),
            lookups={"item_embedding": "item"},
        ),
        fed_recon.FedRecon.build(options, Layers()),
        train,
        server_optimizer=build_server_optimizer(
            options.server_optimizer, learning_rate=options.server_learning_rate
        ),
        clients_per_round=number,
        batch_size=size,
        shards=FLAGS.shards,
        shuffle="never",  # The other implementations use the data's order.
        seed=options.seed,
    )
    steps = Steps(
        batch_size=size,
        rebuilding_rate=vars(options)["reconstruction_learning_rate"],
        client_rate=vars(options)["client_learning_rate"],
        epochs=options.reconstruction_epochs,
        max_rebuilding=options.max_reconstruction_steps,
        max_updates=options.max_local_steps,
    )
    sample = ClientSampler(
        num_clients=train.num_clients, clients_per_round=number, seed=FLAGS.seed
    ).sample

    def padded(round_number):
        return pad_cohort(train, sample(round_number), batch_size=size)

    def unpadded(round_number):
        clients = map(train.client, sample(round_number))
        return [cut_batches(features["item"], y, batch_size=size) for features, y in clients]

    plain = TrainerRounds(trainer, new_context("plain"))
    (items,) = plain.weights()
    tff_rounds = TffRounds(
        build_model, ["user_embedding"], train, sample, options, tf.keras.losses.MeanSquaredError
    )
    tff_rounds.start_from([items])
    sides: dict[str, Side] = {
        BASE: tff_rounds,
        "fedpersonal, the default": TrainerRounds(trainer, new_context("compiled")),
        "fedpersonal, not compiled (`--nocompile`)": plain,
        "JAX by hand: `jit(vmap(scan))`": JaxRounds(padded, items, steps),
        "NumPy by hand: a loop over clients": NumpyRounds(unpadded, items, steps),
    }
    if importlib.util.find_spec("numba"):
        sides[LIMIT] = NumbaRounds(train, sample, items, steps=steps)
    else:
        print("Numba is skipped: `make benchmark` installs it.")
    cohorts = [sample(number) for number in range(FLAGS.rounds + 1)]
    for name in FLAGS.library:
        python = ENVIRONMENTS / name / "bin" / "python"
        if python.exists():
            command = [str(python), "-m", f"benchmarks.libraries.on_{name}"]
            sides[LIBRARIES[name]] = Child(
                command, train=train, cohorts=cohorts, items=items, steps=steps
            )
        else:
            print(f"{name} is skipped: `make rivals` installs it.")
    summary = summarize(sides, time_rounds(sides, FLAGS.rounds), base=BASE)
    print(as_table(summary, base=BASE))
    about = {"data": ratings.name, "clients": number, "rounds": FLAGS.rounds}
    print(json.dumps({**about, "sides": summary}))
    if FLAGS.page:
        write_table(pathlib.Path(FLAGS.page), summary, base=BASE, limit=LIMIT)


if __name__ == "__main__":
    launch.run(main)
