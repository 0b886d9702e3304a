"""`Trainer` from first rounds to a model, in a folder and without one."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.tff.optimizers import build_sgdm

ROUNDS = 6


@pytest.fixture(name="data", scope="module")
def _data():
    random = np.random.default_rng(0)
    slopes = random.normal(size=(12, 2))
    x = random.normal(size=(12, 16, 2)).astype(np.float32)
    labels = np.einsum("cnd,cd->cn", x, slopes) + random.normal(0, 0.3, (12, 16))
    return fp.ClientDataset(
        client_ids=[f"c{i}" for i in range(12)],
        offsets=np.arange(13) * 16,
        features={"x": x.reshape(-1, 2)},
        labels=labels.reshape(-1).astype(np.float32),
    )


@pytest.fixture(name="model", scope="module")
def _model(dense_model):
    return dense_model(metrics=["RootMeanSquaredError"])


SGD = tf.keras.optimizers.SGD(0.2)
ALGORITHMS = {
    "kept": fp.furl(client_optimizer=SGD),
    "rebuilt": fp.fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD),
}


@pytest.fixture(name="trainer", scope="module", params=ALGORITHMS)
def _trainer(request, model, data):
    algorithm = ALGORITHMS[request.param]
    seen = data.subset(np.arange(10))
    return fp.Trainer(model, algorithm, seen, clients_per_round=4, batch_size=4)


def fit(trainer, rounds=ROUNDS, **options):
    return trainer.fit(rounds=rounds, progress=False, **options)


def contents(trained, data):
    """The weights, and what all clients keep."""
    kept = trained.kept_by(data.client_ids) if trained.kept_by else (np.zeros(1), {})
    return {**trained.weights, "known": kept[0], **{f"kept {k}": v for k, v in kept[1].items()}}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_run_goes_on_to_the_same_bits(trainer, data, tmp_path):
    with fit(trainer) as straight:
        expected = contents(straight, data)
    with fit(trainer, 2, folder=tmp_path) as first:
        assert (first.round_number, first.loop.rounds_run) == (2, 2)
    with fit(trainer, folder=tmp_path) as trained:
        assert (trained.round_number, trained.loop.resumed_from) == (ROUNDS, 2)
        assert_equal(contents(trained, data), expected)


@pytest.mark.exhaustive(but=("rebuilt",))
def test_clients_of_an_older_round_are_not_shown(trainer, data, tmp_path):
    """They were evaluated before the run went on: no page has them, until they are again."""

    def has_clients():
        return '"dots":null' not in (tmp_path / "report.html").read_text().replace(" ", "")

    for rounds in (1, 2):
        with fit(trainer, rounds, folder=tmp_path) as trained:
            assert not has_clients()
            if rounds == 2:
                with pytest.raises(fp.UserError, match="round 1 has per_client.csv; round 2 has"):
                    fp.write_report(tmp_path)
            table = trained.evaluate(data)
        assert (table["round"] == rounds).all()
        table.to_csv(tmp_path / "per_client.csv", index=False)
        fp.write_report(tmp_path)
        assert has_clients()


@pytest.mark.exhaustive(but=("kept",))
def test_what_is_printed_is_a_line(trainer, data):
    some = data.subset([10, 11])
    with fit(trainer, 1) as trained:
        found = [
            trainer,
            trained,
            trained.results(some, baseline={"loss": [1, 2]}),
            trainer.cohort(1),
        ]
        found.append(trained.loop)
    expected = [
        r"<Trainer: \w+, 4 of 10 clients a round, batches of 4: 9 global \(shared/kernel, .*",
        r"<TrainedModel: \w+, round 1: 9 global .*, 4 local \(own/kernel, own/bias\)>",
        r"<ClientResults: 2 clients, 16 .*loss \S+ \(before: \S+; baseline, mean .*: 1.5\)>",
        r"<Cohort: 4 clients in \d+ shards?>",
        r"LoopResult\(rounds_run=1, .*",
    ]
    for one, pattern in zip(found, expected):
        assert re.fullmatch(pattern, repr(one)) and len(repr(one)) < 200, repr(one)


def test_weights_beside_labels_are_those_of_keras():
    """What the tutorial shows in place of `sample_weight`; they are 1 on average."""
    random = np.random.default_rng(1)
    x, y, weights = random.normal(size=(8, 2)), random.normal(size=8), random.uniform(size=8)
    weights /= weights.mean()
    inputs = tf.keras.Input([2], name="x")
    keras_model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="d")(inputs))
    model = fp.PartitionedModel(
        keras_model,
        loss=lambda labels, found: labels[:, 1] * (found[:, 0] - labels[:, 0]) ** 2,
        example_weight=lambda labels: labels[:, 1],
        label_spec=tf.TensorSpec([None, 2]),
    )
    data = fp.ClientDataset(["a"], [0, 8], {"x": x}, np.stack([y, weights], 1))
    with fit(fp.Trainer(model, fp.fed_avg(client_optimizer=SGD), data), 1) as trained:
        found, loss = trained.weights, trained.overall(data)["loss"]
    keras_model.compile(tf.keras.optimizers.SGD(0.2), "mse")
    keras_model.fit(x, y, sample_weight=weights, batch_size=8, verbose=0)
    for name, value in zip(("d/kernel", "d/bias"), keras_model.get_weights()):
        np.testing.assert_allclose(found[name], value, 1e-5, 1e-6)
    expected = keras_model.evaluate(x, y, sample_weight=weights, batch_size=8, verbose=0)
    np.testing.assert_allclose(loss, expected, 1e-5)


def test_a_run_without_a_folder_leaves_none(trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with fit(trainer, 1):
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.exhaustive(but=("kept",))
def test_a_folder_is_of_one_data_set_and_one_way_to_train(trainer, data, tmp_path):
    fit(trainer, 1, folder=tmp_path).close()
    parts = trainer.model, trainer.algorithm
    options = {"clients_per_round": 4, "batch_size": 4}
    other = fp.Trainer(*parts, data.subset(np.arange(9)), **options)
    with pytest.raises(fp.UserError, match="holds a run with other data"):
        fit(other, folder=tmp_path)
    assert "The run failed" not in (tmp_path / "report.html").read_text()
    other = fp.Trainer(*parts, data.subset(np.arange(10)), **{**options, "clients_per_round": 5})
    with pytest.raises(fp.UserError, match="clients_per_round was 4 and is now 5"):
        fit(other, folder=tmp_path)


@pytest.mark.exhaustive(but=("kept",))
def test_data_that_were_changed_are_refused_part_by_part(trainer, data, tmp_path):
    fit(trainer, 1, folder=tmp_path / "run").close()
    own = fp.RunFolder.open(tmp_path / "own", {})  # It says nothing of the data.
    fit(trainer, 1, folder=own).close()
    options = {"clients_per_round": 4, "batch_size": 4}
    seen = data.subset(np.arange(10))
    wide = {"x": seen.features["x"], "y": np.zeros(len(seen.labels), np.float32)}
    others = {
        "values": dataclasses.replace(seen, labels=6 - seen.labels),
        "examples": seen.head(15),
        "clients": data.subset(np.arange(11)),
        "columns": dataclasses.replace(seen, features=wide),
    }
    for name, other in others.items():
        other = fp.Trainer(trainer.model, trainer.algorithm, other, **options)
        for folder in (tmp_path / "run", own):
            with pytest.raises(fp.UserError, match=f"holds a run with other data: .*{name} was "):
                fit(other, folder=folder)
    seen.labels[:] = 6 - seen.labels
    turned = fp.Trainer(trainer.model, trainer.algorithm, seen, **options)
    with pytest.raises(fp.UserError) as caught:
        fit(turned, folder=tmp_path / "run")
    assert re.fullmatch(
        f'{tmp_path}/run holds a run with other data: values was "[0-9a-f]{{16}}" and is now '
        '"[0-9a-f]{16}". Restore them or give another folder \\(--output_dir\\).',
        str(caught.value),
    )


@pytest.mark.exhaustive(but=("kept",))
def test_a_run_of_another_model_is_one_line(trainer, dense_model, data, tmp_path):
    fit(trainer, 1, folder=tmp_path).close()
    wider = dense_model(units=4, metrics=["RootMeanSquaredError"])
    seen = data.subset(np.arange(10))
    other = fp.Trainer(wider, trainer.algorithm, seen, clients_per_round=4, batch_size=4)
    with pytest.raises(fp.UserError) as caught:
        fit(other, folder=tmp_path)
    said = str(caught.value)
    assert (
        "holds a run with other options: model.variables.shared/kernel[0][1] was 3 and is" in said
    )
    assert "\n" not in said


@pytest.mark.exhaustive
def test_a_run_goes_on_with_what_it_was_trained_with_alone(model, dense_model, data, tmp_path):
    """What is described is compared; `description_test` has all that there is."""

    def make(rate=0.2, model=model, weighting="num_examples", **options):
        algorithm = fp.furl(client_optimizer=tf.keras.optimizers.SGD(rate), weighting=weighting)
        own = {"clients_per_round": 4, "batch_size": 4, **options}
        return fp.Trainer(model, algorithm, data, **own)

    fit(make(), 2, folder=tmp_path).close()
    before = (tmp_path / "metrics.csv").read_text()
    slow = build_sgdm(0.5)
    mae = dense_model(metrics=["RootMeanSquaredError"], loss="mae")
    ready = model.given_builder()
    metrics = ["RootMeanSquaredError"]
    started = fp.PartitionedModel(ready, local_layers=["own"], loss="mse", metrics=metrics)
    rate = r"algorithm.phases\[0\].optimizer.numbers.learning_rate"
    others = {
        f"{rate} was 0.2 and is now 0.1": {"rate": 0.1},
        "algorithm.weighting was .num_examples. and is now .uniform": {"weighting": "uniform"},
        "server_optimizer.numbers.learning_rate was 1.0 and is now 0.5": {"server_optimizer": slow},
        "initial_local_values was .* and is now": {"model": started},
        "finetuning": {"finetuning": [fp.GradientPhase("all", "all", slow)]},
        "model.loss was .mse. and is now .mae.": {"model": mae},
    }
    for message, changed in others.items():
        with pytest.raises(fp.UserError, match=f"holds a run with other options: .*{message}"):
            fit(make(**changed), folder=tmp_path)
    assert (tmp_path / "metrics.csv").read_text() == before
    with fit(make(), 3, folder=tmp_path) as trained:
        assert trained.loop.resumed_from == 2


def test_a_run_that_learns_nothing_is_refused(model, data, tmp_path):
    huge = tf.keras.optimizers.SGD(1e30)
    trainer = fp.Trainer(model, fp.furl(client_optimizer=huge), data, batch_size=4)
    with pytest.raises(fp.UserError, match="Nothing was learned in rounds 1 to 3: every client's"):
        fit(trainer, 3, folder=tmp_path)
    assert not (tmp_path / "model.json").exists()
    assert "The run failed. Nothing was learned" in (tmp_path / "report.html").read_text()


def test_progress_is_told_on_stderr(trainer, capfd):
    trainer.fit(rounds=1).close()
    output, errors = capfd.readouterr()
    assert not output and "train/loss" in errors
    fit(trainer, 1).close()
    assert capfd.readouterr() == ("", "")


def test_an_untrained_model_is_of_nobody(trainer, data):
    untrained = trainer.untrained()
    table = untrained.evaluate(data)
    assert not table["has_kept"].any() and np.isfinite(table["loss_after"]).all()
    assert untrained.round_number == 0
    with fit(trainer, 1) as trained:
        names = untrained.weights
        assert any((trained.weights[name] != untrained.weights[name]).any() for name in names)


@pytest.fixture(name="losses", scope="module")
def _losses():
    """What validations say, in turn; those of round 2 and 4 are the lowest and the highest."""
    return {1: 3.0, 2: 1.0, 3: 4.0, 4: 5.0, 5: 2.0, 6: 2.5}


@pytest.mark.exhaustive(but=("kept-max-4", "rebuilt-min-2"))
@pytest.mark.parametrize(("mode", "best_round"), [("min", 2), ("max", 4)])
def test_the_best_model_is_that_of_its_round(trainer, data, losses, mode, best_round, tmp_path):
    seen = {}

    def validate(trained):
        seen[trained.round_number] = contents(trained, data)
        return {"loss": losses[trained.round_number]}

    options = {"validate": validate, "rounds_per_eval": 1, "rounds_per_checkpoint": 1}
    options.update(best="eval/loss", best_mode=mode, folder=tmp_path)
    fit(trainer, 3, **options).close()
    with fit(trainer, **options) as trained:  # The best one may be of the former session.
        assert (trained.round_number, trained.loop.resumed_from) == (best_round, 3)
        assert_equal(contents(trained, data), seen[best_round])
    changed = {name for name, value in seen[6].items() if (value != seen[best_round][name]).any()}
    assert "shared/kernel" in changed
    assert ("kept own/kernel" in changed) == trainer.algorithm.keeps
    loaded = fp.load_run(tmp_path, algorithm=trainer.algorithm, model=trainer.model).trained
    with loaded:
        assert loaded.round_number == best_round
        assert_equal(contents(loaded, data), seen[best_round])
        loaded.evaluate(data).to_csv(tmp_path / "per_client.csv", index=False)
    fp.write_report(tmp_path)  # Of the run's end, though its last round is another.


def test_a_best_metric_that_is_never_a_number_loses_nothing(trainer, data, tmp_path, caplog):
    """As an AUC is, where validation examples have one label."""
    auc = iter([np.nan, np.nan, np.nan, 0.5])
    options = {"validate": lambda trained: {"auc": next(auc)}, "rounds_per_eval": 1}
    options.update(best="eval/auc", best_mode="max", folder=tmp_path)
    for _ in range(2):  # The second one has no round to run.
        caplog.clear()
        with fit(trainer, 3, **options) as trained:
            assert trained.round_number == 3
            last = contents(trained, data)
        assert "eval/auc was NaN in every round" in caplog.messages[-1]
    model = {"algorithm": trainer.algorithm, "model": trainer.model}
    with fp.load_run(tmp_path, **model).trained as loaded:
        assert_equal(contents(loaded, data), last)
    with fit(trainer, 4, **options) as trained:
        assert trained.round_number == 4


def test_early_stopping_ends_a_run(trainer, losses):
    def validate(trained):
        return {"loss": losses[trained.round_number]}

    stopping = fp.EarlyStopping("eval/loss", patience=2)
    with fit(trainer, validate=validate, rounds_per_eval=1, callbacks=[stopping]) as trained:
        assert trained.round_number == 4
        assert "has not improved since round 2" in trained.loop.stop_reason


def test_a_best_metric_must_be_there(trainer):
    with pytest.raises(fp.UserError, match="watches eval/loss, but no round is evaluated"):
        fit(trainer, best="eval/loss")
    with pytest.raises(fp.UserError, match="mode must be one of"):
        fit(trainer, best="train/loss", best_mode="least")


def test_a_folder_says_what_crossed(trainer, tmp_path):
    fit(trainer, 1, folder=tmp_path).close()
    boundary = json.loads((tmp_path / "boundary.json").read_text())
    names = {row["name"].split(".")[-1] for row in boundary}
    assert "shared/kernel" in names and "own/kernel" not in names
    page = (tmp_path / "report.html").read_text()
    kept = "kept" if trainer.algorithm.keeps else "rebuilt"
    assert f"Local variables, {kept}, 16 bytes" in page
    assert "own/kernel: 12 bytes" in page


def test_the_server_takes_keras_optimizers(model, data):
    parts = model, ALGORITHMS["rebuilt"], data
    still = fp.Trainer(*parts, server_optimizer=tf.keras.optimizers.SGD(1e-9), batch_size=4)
    start = still.untrained().weights
    with fit(still, 1) as trained:
        np.testing.assert_allclose(
            trained.weights["shared/kernel"], start["shared/kernel"], atol=1e-6
        )


@pytest.mark.exhaustive
def test_an_aggregator_with_bytes_in_its_state_goes_on(model, data, tmp_path):
    """That of differential privacy names its mechanism."""
    tffs = pytest.importorskip("tensorflow_federated")
    aggregator = tffs.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        noise_multiplier=1e-9, clients_per_round=4, clip=1.0
    )
    options = {"clients_per_round": 4, "batch_size": 4}
    algorithm = fp.fed_recon(
        client_optimizer=SGD, reconstruction_optimizer=SGD, weighting="uniform"
    )
    trainer = fp.Trainer(model, algorithm, data, aggregator=aggregator, **options)
    fit(trainer, 1, folder=tmp_path).close()
    with fit(trainer, 2, folder=tmp_path) as trained:
        assert trained.loop.resumed_from == 1


DROPPING = fp.Participation(dropout_rate=0.5, lost_update_rate=0.4, lost_clients_keep=True)


@pytest.mark.exhaustive(but=("{'local_steps': 2}",))
@pytest.mark.parametrize("options", [{}, {"local_steps": 2}, {"participation": DROPPING}], ids=str)
def test_those_drawn_are_counted(model, data, options):
    trainer = fp.Trainer(model, ALGORITHMS["kept"], data, clients_per_round=3, seed=4, **options)
    attended = trainer.attended_rounds(2)
    drawn = [trainer.cohort(number) for number in (1, 2)]
    lost = [list(cohort.lost.client_ids) if cohort.lost else [] for cohort in drawn]
    # Seed 4 loses clients that keep what they have trained.
    assert any(lost) == ("participation" in options)
    cohorts = [[*cohort.client_ids, *other] for cohort, other in zip(drawn, lost)]
    for client in data.client_ids:
        expected = [number for number, cohort in enumerate(cohorts, 1) if client in cohort]
        assert attended[client] == expected
    assert set(attended) == {*data.client_ids}
    with fit(trainer, 2) as trained:
        known, _ = trained.kept_by(data.client_ids)
    assert [bool(attended[client]) for client in data.client_ids] == known.tolist()
    assert 0 < known.sum() < 12


def private_trainer(model, data, **options):
    algorithm = fp.furl(client_optimizer=SGD, weighting="uniform")
    defaults = {
        "clients_per_round": 4,
        "batch_size": 4,
        "client_sampling": "poisson",
        "privacy": fp.DifferentialPrivacy(noise_multiplier=0.5),
    }
    return fp.Trainer(model, algorithm, data, **{**defaults, **options})


@pytest.mark.exhaustive
def test_a_private_run_that_goes_on_accounts_once(model, data, tmp_path):
    trainer = private_trainer(model, data)
    assert trainer.budget == fp.PrivacyBudget(12, 4, "poisson", 0.5, 12**-1.1)
    with fit(trainer, folder=tmp_path / "straight") as straight:
        expected = contents(straight, data)
    fit(trainer, 2, folder=tmp_path / "stopped").close()
    with fit(private_trainer(model, data), folder=tmp_path / "stopped") as trained:
        assert trained.loop.rounds_run == ROUNDS - 2
        assert_equal(contents(trained, data), expected)
    columns = [fp.RunFolder.read(tmp_path / n).metrics["epsilon"] for n in ("straight", "stopped")]
    most = [max(map(len, trainer.attended_rounds(n).values())) for n in range(1, ROUNDS + 1)]
    spent = [trainer.budget.epsilon_of_known_draw(n) for n in most]
    assert [list(column) for column in columns] == [spent, spent]
    told = trainer.describe_privacy(ROUNDS)
    assert (told["epsilon"], told["client_sampling"]) == (spent[-1], "poisson")
    assert trainer.describe_privacy(0)["epsilon"] == 0
    with pytest.raises(fp.UserError, match="other options: privacy was.* 0.5.* is now .* 0.6"):
        other = fp.DifferentialPrivacy(noise_multiplier=0.6)
        fit(private_trainer(model, data, privacy=other), folder=tmp_path / "stopped")


def test_cohorts_of_any_size_have_room(model, data):
    """Poisson sampling leaves no client out, whatever shards have room for."""
    trainer = private_trainer(model, data, shards=2, clients_per_round=2)
    cohorts = [trainer.cohort(n) for n in range(1, 60)]
    counts = [
        sum(int((shard.examples["mask"].max((1, 2)) > 0).sum()) for shard in cohort.shards)
        for cohort in cohorts
    ]
    assert counts == [len(cohort.client_ids) for cohort in cohorts]
    assert {len(cohort.shards) for cohort in cohorts} >= {1, 2, 3} and 0 in counts


def test_clipping_alone_has_no_epsilon(model, data, tmp_path):
    trainer = private_trainer(model, data, privacy=fp.DifferentialPrivacy(0.0))
    fit(trainer, 2, folder=tmp_path).close()
    assert "epsilon" not in fp.RunFolder.read(tmp_path).metrics
    assert trainer.describe_privacy(2)["epsilon"] is None


def test_privacy_wants_a_random_draw(model, data):
    with pytest.raises(fp.UserError, match="requires randomly sampled clients"):
        private_trainer(model, data, clients_of_round=lambda n: (data, np.arange(3)))
