"""Whom differential privacy holds off: an attack, and the secret of noise and draw."""

from __future__ import annotations

import json
import math
import shutil
import stat

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import fedpersonal as fp
from fedpersonal.runs.folder import derive_secret

CLIENTS, TRIED = 1000, 2000


def attacked_trainer(noise):
    """One round of 10 of 1,000 clients, whose model has a weight for each try, and more."""
    dense = tf.keras.layers.Dense
    layers = [tf.keras.Input([1], name="x"), dense(2 * TRIED, name="tries"), dense(1)]
    ones = np.ones(CLIENTS, np.float32)
    names = [f"c{i}" for i in range(CLIENTS)]
    return fp.Trainer(
        fp.PartitionedModel(tf.keras.Sequential(layers)),
        fp.fed_avg(client_optimizer=tf.keras.optimizers.SGD(1e-9), weighting="uniform"),
        fp.ClientDataset(names, np.arange(CLIENTS + 1), {"x": ones[:, None]}, ones),
        clients_per_round=10,
        client_sampling="poisson",
        privacy=fp.DifferentialPrivacy(0.6, clip_norm=1.0, clipping="fixed", noise=noise),
    )


def measured_epsilon(trainer, guesses):
    """Attacks a round of so many runs: its noise, and who is drawn, are those of the trainer.

    The attacker thinks that it knows somebody who was drawn, whose whole update is along one
    weight, and looks whether that weight has moved.

    Args:
        trainer: The trainer, of which each weight and each round stands for a run.
        guesses: For each run who is thought to be drawn.

    Returns:
        The least epsilon that allows what was seen, at 97.5 % confidence of each rate.
    """
    state = trainer.process.initialize()
    after = trainer.process.next(state, trainer.cohort(1).examples).state
    kernels = [s.global_model_weights.trainable["tries/kernel"][0] for s in (state, after)]
    noise = 10.0 * (kernels[0] - kernels[1])
    drawn = [name in trainer.cohort(n).client_ids for n, name in guesses.items()]
    tries = len(drawn)
    alarms = [int((x > 1.2).sum()) for x in (noise[:tries] + drawn, noise[-tries:])]
    right = stats.beta.ppf(0.025, alarms[0], tries - alarms[0] + 1)
    wrong = stats.beta.ppf(0.975, alarms[1] + 1, tries - alarms[1])
    return math.log((right - trainer.budget.delta) / wrong)


@pytest.mark.exhaustive
def test_no_attack_beats_the_epsilon_told():
    """With a public seed anybody knows who was drawn: nothing is gained by sampling."""
    public, secret = map(attacked_trainer, ("seeded", "secret"))
    guesses = {}
    for number in range(1, TRIED + 1):  # By what config.json says of either.
        names = public.cohort(number).client_ids
        if len(names):
            guesses[number] = names[0]
    for trainer, is_found in ((public, True), (secret, False)):
        told = trainer.describe_privacy(1)
        measured = measured_epsilon(trainer, guesses)
        assert measured <= told["epsilon"]
        assert (measured > 0.891) == is_found


SGD = tf.keras.optimizers.SGD(0.2)


@pytest.fixture(name="data", scope="module")
def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 2)).astype(np.float32)
    labels = (x @ [1.0, -1.0]).astype(np.float32)
    return fp.ClientDataset([f"c{i}" for i in range(12)], np.arange(13) * 8, {"x": x}, labels)


def secret_trainer(model, data, **options):
    privacy = fp.DifferentialPrivacy(noise_multiplier=0.5, noise="secret")
    known = {"clients_per_round": 4, "client_sampling": "poisson", "privacy": privacy, **options}
    return fp.Trainer(model, fp.furl(client_optimizer=SGD, weighting="uniform"), data, **known)


class StopAfter(fp.Callback):
    """What Ctrl-C does in a round."""

    def __init__(self, number):
        self.number = number

    def on_round_end(self, run):
        if run.round_number == self.number + 1:
            raise KeyboardInterrupt


def fit(trainer, folder, rounds=4, **options):
    with trainer.fit(rounds=rounds, folder=folder, progress=False, **options) as trained:
        known, values = trained.kept_by([f"c{i}" for i in range(12)])
        return {**trained.weights, **values, "known": known}


def assert_same(one, other, *, same=True):
    assert all(np.array_equal(one[name], other[name]) for name in one) == same


def test_a_secret_is_kept_for_its_owner_until_the_run_has_ended(dense_model, data, tmp_path):
    model, folders = dense_model(), [tmp_path / name for name in ("stopped", "straight", "other")]
    secret = folders[0] / "privacy_secret.json"
    with pytest.raises(KeyboardInterrupt):
        fit(secret_trainer(model, data), folders[0], callbacks=[StopAfter(2)])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    known = json.loads(secret.read_text(encoding="utf-8"))["secret"]
    written = [path.read_bytes() for path in folders[0].rglob("*") if path.is_file()]
    for number in (known, *(str(derive_secret(int(known, 16), n)) for n in ("noise", "clients"))):
        assert sum(number.encode() in content for content in written) == (number == known)
    folders[1].mkdir()
    shutil.copy(secret, folders[1])
    trainer, other = secret_trainer(model, data), secret_trainer(model, data)
    stopped = fit(trainer, folders[0])
    assert_same(stopped, fit(trainer, folders[1]))
    assert_same(stopped, fit(other, folders[2]), same=False)
    assert not any((folder / "privacy_secret.json").exists() for folder in folders)
    page = (folders[0] / "report.html").read_text(encoding="utf-8")
    assert "epsilon (secret sampling)" in page and "epsilon if sampling were public" in page
    fit(other, folders[0], rounds=5)  # More rounds have another secret.
    assert not secret.exists()


def test_a_damaged_secret_is_refused(dense_model, data, tmp_path):
    (tmp_path / "privacy_secret.json").write_text('{"secret": "12"}', encoding="utf-8")
    with pytest.raises(fp.UserError, match="privacy_secret.json is damaged.* as it began"):
        fit(secret_trainer(dense_model(), data), tmp_path)


def test_nobody_is_told_who_was_drawn_in_secret(dense_model, data):
    with pytest.raises(fp.UserError, match="the sampled clients are secret"):
        secret_trainer(dense_model(), data).attended_rounds(1)


@pytest.mark.exhaustive(but=("poisson",))
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_both_epsilons_are_told(dense_model, data, sampling):
    """A known draw costs what the client who was drawn most often spends, dropped out or not."""
    options = {"privacy": fp.DifferentialPrivacy(noise_multiplier=1.0), "client_sampling": sampling}
    everybody = secret_trainer(dense_model(), data, **options)
    dropping = fp.Participation(dropout_rate=0.5)
    trainer = secret_trainer(dense_model(), data, participation=dropping, **options)
    most = max(map(len, everybody.attended_rounds(9).values()))
    told, budget = trainer.describe_privacy(9), trainer.budget
    assert told["most_rounds"] == most < 9
    assert told["epsilon"] == told["epsilon_public_draw"] == budget.epsilon_of_known_draw(most)
    assert told["epsilon_secret_draw"] == budget.epsilon(9)
    found = fp.PrivacyBudget.for_epsilon(
        4.0, rounds=9, most_rounds=most, num_clients=12, clients_per_round=4, sampling=sampling
    )
    assert 3.98 < found.epsilon_of_known_draw(most) <= 4.0
