"""One FedRecon round of the paper's MovieLens preset, beside TFF's own `build_fed_recon`.

    python -m benchmarks.movielens_round --data_dir=path/to/ml-1m

Both train the same model from the same weights on the same cohorts, round after round in turn.
Prints one line of JSON: seconds a round (medians), their ratio, and the largest difference between
the global weights that result. Without --data_dir, ratings of MovieLens-1M's size are generated.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: generated ratings]")
flags.DEFINE_integer("rounds", 10, "Rounds timed, of TFF's and ours each.", lower_bound=3)
flags.DEFINE_integer("clients_per_round", 100, "Clients a round.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)


def main() -> None:
    """Times both and prints the JSON line."""
    import collections
    import json
    import statistics
    import time

    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    from benchmarks.rating_data import load, paper_options, paper_trainer
    from fedpersonal.local_state.rounds import Rounds
    from fedpersonal.models.matrix_factorization import matrix_factorization
    from fedpersonal.optimizers.named import build_server_optimizer
    from fedpersonal.process.datasets import client_datasets
    from fedpersonal.simulation.sampling import ClientSampler

    train, num_items, name = load(FLAGS.data_dir, FLAGS.seed)
    options = paper_options(clients_per_round=FLAGS.clients_per_round, seed=FLAGS.seed)
    # Local variables must start alike, and TFF would draw its own.
    initial = {"num_items": num_items, "user_initializer": tf.keras.initializers.Constant(0.1)}
    build_model = matrix_factorization(**initial)
    ours = paper_trainer(train, **initial, options=options)
    server_optimizer = build_server_optimizer(
        options.server_optimizer, learning_rate=options.server_learning_rate
    )
    sampler = ClientSampler(
        num_clients=train.num_clients, clients_per_round=FLAGS.clients_per_round, seed=FLAGS.seed
    )

    def reconstruction_model():
        keras_model = build_model()
        return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
            keras_model=keras_model,
            global_layers=[keras_model.get_layer("item_embedding")],
            local_layers=[keras_model.get_layer("user_embedding")],
            input_spec=collections.OrderedDict(
                x={"item": tf.TensorSpec([None], tf.int32)}, y=tf.TensorSpec([None], tf.float32)
            ),
        )

    theirs = tff.learning.algorithms.build_fed_recon(
        reconstruction_model,
        loss_fn=tf.keras.losses.MeanSquaredError,
        server_optimizer_fn=server_optimizer,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(options.client_learning_rate),
        reconstruction_optimizer_fn=tff.learning.optimizers.build_sgdm(
            options.reconstruction_learning_rate
        ),
        dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(
            recon_epochs=options.reconstruction_epochs,
            recon_steps_max=options.max_reconstruction_steps,
            post_recon_epochs=options.local_epochs,
            post_recon_steps_max=options.max_local_steps,
            split_dataset=True,
        ),
    )

    our_rounds = Rounds(ours.process)
    our_state, their_state = our_rounds.initialize(), theirs.initialize()
    start = our_state.global_model_weights.trainable["item_embedding/embeddings"]
    their_state = theirs.set_model_weights(
        their_state, tff.learning.models.ModelWeights(trainable=[start], non_trainable=[])
    )
    seconds = {"ours": [], "theirs": []}
    for round_number in range(FLAGS.rounds + 1):
        cohort = ours.cohort(round_number)
        datasets = client_datasets(
            ours.model, train, sampler.sample(round_number), batch_size=options.client_batch_size
        )
        begin = time.perf_counter()
        our_state = our_rounds.next(our_state, cohort).state
        middle = time.perf_counter()
        their_state = theirs.next(their_state, datasets).state
        end = time.perf_counter()
        if round_number:  # The first one compiles.
            seconds["ours"].append(middle - begin)
            seconds["theirs"].append(end - middle)
    difference = np.abs(
        our_state.global_model_weights.trainable["item_embedding/embeddings"]
        - theirs.get_model_weights(their_state).trainable[0]
    ).max()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        json.dumps(
            {
                "data": name,
                "clients": FLAGS.clients_per_round,
                "rounds": FLAGS.rounds,
                "fedpersonal_seconds": round(medians["ours"], 5),
                "tff_seconds": round(medians["theirs"], 5),
                "ratio": round(medians["theirs"] / medians["ours"], 1),
                "largest_weight_difference": float(difference),
            }
        )
    )


if __name__ == "__main__":
    launch.run(main)
