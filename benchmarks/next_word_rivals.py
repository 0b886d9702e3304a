"""The two sides of the next word benchmark: fedpersonal's packed execution and TFF's own."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithms import fed_recon
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.parts import is_in_part
from fedpersonal.data.splits import split_support_query
from fedpersonal.data.texts.corpus_files import read_text
from fedpersonal.data.texts.next_word import next_word_examples
from fedpersonal.data.texts.vocabulary import NUM_SPECIAL, Vocabulary, build_vocabulary
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.local_state.rounds import Rounds
from fedpersonal.models.next_word_lstm import next_word_lstm
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.process.datasets import client_datasets
from fedpersonal.tasks.next_word.task import TASK, NextWordRun
from fedpersonal.trainer import Trainer

_LOCAL_LAYER = "oov_embedding"


def load_sentences(
    options: NextWordRun, *, text_file: str | None, clients: int, sentences: int
) -> tuple[ClientDataset, Vocabulary, str]:
    """Returns `clients` clients with at most `sentences` each, their vocabulary, and a name."""
    assert options.num_oov_buckets is not None  # Settled.
    if text_file:
        corpus = read_text(text_file, min_sentences=sentences)
        vocabulary = build_vocabulary(
            corpus,
            np.arange(corpus.num_clients),
            vocab_size=options.vocab_size,
            num_oov_buckets=options.num_oov_buckets,
        )
        corpus = corpus.subset(np.arange(min(clients, corpus.num_clients)))
        examples = next_word_examples(corpus, vocabulary, sequence_length=options.sequence_length)
        return examples.head(sentences), vocabulary, corpus.name
    words = np.array([f"word{i}" for i in range(options.vocab_size)], object)
    vocabulary = Vocabulary(words, options.num_oov_buckets)
    tokens = np.random.default_rng(0).integers(
        NUM_SPECIAL, vocabulary.size, (clients * sentences, options.sequence_length + 1)
    )
    token, known = tokens[:, :-1].astype(np.int32), tokens[:, :-1] < vocabulary.num_known
    features = {
        "token": token,
        "known_token": np.where(known, token, 0),
        "oov_token": np.where(known, 0, token - vocabulary.num_known),
    }
    names = np.array([f"client{i}" for i in range(clients)], object)
    offsets = np.arange(0, len(tokens) + 1, sentences)
    dataset = ClientDataset(names, offsets, features, tokens[:, 1:].astype(np.int32))
    return dataset, vocabulary, "random sentences without padding"


def timed(work: Callable[[], Any]) -> float:
    """Returns the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def matrix_product_rate(size: int = 2048) -> float:
    """Returns the floating point operations a second of a plain square matrix product."""
    matrix = tf.random.normal([size, size])
    multiply = tf.function(lambda: tf.matmul(matrix, matrix))
    return 2 * size**3 / min(timed(multiply) for _ in range(8))


def arithmetic(
    options: NextWordRun, dataset: ClientDataset, vocabulary: Vocabulary
) -> dict[str, float]:
    """Counts the operations of the matrix products that a round and an evaluation need.

    A gradient of the embedding takes twice what the prediction takes, one of all weights thrice.
    """
    units, size, width = options.lstm_units, options.embedding_dim, options.projection_dim
    one_token = 2 * ((size + units) * 4 * units + units * width + width * vocabulary.size)
    batches = dataset.example_positions // options.client_batch_size
    in_query = is_in_part("query", batches, batches)
    tokens = (dataset.labels != 0).sum(1)
    support, query = float(tokens[~in_query].sum()), float(tokens[in_query].sum())
    return {
        "training": one_token * (2 * support + 3 * query),
        "evaluation": one_token * (2 * support + query),
    }


