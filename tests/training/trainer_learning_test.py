"""What is asked for in vain: rounds of nobody, updates left out, options without effect."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp

SGD = tf.keras.optimizers.SGD(0.1)


def clients(*without):
    """Twelve clients of four examples; labels of some of them are no numbers."""
    x = np.random.default_rng(0).normal(size=(48, 2)).astype(np.float32)
    labels = (x @ [1.0, -1.0]).astype(np.float32)
    for client in without:
        labels[4 * client] = np.nan
    return fp.ClientDataset([f"c{i}" for i in range(12)], np.arange(13) * 4, {"x": x}, labels)


def without_examples(*empty):
    """The twelve clients, of whom some have no example."""
    data, chosen = clients(), [i not in empty for i in range(12)]
    rows = np.repeat(chosen, 4)
    ends = np.concatenate([[0], np.cumsum(4 * np.array(chosen))])
    x, labels = data.features["x"][rows], data.labels[rows]
    return fp.ClientDataset(data.client_ids, ends, {"x": x}, labels)


def kept(dense_model, data, **options):
    return fp.Trainer(dense_model(), fp.furl(client_optimizer=SGD), data, **options)


def test_a_round_of_nobody_has_no_loss_and_is_not_the_best(dense_model, tmp_path):
    trainer = kept(dense_model, clients(), clients_per_round=1, client_sampling="poisson", seed=1)
    options = {"folder": tmp_path, "best": "train/loss", "progress": False}
    with trainer.fit(rounds=8, **options) as trained:
        rows = fp.RunFolder.read(tmp_path).metrics
        is_empty = rows["train/num_examples"] == 0
        assert 0 < is_empty.sum() < 8
        assert (rows["train/loss"].isna() == is_empty).all()
        assert trained.round_number == rows["round"][rows["train/loss"].idxmin()]
    trainer.fit(rounds=9, **options).close()


@pytest.mark.exhaustive(
    but=("losses0-round 2 (1.0000); in the last round, 3, it is 0.5000 worse: fit(best=",)
)
@pytest.mark.parametrize(
    ("losses", "line"),
    [
        ([3.0, 1.0, 1.5], "round 2 (1.0000); in the last round, 3, it is 0.5000 worse: fit(best="),
        ([3.0, 2.0, 1.0], "round 3 (1.0000), the last one"),
        ([3.0], ""),
    ],
)
def test_a_program_says_which_round_validated_best(dense_model, capfd, losses, line):
    trainer, values = kept(dense_model, clients()), iter(losses)
    validate = {"validate": lambda trained: {"loss": next(values)}, "rounds_per_eval": 1}
    trainer.fit(rounds=len(losses), **validate).close()
    said = [row for row in capfd.readouterr().err.splitlines() if "validation" in row]
    assert len(said) == bool(line)
    assert not line or f"validation loss was best in {line}" in said[0]


@pytest.mark.exhaustive(but=("updates",))
@pytest.mark.parametrize("rate", [1e12, 3e38], ids=["updates", "weights"])
def test_a_program_is_told_of_divergence_at_once_and_in_a_line(tmp_path, rate):
    layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1)]
    algorithm = fp.fed_avg(client_optimizer=tf.keras.optimizers.SGD(5.0))
    server = tf.keras.optimizers.SGD(rate)
    data, options = clients(), {"clients_per_round": 10, "server_optimizer": server}
    model = fp.PartitionedModel(tf.keras.Sequential(layers))
    trainer = fp.Trainer(model, algorithm, data, **options)
    with warnings.catch_warnings(), pytest.raises(fp.UserError, match="has diverged: "):
        warnings.simplefilter("error", RuntimeWarning)
        trainer.fit(
            rounds=30,
            folder=tmp_path,
            validate=lambda trained: trained.overall(data, support=data),
            rounds_per_eval=3,
            progress=False,
        )
    assert len(fp.RunFolder.read(tmp_path).metrics) < 10
    assert not (tmp_path / "model.json").exists()


@pytest.mark.exhaustive
def test_whose_updates_are_left_out_is_said_once(dense_model, capfd):
    options = {"clients_per_round": 12, "shards": 2}
    data = clients(1, 4, 7, 8)
    trainer = kept(dense_model, data, **options)
    trainer.fit(rounds=2, progress=False).close()
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(said) == 1
    assert "in round 1, 4 of the clients' updates are infinite or NaN" in said[0]
    first = [c for c in trainer.cohort(1).client_ids if c in ("c1", "c4", "c7", "c8")][:3]
    assert f"such as {', '.join(first)}: look" in said[0]
    private = fp.DifferentialPrivacy(0.0, noise="secret")  # Who was drawn is not told.
    algorithm = fp.furl(client_optimizer=SGD, weighting="uniform")
    trainer = fp.Trainer(dense_model(), algorithm, data, privacy=private, **options)
    trainer.fit(rounds=1, progress=False).close()
    assert "left out: look" in capfd.readouterr().err


@pytest.mark.exhaustive(but=("pooled",))
@pytest.mark.parametrize("packing", ["stacked", "pooled"])
def test_clients_without_examples_change_nothing(dense_model, packing):
    some, options = without_examples(10, 11), {"clients_per_round": 12, "packing": packing}
    algorithm = fp.furl(client_optimizer=SGD, weighting="uniform")
    weights = []
    for own in (some, some.subset(np.arange(10))):
        with fp.Trainer(dense_model(), algorithm, own, **options).fit(rounds=2) as trained:
            weights.append(trained.weights)
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], rtol=0, atol=1e-6)


def test_clients_without_examples_have_not_trained(dense_model):
    data = without_examples(3, 10)
    trainer = kept(dense_model, data, clients_per_round=12, shards=2)
    with trainer.fit(rounds=2, progress=False) as trained:
        known, _ = trained.kept_by(data.client_ids.tolist())
    attended = trainer.attended_rounds(2)
    for place, client in enumerate(data.client_ids):
        has_trained = place not in (3, 10)
        assert known[place] == has_trained
        assert attended[client] == ([1, 2] if has_trained else [])


def test_training_without_any_example_is_refused(dense_model, tmp_path):
    with pytest.raises(fp.UserError, match="none of the 12 clients in train has an example"):
        kept(dense_model, without_examples(*range(12)))
    few = kept(dense_model, without_examples(*range(1, 12)), clients_per_round=1, seed=1)
    drawn = [few.cohort(number).client_ids[0] for number in range(1, 20)]
    rounds = drawn.index("c0") if "c0" in drawn else len(drawn)
    assert rounds
    with pytest.raises(fp.UserError, match=f"in rounds 1 to {rounds}: no sampled client has"):
        few.fit(rounds=rounds, folder=tmp_path, progress=False)


@pytest.mark.exhaustive
def test_batches_are_no_larger_than_a_client(dense_model):
    data, weights, losses = clients(), [], []
    more = fp.ClientDataset(["a"], [0, 48], data.features, data.labels)
    for size in (4, 10**9):
        trainer = kept(dense_model, data, clients_per_round=5, batch_size=size)
        assert all(s.examples["mask"].shape[2] == 4 for s in trainer.cohort(1).shards)
        with trainer.fit(rounds=2, progress=False) as trained:
            weights.append(trained.weights)
            losses.append([trained.overall(one, support=one)["loss"] for one in (data, more)])
    for name, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][name])
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    # Who has more than anybody who trained still makes the batches that were asked for.
    assert losses[0][1] != pytest.approx(losses[1][1], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"clients_of_round": lambda n: None, "local_steps": 2},
            "local_steps requires randomly sampled",
        ),
        (
            {"clients_of_round": lambda n: None, "client_sampling": "poisson"},
            "client_sampling requires randomly sampled",
        ),
    ],
    ids=["steps", "sampling"],
)
def test_options_that_would_be_ignored_are_refused(dense_model, options, said):
    with pytest.raises(fp.UserError, match=said):
        kept(dense_model, clients(), **options)
