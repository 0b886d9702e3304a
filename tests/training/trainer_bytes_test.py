"""What one client sends to an aggregator, in bytes counted by hand."""

from __future__ import annotations

import collections
import math

import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.federated.boundary import total_bytes
from fedpersonal.suite.models.factorization import matrix_factorization

tff = pytest.importorskip("tensorflow_federated")

from tensorflow_federated.python.aggregators import (  # noqa: E402
    discretization,
    modular_clipping,
)
from tensorflow_model_optimization.python.core.internal import (  # noqa: E402
    tensor_encoding as te,
)

NUM_ITEMS, DIM = 2000, 11
SIZE = NUM_ITEMS * DIM
SGD = tf.keras.optimizers.SGD(0.3)
# Sums of the loss and its weights, how many examples and dropped updates there are, and the
# client's weight, by which the server knows whether any update counts.
METRICS = 4 * (2 + 1 + 1 + 1)
# The table, and the round's number.
DOWN = 4 * SIZE + 4


def quantized(bits, size=SIZE):
    """An int32 holds 28 bits of what is packed; least and largest value travel along."""
    return 4 * math.ceil(size * bits / 28) + 2 * 4


def encoded(encoder):
    return tff.aggregators.UnweightedMeanFactory(
        tff.aggregators.EncodedSumFactory(lambda spec: te.encoders.as_gather_encoder(encoder, spec))
    )


def sparse():
    stages = te.stages
    split = stages.research.SplitBySmallValueEncodingStage()
    flat = stages.FlattenEncodingStage()
    keys = [split.ENCODED_VALUES_KEY, split.ENCODED_INDICES_KEY]
    composer = te.core.EncoderComposer(split)
    for key in keys:
        composer.add_child(stages.IdentityEncodingStage(), key)
    return encoded(composer.add_parent(flat, flat.ENCODED_VALUES_KEY).make())


# Each with what of the update it sends, and what besides.
AGGREGATORS = {
    "mean": (tff.aggregators.MeanFactory, 4 * SIZE, 4),
    # Of zeroing and of clipping, whether the norm is within the bound, and how many there are
    # to tell; of both again how many were beyond it; and the client's weight.
    "compression": (tff.learning.compression_aggregator, quantized(8), 4 * 4 + 2 * 4 + 4),
    "three_bits": (lambda: encoded(te.encoders.uniform_quantization(3)), quantized(3), 4),
    # Rotated values fill the next power of two.
    "hadamard_bits": (
        lambda: encoded(te.encoders.hadamard_quantization(8)),
        quantized(8, 2**15),
        4,
    ),
    "hadamard": (tff.aggregators.HadamardTransformFactory, 4 * 2**15, 0),
    "modular": (
        lambda: discretization.DiscretizationFactory(
            modular_clipping.ModularClippingSumFactory(-100, 100)
        ),
        4 * SIZE,
        0,
    ),
}


@pytest.fixture(name="ratings", scope="module")
def _ratings(draw_ratings):
    return draw_ratings((11, 3, 1, 16, 6), num_items=NUM_ITEMS, seed=3)


@pytest.fixture(name="model", scope="module")
def _model():
    return fp.PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=DIM),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"},
    )


def trainer_of(model, ratings, aggregator, **options):
    algorithm = fp.fed_recon(
        client_optimizer=SGD, reconstruction_optimizer=SGD, weighting="uniform"
    )
    asked = {"clients_per_round": 4, "batch_size": 3, "shards": 2, **options}
    return fp.Trainer(model, algorithm, ratings, aggregator=aggregator, **asked)


@pytest.mark.exhaustive(but=("mean", "three_bits"))
@pytest.mark.parametrize("name", AGGREGATORS)
def test_bytes_are_those_of_what_the_aggregator_sends(model, ratings, name):
    make, of_update, besides = AGGREGATORS[name]
    crossings = trainer_of(model, ratings, make()).crossings
    assert total_bytes(crossings, "aggregate") == of_update + besides + METRICS
    assert DOWN <= total_bytes(crossings, "broadcast") <= DOWN + 24


def test_the_run_counts_them(model, ratings, tmp_path):
    _, of_update, besides = AGGREGATORS["compression"]
    # The estimates of two norms, and the bounds that they give.
    down, up = DOWN + 4 * 4, of_update + besides + METRICS
    trainer = trainer_of(model, ratings, tff.learning.compression_aggregator())
    trainer.fit(rounds=2, folder=tmp_path, progress=False).close()
    run = fp.RunFolder.read(tmp_path)
    assert run.metrics["broadcast_bytes_per_client"].tolist() == [down] * 2
    assert run.metrics["aggregated_bytes_per_client"].tolist() == [up] * 2
    sent = [c["num_bytes"] for c in run.boundary if c["direction"] == "aggregate"]
    assert sum(sent) == up < 0.3 * down


@pytest.mark.exhaustive
def test_the_mean_has_no_columns(model, ratings, tmp_path):
    trainer_of(model, ratings, None).fit(rounds=1, folder=tmp_path, progress=False).close()
    assert not [name for name in fp.RunFolder.read(tmp_path).metrics if "bytes" in name]


def test_what_the_aggregator_measures_is_told(model, ratings, tmp_path):
    """Such as the bits of an entropy code: here 3 for each value that is not 0."""

    @tff.tensorflow.computation
    def bits(update):
        return 3.0 * tf.math.count_nonzero(update["item_embedding/embeddings"], dtype=tf.float32)

    def measure(update):
        return collections.OrderedDict(bits=tff.federated_mean(tff.federated_map(bits, update)))

    factory = tff.aggregators.UnweightedMeanFactory(
        tff.aggregators.add_measurements(
            tff.aggregators.SumFactory(), client_measurement_fn=measure
        )
    )
    trainer_of(model, ratings, factory).fit(rounds=1, folder=tmp_path, progress=False).close()
    metrics = fp.RunFolder.read(tmp_path).metrics
    (name,) = [name for name in metrics if name.endswith("/bits")]
    assert 0 < metrics[name][0] <= 3 * DIM * 16


@pytest.mark.exhaustive
def test_what_depends_on_values_is_not_guessed(model, ratings, tmp_path):
    trainer = trainer_of(model, ratings, sparse())
    assert total_bytes(trainer.crossings, "aggregate") is None
    trainer.fit(rounds=1, folder=tmp_path, progress=False).close()
    names = [name for name in fp.RunFolder.read(tmp_path).metrics if "bytes" in name]
    assert names == ["broadcast_bytes_per_client"]
