"""Training of clients that drop out: the clients that are told, and nothing else, decide."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.randomness import Purpose, generator

CLIENTS, WANTED, ROUNDS, SEED, BATCH_SIZE = 14, 4, 4, 3, 4
COUNTS = np.arange(CLIENTS) + 3
CLOCK = fp.ClientClock(overhead_seconds=0.2, example_seconds=0.1)
ASKED = {"dropout_rate": 0.2, "lost_update_rate": 0.2, "over_selection": 0.75, "clock": CLOCK}
ASKED = {**ASKED, "round_time_limit": 2.4, "min_examples": 5}
SGD = tf.keras.optimizers.SGD(0.2)
EPOCHS = 2


@pytest.fixture(name="data", scope="module")
def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(COUNTS.sum(), 2)).astype(np.float32)
    return fp.ClientDataset(
        client_ids=[f"c{i}" for i in range(CLIENTS)],
        offsets=np.append(0, np.cumsum(COUNTS)),
        features={"x": x},
        labels=(x @ [1.0, -2.0] + random.normal(0, 0.3, len(x))).astype(np.float32),
    )


@pytest.fixture(name="model", scope="module")
def _model(dense_model):
    return dense_model()


ALGORITHMS = {
    "kept": fp.furl(client_optimizer=SGD, local_epochs=EPOCHS),
    "rebuilt": fp.fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD),
}


def trainer_of(model, data, algorithm="kept", participation=None, **options):
    defaults = {"clients_per_round": WANTED, "batch_size": BATCH_SIZE, "seed": SEED}
    asked = {**defaults, "participation": participation, **options}
    return fp.Trainer(model, ALGORITHMS[algorithm], data, **asked)


def outcome(trainer, data, folder, rounds=ROUNDS):
    """The weights, what all clients keep, and the columns of participation."""
    with trainer.fit(rounds=rounds, folder=folder, progress=False) as trained:
        kept = trained.kept_by(data.client_ids) if trained.kept_by else (np.zeros(1), {})
        values = {
            **trained.weights,
            "known": kept[0],
            **{f"own {k}": v for k, v in kept[1].items()},
        }
    metrics = fp.RunFolder.read(folder).metrics
    names = [n for n in metrics if n.startswith("num_") or n == "simulated_seconds"]
    return values, metrics[names]


def assert_equal(found, expected, atol=0.0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


def reporting(number):
    """Who reports, and who has worked in vain, of FURL's clients: the documented rule by hand."""
    eligible = np.flatnonzero(COUNTS >= 5)
    random = generator(Purpose.ROUND_CLIENTS, SEED, round_number=number)
    drawn = eligible[random.choice(len(eligible), math.ceil(WANTED * 1.75), replace=False)]
    luck = random.random(len(drawn))
    begins = (luck >= 0.2) | (luck == luck.max())
    after = generator(Purpose.ROUND_END, SEED, round_number=number)
    lost = after.random(len(drawn)) < 0.2
    slowness = np.exp(0.5 * generator(Purpose.SPEEDS, SEED).standard_normal(CLIENTS))
    examples = EPOCHS * BATCH_SIZE * np.ceil(COUNTS[drawn] / BATCH_SIZE)
    seconds = 0.2 + 0.1 * examples * slowness[drawn]
    in_time = begins & ~lost & (seconds <= 2.4)
    order = [place for place in np.argsort(seconds) if in_time[place]][:WANTED]
    reports = np.isin(np.arange(len(drawn)), order)
    return drawn[reports], drawn[begins & ~reports]


def test_a_run_is_that_of_the_clients_that_report(model, data, tmp_path):
    asked = fp.Participation(**ASKED)
    simulated = trainer_of(model, data, participation=asked)
    told = trainer_of(model, data, clients_of_round=lambda n: (data, reporting(n)[0]))
    found, columns = outcome(simulated, data, tmp_path / "simulated")
    expected, none = outcome(told, data, tmp_path / "told")
    assert_equal(found, expected)
    assert not list(none)
    sizes = [len(reporting(n)[0]) for n in range(1, ROUNDS + 1)]
    assert columns["num_reported"].tolist() == sizes
    assert (columns[["num_dropped_before", "num_dropped_after", "num_late"]].sum() > 0).all()


@pytest.mark.exhaustive
def test_a_run_goes_on_to_the_same_bits(model, data, tmp_path):
    asked = fp.Participation(**ASKED, lost_clients_keep=True)
    straight = outcome(trainer_of(model, data, participation=asked), data, tmp_path / "straight")
    outcome(trainer_of(model, data, participation=asked), data, tmp_path / "stopped", rounds=2)
    found = outcome(trainer_of(model, data, participation=asked), data, tmp_path / "stopped")
    assert_equal(found[0], straight[0])
    assert found[1].equals(straight[1])
    other = fp.Participation(**{**ASKED, "round_time_limit": 2.5}, lost_clients_keep=True)
    with pytest.raises(fp.UserError, match="participation was .*2.4.* is now .*2.5"):
        outcome(trainer_of(model, data, participation=other), data, tmp_path / "stopped")


@pytest.mark.exhaustive(but=("kept-2",))
@pytest.mark.parametrize("local_steps", [None, 2])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_clients_a_shard_are_one_client_a_shard(model, data, tmp_path, algorithm, local_steps):
    asked = fp.Participation(**ASKED, lost_clients_keep=algorithm == "kept")
    results = [
        outcome(
            trainer_of(
                model,
                data,
                algorithm,
                asked,
                local_steps=local_steps,
                shards=shards,
            ),
            data,
            tmp_path / str(shards),
        )
        for shards in (2, WANTED)
    ]
    assert_equal(*(values for values, _ in results), atol=1e-6)
    assert results[0][1].equals(results[1][1])


