"""One FedRecon round of the paper's MovieLens preset, beside what else could run it.

    python -m benchmarks.movielens_round --data_dir=path/to/ml-1m

The sides: TFF's own `build_fed_recon`; fedpersonal in TFF's worker and in this process, plain and
compiled by XLA; the same round by hand in JAX, `jit(vmap(scan))`; and a NumPy loop over clients.
All train the same model from the same weights on the same cohorts, round after round in turn.
Prints a table, and one line of JSON with its numbers: medians, and the largest difference between
the global weights that result and TFF's. Without --data_dir, ratings of MovieLens-1M's size are
generated.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: generated ratings]")
flags.DEFINE_integer("rounds", 10, "Rounds timed, of each side.", lower_bound=3)
flags.DEFINE_integer("clients_per_round", 100, "Clients a round.", lower_bound=1)
flags.DEFINE_integer("shards", None, "As of the experiments. [default: one a processor]")
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)

BASE = "TFF's build_fed_recon"


def main() -> None:
    """Times all sides and prints the table and the JSON line."""
    import json

    import tensorflow as tf

    from benchmarks.rating_data import load, paper_options, paper_trainer
    from benchmarks.rivals.clients import USER_START, Steps, pad_cohort
    from benchmarks.rivals.jax_clients import JaxRounds
    from benchmarks.rivals.numpy_clients import NumpyRounds
    from benchmarks.rivals.tff_clients import TffRounds
    from benchmarks.side_by_side import Ours, Side, as_table, summarize, time_rounds
    from fedpersonal.models.matrix_factorization import matrix_factorization
    from fedpersonal.process.datasets import client_datasets
    from fedpersonal.simulation.sampling import ClientSampler

    train, num_items, name = load(FLAGS.data_dir, FLAGS.seed)
    options = paper_options(clients_per_round=FLAGS.clients_per_round, seed=FLAGS.seed)
    size = options.client_batch_size
    steps = Steps(
        rebuilding_rate=vars(options)["reconstruction_learning_rate"],
        client_rate=vars(options)["client_learning_rate"],
        epochs=options.reconstruction_epochs,
        max_rebuilding=options.max_reconstruction_steps,
        max_updates=options.max_local_steps,
    )
    # Local variables must start alike, and each side would draw its own.
    start = {"user_initializer": tf.keras.initializers.Constant(USER_START)}
    trainer = paper_trainer(
        train, num_items=num_items, options=options, shards=FLAGS.shards, **start
    )
    sampler = ClientSampler(
        num_clients=train.num_clients, clients_per_round=FLAGS.clients_per_round, seed=FLAGS.seed
    )

    def datasets(round_number):
        return client_datasets(trainer.model, train, sampler.sample(round_number), batch_size=size)

    def padded(round_number):
        return pad_cohort(train, sampler.sample(round_number), batch_size=size)

    def unpadded(round_number):
        clients = map(train.client, sampler.sample(round_number))
        return [
            [
                (features["item"][at : at + size], ratings[at : at + size])
                for at in range(0, len(ratings), size)
            ]
            for features, ratings in clients
        ]

    ours = {
        f"fedpersonal, {words}": Ours(trainer, runtime)
        for runtime, words in {
            "worker": "TFF's worker",
            "plain": "local, plain",
            "compiled": "local, compiled",
        }.items()
    }
    (items,) = ours["fedpersonal, local, plain"].weights()
    build_model = matrix_factorization(num_items=num_items, **start)
    sides: dict[str, Side] = {
        BASE: TffRounds(datasets, items, build_model, options),
        **ours,
        "JAX, jit(vmap(scan))": JaxRounds(padded, items, steps),
        "NumPy, a loop over clients": NumpyRounds(unpadded, items, steps),
    }
    summary = summarize(sides, time_rounds(sides, FLAGS.rounds), base=BASE)
    print(as_table(summary, base=BASE))
    about = {"data": name, "clients": FLAGS.clients_per_round, "rounds": FLAGS.rounds}
    print(json.dumps({**about, "sides": summary}))


if __name__ == "__main__":
    launch.run(main)
