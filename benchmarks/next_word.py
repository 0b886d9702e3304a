"""One FedRecon round of the next word LSTM, compared with TFF.

    python -m benchmarks.next_word --sizes=paper

TFF runs `build_fed_recon` with Keras' LSTM and loss. Both take the same steps on the same
sentences, in turn. Prints a table, and one line of JSON with its numbers. Sentences are random
tokens that fill the whole length, so that no padding can be skipped.
"""

from __future__ import annotations

from absl import flags

from fedpersonal.suite.commands import launch

FLAGS = flags.FLAGS

flags.DEFINE_enum("sizes", "quick", ["paper", "quick"], "Sizes of model and vocabulary.")
flags.DEFINE_integer("rounds", 3, "Timed rounds of each implementation.", lower_bound=2)
flags.DEFINE_integer("clients", 20, "Clients per round.", lower_bound=1)
flags.DEFINE_integer("sentences", 96, "Sentences per client.", lower_bound=2)

SIZES = {
    "paper": {"embedding_dim": 96, "lstm_units": 670, "projection_dim": 96},
    "quick": {"embedding_dim": 64, "lstm_units": 128, "projection_dim": 64},
}
VOCABULARY = {"paper": 10_000, "quick": 1_000}
BATCH_SIZE = 16
BASE = "TFF's build_fed_recon"


def main() -> None:
    """Times both implementations and prints the results."""
    import json

    import numpy as np
    import tensorflow as tf

    from benchmarks.rivals import TffRounds
    from benchmarks.side_by_side import (
        Side,
        TrainerRounds,
        as_table,
        new_context,
        summarize,
        time_rounds,
    )
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.optimizers import build_server_optimizer
    from fedpersonal.suite.models.next_word import next_word_lstm
    from fedpersonal.suite.readers.vocabulary import NUM_SPECIAL, Vocabulary
    from fedpersonal.suite.tasks.next_word.task import TASK
    from fedpersonal.training.trainer import Trainer

    sizes, words = SIZES[FLAGS.sizes], VOCABULARY[FLAGS.sizes]
    options = TASK.with_defaults(
        TASK.options(
            method="fed_recon",
            vocab_size=words,
            client_batch_size=BATCH_SIZE,
            reconstruction_epochs=1,
            local_epochs=1,
            **sizes,
        )
    )
    assert options.num_oov_buckets and options.server_optimizer  # Set by defaults.
    assert options.server_learning_rate
    vocabulary = Vocabulary(
        np.array([f"word{i}" for i in range(words)], object), options.num_oov_buckets
    )
    tokens = np.random.default_rng(0).integers(
        NUM_SPECIAL,
        vocabulary.size,
        (FLAGS.clients * FLAGS.sentences, options.sequence_length + 1),
        np.int32,
    )
    token, is_in_vocabulary = tokens[:, :-1], tokens[:, :-1] < vocabulary.num_known
    train = ClientDataset(
        np.array([f"client{i}" for i in range(FLAGS.clients)], object),
        np.arange(0, len(tokens) + 1, FLAGS.sentences),
        {
            "token": token,
            "known_token": np.where(is_in_vocabulary, token, 0),
            "oov_token": np.where(is_in_vocabulary, 0, token - vocabulary.num_known),
        },
        tokens[:, 1:],
    )
    vocabulary_sizes = {
        "num_known": vocabulary.num_known,
        "num_oov_buckets": vocabulary.num_oov_buckets,
    }
    task_build = TASK.build(vocabulary_sizes, options)
    trainer = Trainer(
        task_build.model,
        task_build.algorithm,
        train,
        server_optimizer=build_server_optimizer(
            options.server_optimizer,
            learning_rate=options.server_learning_rate,
            epsilon=options.server_epsilon,
        ),
        clients_per_round=FLAGS.clients,
        batch_size=BATCH_SIZE,
        packing="pooled",
        shuffle="never",  # TFF uses the data's order.
    )
    build_keras_model = next_word_lstm(
        **vocabulary_sizes,
        **sizes,
        recurrent_layer=lambda units, name: tf.keras.layers.LSTM(
            units, return_sequences=True, name=name
        ),
    )
    sides: dict[str, Side] = {
        BASE: TffRounds(
            build_keras_model,
            ["oov_embedding"],
            train,
            lambda round_number: range(FLAGS.clients),
            options,
            lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ),
        "fedpersonal": TrainerRounds(trainer, new_context("compiled")),
    }
    seconds = time_rounds(sides, FLAGS.rounds)
    # Weights are not compared, since both start from different random weights.
    summary = summarize(sides, seconds, base=BASE, compare=False)
    print(as_table(summary, base=BASE))
    print(json.dumps({"sizes": FLAGS.sizes, "clients": FLAGS.clients, "sides": summary}))


if __name__ == "__main__":
    launch.run(main)