def test_lost_clients_keep_what_they_have_trained_where_asked(model, data, tmp_path):
    reported, lost = reporting(1)
    assert len(lost) and len(reported)
    results = {}
    for keeps in (False, True):
        asked = fp.Participation(**ASKED, lost_clients_keep=keeps)
        trainer = trainer_of(model, data, participation=asked)
        results[keeps], _ = outcome(trainer, data, tmp_path / str(keeps), rounds=1)
    together = np.concatenate([reported, lost])
    told = trainer_of(model, data, clients_of_round=lambda n: (data, together))
    trained, _ = outcome(told, data, tmp_path / "trained", rounds=1)
    for name, values in results[True].items():
        if name in ("known", *(n for n in trained if n.startswith("own "))):
            np.testing.assert_allclose(values, trained[name], atol=1e-6)  # As if all had reported.
            np.testing.assert_array_equal(results[False][name][reported], values[reported])
        else:
            np.testing.assert_array_equal(values, results[False][name])  # No server sees it.
    assert np.flatnonzero(results[False]["known"]).tolist() == sorted(reported)


@pytest.mark.exhaustive
def test_a_round_without_reports_is_one_of_no_update(model, data, tmp_path):
    """Momentum waits, too, however clients are packed."""
    asked = fp.Participation(lost_update_rate=0.8)
    results = {}
    for packing in ("stacked", "pooled"):
        for momentum in (0.0, 0.9):
            options = {
                "clients_per_round": 1,
                "packing": packing,
                "server_optimizer": tf.keras.optimizers.SGD(0.5, momentum=momentum),
            }
            trainer = trainer_of(model, data, "rebuilt", asked, **options)
            reported = [len(trainer.cohort(n).client_ids) for n in range(1, 20)]
            first = reported.index(1) + 1
            last = first + reported[first:].index(0) + 1
            assert first > 1
            for rounds in (last - 1, last):
                folder = tmp_path / f"{packing} {momentum} {rounds}"
                values, columns = outcome(trainer, data, folder, rounds=rounds)
                assert columns["num_reported"].tolist() == reported[:rounds]
                assert all(np.isfinite(value).all() for value in values.values())
                results[packing, momentum, rounds] = values
    for momentum in (0.0, 0.9):
        stacked, pooled = (
            [results[p, momentum, n] for n in (last - 1, last)] for p in ("stacked", "pooled")
        )
        assert_equal(stacked[1], pooled[1], atol=1e-6)
        for name in stacked[0].keys() - {"known"}:
            np.testing.assert_array_equal(stacked[0][name], stacked[1][name], err_msg=name)
    assert trainer.audit().holds  # Of the first round with clients.
    with pytest.raises(fp.UserError, match="Nothing was learned in rounds 1 to 1: no client"):
        outcome(trainer, data, tmp_path / "nobody", rounds=1)


def test_a_private_run_counts_all_that_are_drawn(model, data):
    privacy = fp.DifferentialPrivacy(noise_multiplier=0.5)
    algorithm = fp.furl(client_optimizer=SGD, weighting="uniform")
    options = {"clients_per_round": WANTED, "client_sampling": "poisson", "privacy": privacy}
    asked = {**ASKED, "over_selection": 0.0}
    trainer = fp.Trainer(model, algorithm, data, participation=fp.Participation(**asked), **options)
    assert trainer.budget == fp.PrivacyBudget(12, WANTED, "poisson", 0.5)  # 12 have 5 examples.
    assert trainer.privacy.expected_clients == WANTED
    with pytest.raises(fp.UserError, match="over_selection uses the fastest clients"):
        fp.Trainer(model, algorithm, data, participation=fp.Participation(**ASKED), **options)


@pytest.mark.exhaustive
def test_a_private_sum_of_those_that_report_is_divided_by_those_expected(model, data, tmp_path):
    """In one shard and in several: of clients clipped nowhere, without noise."""
    algorithm = fp.furl(client_optimizer=SGD, weighting="uniform")
    options = {"clients_per_round": WANTED, "batch_size": BATCH_SIZE, "seed": SEED}
    asked = fp.Participation(**{**ASKED, "over_selection": 0.0}, lost_clients_keep=True)
    privacy = fp.DifferentialPrivacy(noise_multiplier=0.0, clip_norm=1e3, clipping="fixed")
    simulated = {
        shards: fp.Trainer(
            model, algorithm, data, participation=asked, privacy=privacy, shards=shards, **options
        )
        for shards in (1, WANTED)
    }
    clients = list(simulated[1].cohort(1).client_ids)
    assert 0 < len(clients) < WANTED
    indices = np.flatnonzero(np.isin(data.client_ids, clients))
    told = fp.Trainer(model, algorithm, data, clients_of_round=lambda n: (data, indices), **options)
    start = told.untrained().weights
    mean, _ = outcome(told, data, tmp_path / "told", rounds=1)
    for shards, trainer in simulated.items():
        found, _ = outcome(trainer, data, tmp_path / str(shards), rounds=1)
        for name, first in start.items():
            expected = first + (mean[name] - first) * len(clients) / WANTED
            np.testing.assert_allclose(found[name], expected, atol=1e-6)


def test_what_does_not_fit_is_refused_in_a_line(model, data):
    keeping = fp.Participation(lost_update_rate=0.1, lost_clients_keep=True)
    with pytest.raises(fp.UserError, match="those of fed_recon keep none") as refused:
        trainer_of(model, data, "rebuilt", keeping)
    assert "\n" not in str(refused.value)
    with pytest.raises(fp.UserError, match="randomly sampled clients, not clients_of_round"):
        trainer_of(model, data, "kept", keeping, clients_of_round=lambda n: (data, np.arange(3)))