class Ours:
    """Packed execution, pooled."""

    def __init__(self, options: NextWordRun, dataset: ClientDataset, vocabulary: Vocabulary):
        """Builds training and evaluation, and packs the clients."""
        built = TASK.build(_sizes(vocabulary), options)
        model, algorithm = built.model, built.algorithm
        trainer = Trainer(
            model,
            algorithm,
            dataset,
            server_optimizer=_server_optimizer(options),
            clients_per_round=dataset.num_clients,
            batch_size=options.client_batch_size,
            packing="pooled",
        )
        # As TFF's own function splits.
        support, query = split_support_query(dataset, batch_size=options.client_batch_size)
        self._evaluate = build_evaluation(
            model,
            fed_recon.rebuilding(options),
            support,
            query,
            batch_size=options.client_batch_size,
            packing="pooled",
            with_before=False,  # Nor does TFF's.
        )
        self._rounds, self._cohort = Rounds(trainer.process), trainer.cohort(0)
        self._state = self._rounds.initialize()

    def training(self) -> None:
        """Runs a round."""
        self._state = self._rounds.next(self._state, self._cohort).state

    def evaluation(self) -> None:
        """Evaluates all clients."""
        self._evaluate(self._state.global_model_weights.trainable)


class Tff:
    """`build_fed_recon` and `build_fed_recon_eval`."""

    def __init__(self, options: NextWordRun, dataset: ClientDataset, vocabulary: Vocabulary):
        """Builds both and the clients' data sets."""
        sizes = {k: getattr(options, k) for k in ("embedding_dim", "lstm_units", "projection_dim")}
        build_keras_model = next_word_lstm(
            num_known=vocabulary.num_known,
            num_oov_buckets=vocabulary.num_oov_buckets,
            recurrent_layer=lambda units, name: tf.keras.layers.LSTM(
                units, return_sequences=True, name=name
            ),
            **sizes,
        )
        model = TASK.build(_sizes(vocabulary), options).model
        spec = collections.OrderedDict(
            x=collections.OrderedDict(sorted(model.input_spec.items())), y=model.label_spec
        )

        def model_fn():
            keras_model = build_keras_model()
            layers = [layer for layer in keras_model.layers if layer.variables]
            return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
                keras_model=keras_model,
                global_layers=[layer for layer in layers if layer.name != _LOCAL_LAYER],
                local_layers=[layer for layer in layers if layer.name == _LOCAL_LAYER],
                input_spec=spec,
            )

        sgd = tff.learning.optimizers.build_sgdm
        common = {
            "loss_fn": lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics_fn": lambda: [tf.keras.metrics.SparseCategoricalAccuracy()],
            "reconstruction_optimizer_fn": sgd(vars(options)["reconstruction_learning_rate"]),
            "dataset_split_fn": tff.learning.models.ReconstructionModel.build_dataset_split_fn(
                recon_epochs=options.reconstruction_epochs,
                recon_steps_max=options.max_reconstruction_steps,
                post_recon_epochs=options.local_epochs,
                post_recon_steps_max=options.max_local_steps,
                split_dataset=True,
            ),
        }
        self._process = tff.learning.algorithms.build_fed_recon(
            model_fn,
            server_optimizer_fn=_server_optimizer(options),
            client_optimizer_fn=sgd(vars(options)["client_learning_rate"]),
            **common,
        )
        self._evaluation = tff.learning.algorithms.build_fed_recon_eval(model_fn, **common)
        self._state = self._process.initialize()
        self._evaluation_state = self._evaluation.initialize()
        self._datasets = client_datasets(
            model,
            dataset,
            np.arange(dataset.num_clients),
            batch_size=options.client_batch_size,
        )

    def training(self) -> None:
        """Runs a round."""
        self._state = self._process.next(self._state, self._datasets).state

    def evaluation(self) -> None:
        """Evaluates all clients."""
        state = self._evaluation.set_model_weights(
            self._evaluation_state, self._process.get_model_weights(self._state)
        )
        self._evaluation.next(state, self._datasets)


def _sizes(vocabulary: Vocabulary) -> dict[str, int]:
    return {"num_known": vocabulary.num_known, "num_oov_buckets": vocabulary.num_oov_buckets}


def _server_optimizer(options: NextWordRun) -> tff.learning.optimizers.Optimizer:
    assert options.server_optimizer and options.server_learning_rate  # Settled.
    return build_server_optimizer(
        options.server_optimizer,
        learning_rate=options.server_learning_rate,
        epsilon=options.server_epsilon,
    )
