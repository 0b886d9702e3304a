"""Experiments on utterances: what is tested after how many samples, and where users start."""

from __future__ import annotations

import csv
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from transformers import TFGPT2LMHeadModel

from fedpersonal.errors import UserError
from fedpersonal.evaluation import evaluate as evaluator
from fedpersonal.federated.cohort import make_cohort
from fedpersonal.runs.kept import Snapshot
from fedpersonal.suite.models.pretraining import ModelSizes, pretrain_into
from fedpersonal.suite.tasks.utterances.data import finetuning_sets
from fedpersonal.suite.tasks.utterances.task import BASE_ALONE, TASK
from fedpersonal.training.loaded import load_run

PERSONAL = "language_model/personal_embedding/embeddings"
CONTEXT = "language_model/context_embedding/embeddings"
# Without noise, the mean of what seen users have kept can be told exactly.
EXACT_MEAN = {"clip_norm": 1e6, "noise_multiplier": 0.0}
RUNS = {
    "seen": {"method": "fedperc", "clients_per_round": 8},
    "unseen": {"method": "fedperc", "evaluate_on": "unseen", **EXACT_MEAN},
    "generated": {"method": "fedperc_generated"},
    "adapted": {"method": "fedsa_lora", "lora_matrices": "all"},
    "head_and_bias": {"method": "meta_learning_bias"},
    "central": {"method": "central_meta_learning_bias"},
    "projected": {"method": "fedperc_projected", "user_vectors": "vectors.csv"},
}
SENT = {
    "seen": CONTEXT,
    "unseen": CONTEXT,
    "generated": CONTEXT,
    "adapted": "language_model/shared_lora_a/kernel",
    "head_and_bias": "language_model/shared_head/kernel",
    "projected": "language_model/personal_projection/kernel",
}


@pytest.fixture(name="table", scope="module")
def _table(tmp_path_factory):
    """Utterances whose first word tells them from all others."""
    path = tmp_path_factory.mktemp("table") / "numbered.csv"
    with open(path, "w", newline="") as file:
        rows = [
            (f"u{number % 8}", f"{number} the man has a boat", "ab"[number % 2])
            for number in range(240)
        ]
        csv.writer(file).writerows([("user", "text", "context"), *rows])
    with open(path.with_name("vectors.csv"), "w", newline="") as file:
        vectors = ((f"u{user}", user, -user) for user in range(8))
        csv.writer(file).writerows([("user", "a", "b"), *vectors])
    return str(path)


@pytest.fixture(name="run", scope="module")
def _run(tiny, table):
    """Runs an experiment once; what it was evaluated on is recorded."""
    found = {}

    def run(name):
        if name not in found:
            evaluated, build = [], evaluator.build_evaluation

            def record(model, phases, support, query, **options):
                if support.num_examples:  # The base model alone has none.
                    evaluated.append((support, query))
                return build(model, phases, support, query, **options)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(evaluator, "build_evaluation", record)
                options = dict(RUNS[name])
                if "user_vectors" in options:
                    options["user_vectors"] = table.replace("numbered.csv", "vectors.csv")
                found[name] = tiny.run(TASK, text_file=table, **options)
            found[name].evaluated = evaluated
        return found[name]

    return run


@pytest.mark.exhaustive(but=("seen",))
@pytest.mark.parametrize("name", SENT)
def test_what_a_run_writes_of_samples_and_bytes(run, tiny_base, name):
    finished = run(name)
    summary, experiment = finished.summary, finished.experiment
    assert summary["evaluate_on"] == ("unseen" if name == "unseen" else "seen")
    assert summary["base_model"] == tiny_base.source
    finetunes = experiment.method.finetunes is not None
    assert finetunes == (name != "generated")
    assert list(summary["by_samples"]) == (["0"] if finetunes else []) + ["1", "all"]
    tested = [results["perplexity"] for results in summary["by_samples"].values()]
    assert len(set(tested)) == len(tested) and finished.test["perplexity"] == tested[-1]
    _, alone, *lines = experiment.task.report(summary)
    assert alone.endswith(" by the base model alone")
    ends = ["before fine-tuning"] * finetunes
    numbers = ("one other utterance", "all other utterances")
    ends += [f"after each user's fine-tuning on {n}" for n in numbers]
    assert lines == [f"  {figure:.2f} {end}" for figure, end in zip(tested, ends)]
    ids = tiny_base.config.vocab_size
    # Of LoRA, factors of rank 8 for all that a block of 8 numbers makes.
    made = 8 * (3 + 1 + 4 + 1)
    local = {"adapted": 8 * made, "head_and_bias": ids, "projected": 0}
    assert summary["local_bytes_per_client"] == 4 * local.get(name, 8)

    sent = {row["name"] for row in finished.boundary}
    assert SENT[name] in finished.crossing
    assert not any("/base/" in other for other in sent)
    assert any("/personal_generator/" in other for other in sent) == (name == "generated")
    means = {other for other in sent if other.startswith("clipped.")}
    assert means == ({f"clipped.{PERSONAL}"} if name == "unseen" else set())
    (frozen,) = [row for row in finished.boundary if row["direction"] == "once"]
    assert frozen["num_bytes"] == summary["frozen_bytes"] > 1000


@pytest.mark.exhaustive(but=("meta_learning-language_model/head/kernel-0",))
@pytest.mark.parametrize(
    ("method", "sent", "rows"),
    [
        ("split_learning", "language_model/context_head/embeddings", 8),
        ("meta_learning", "language_model/head/kernel", 0),
    ],
)
def test_what_is_sent_of_a_head(tiny, table, tiny_base, method, sent, rows):
    trainer = tiny.build(TASK, text_file=table, method=method).trainer
    local = sum(np.prod(variable.shape) for variable in trainer.model.local_variables)
    assert sent in {crossing.name.partition(".")[2] for crossing in trainer.crossings}
    assert local == rows * tiny_base.config.vocab_size


@pytest.mark.exhaustive
def test_a_run_with_users_vectors_opens_again(run):
    finished = run("projected")
    with load_run(finished.path).trained as loaded:
        test = finished.data.test
        evaluate = finished.experiment.evaluation(test, (), with_before=False)
        found = evaluate(loaded).overall()["perplexity"]
        assert loaded.model.input_spec["vector"].shape[1] == 2
    assert found == pytest.approx(finished.summary["by_samples"]["0"]["perplexity"], rel=1e-5)


def test_users_are_validated_as_they_are_tested(run):
    finished = run("seen")
    data = dataclasses.replace(finished.data, validation=finished.data.test)
    experiment = dataclasses.replace(finished.experiment, data=data)
    with load_run(finished.path).trained as trained:
        found = TASK.validate(experiment)(trained).overall()["perplexity"]
    assert found == pytest.approx(finished.test["perplexity"], rel=1e-6)


@pytest.mark.exhaustive
def test_who_keeps_nothing_rebuilds_before_it_predicts(tiny, table):
    rate = {"reconstruction_learning_rate": 30.0}
    finished = tiny.run(TASK, text_file=table, method="fed_recon", **rate)
    with load_run(finished.path).trained as trained:
        results = finished.experiment.evaluation(finished.data.test)(trained)
    rebuilt, before = (of()["perplexity"] for of in (results.overall, results.overall_before))
    assert finished.test["perplexity"] == pytest.approx(rebuilt, rel=1e-6)
    assert abs(rebuilt - before) > 1e-3 * before


@pytest.mark.exhaustive
def test_a_server_with_everybodys_data_has_a_row_for_each_user(run):
    """Its predictions are those of users who keep their rows themselves."""
    central, federated = run("central"), run("head_and_bias")
    head, bias = "language_model/shared_head/kernel", "language_model/personal_bias/embeddings"
    rows = central.trained.weights[bias]
    assert rows.shape[0] == 8 and len(np.unique(rows, axis=0)) == 8
    moved = SimpleNamespace(
        weights={head: central.trained.weights[head]},
        kept_by=Snapshot(federated.data.test.query.client_ids, {bias: rows[:, np.newaxis]}).kept_by,
    )
    evaluate = federated.experiment.evaluation(federated.data.test, (), with_before=False)
    expected = evaluate(moved).overall()["perplexity"]
    (found,) = {results["perplexity"] for results in central.summary["by_samples"].values()}
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.exhaustive
def test_the_mean_of_factors_that_take_turns_has_the_mean_of_their_products(tiny, table):
    """Against NumPy; that of factors that learn together has another."""
    distances = {}
    for name in ("rolora", "lora"):
        options = {"method": name, "proximal": 0.1, "shuffle": "never"}
        trainer = tiny.build(TASK, text_file=table, **options).trainer
        state, furthest = trainer.process.initialize(), []
        for number in range(1, 5):
            data, everybody = trainer._sampling.clients_of_round(number)
            before, cohorts = _factors(state), [everybody, *([client] for client in everybody)]
            made = [
                make_cohort(trainer.model, data, indices, execution=trainer._execution)
                for indices in cohorts
            ]
            state, *alone = (trainer.process.next(state, one.examples).state for one in made)
            after = _factors(state)
            expected = np.mean([np.matmul(*_factors(one)) for one in alone], axis=0)
            assert np.abs(expected - np.matmul(*before)).max() > 1e-3
            furthest.append(np.abs(np.matmul(*after) - expected).max())
            if name == "rolora":
                moved = [(x != y).any() for x, y in zip(before, after)]
                assert moved == [number % 2 == 0, number % 2 == 1]
        distances[name] = max(furthest)
    assert distances["rolora"] < 1e-6 and distances["lora"] > 1e-4


def _factors(state):
    """Returns LoRA's factors, (blocks, numbers, rank) and (blocks, rank, numbers)."""
    weights = state.global_model_weights.trainable
    return [weights[f"language_model/shared_lora_{kind}/kernel"].astype(float) for kind in "ab"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "personal_bias", "lora_matrices": "all"},
            "--lora_matrices=all needs .*=personal_bias has none",
        ),
        (
            {"method": "rolora", "server_optimizer": "adam"},
            "--method=rolora needs --server_optimizer=sgd: adam",
        ),
        ({"missing_vectors": "zeros"}, "--missing_vectors is zeros, which has no effect without"),
        ({"method": "fedperc_projected"}, "=fedperc_projected needs --user_vectors"),
        ({"user_vectors": "v.csv"}, "--user_vectors=v.csv needs --method=fedperc_projected"),
    ],
)
def test_options_that_do_not_fit_the_method_are_the_users_mistake(tiny, table, options, message):
    with pytest.raises(UserError, match=message):
        tiny.run(TASK, text_file=table, **options)


_STYLES = ("boat", "net"), ("queen", "oath"), ("goat", "fern"), ("tram", "lamp")


def _say(random, style):
    return f"the man said {' '.join(random.choice(_STYLES[style], 2))}"


@pytest.mark.exhaustive
def test_a_users_vector_tells_its_style_where_the_user_never_trained(tiny, tmp_path):
    """All begin alike, and a user goes on in one of four styles, which two numbers tell."""
    random = np.random.default_rng(0)
    tables = {"texts": [("user", "text", "context")], "vectors": [("user", "a", "b")]}
    for user in range(24):
        tables["texts"] += [(f"u{user}", _say(random, user % 4), "here") for _ in range(12)]
        tables["vectors"].append((f"u{user}", user % 2 * 2 - 1, user // 2 % 2 * 2 - 1))
    paths = {name: str(tmp_path / f"{name}.csv") for name in tables}
    for name, rows in tables.items():
        with open(paths[name], "w", newline="") as file:
            csv.writer(file).writerows(rows)
    # A base that has read other users of all styles, one after another.
    texts = [_say(random, number // 10 % 4) for number in range(400)]
    sizes = ModelSizes(vocab_size=300, num_layers=1, num_heads=2, dim=16, positions=16)
    work = {"steps": 200, "batch_size": 16, "learning_rate": 0.01, "seed": 0, "settings": {}}
    pretrain_into(tmp_path / "base", texts, start=sizes, progress=False, **work)
    options = {"text_file": paths["texts"], "user_vectors": paths["vectors"]}
    options.update(base_model=str(tmp_path / "base"), evaluate_on="unseen", prefix_length=4)
    options.update(total_rounds=30, clients_per_round=12, rounds_per_checkpoint=30)
    options.update(client_learning_rate=0.04, local_steps=8, proximal=0.0)
    experiment = tiny.build(TASK, method="fedperc_projected", **options)
    trained = tiny.train(experiment, tmp_path / "run")
    test = experiment.data.test
    found = experiment.evaluation(test, (), with_before=False)(trained).overall()["perplexity"]
    # Of 8 words, then of the 2 of the style that the first one shows, then the end.
    without_the_user, with_the_user = (math.exp(math.log(n * 2) / 3) for n in (8, 2))
    alone = TASK.baselines(experiment, test)[BASE_ALONE].metrics["perplexity"]
    assert alone > 0.95 * without_the_user and with_the_user < found < 0.75 * without_the_user
    sent = {crossing.name for crossing in experiment.trainer.crossings}
    assert "updates.language_model/personal_projection/kernel" in sent
    assert not any("vector" in name for name in sent)


@pytest.mark.exhaustive
def test_runs_with_the_same_base_and_texts_evaluate_it_once(run, monkeypatch):
    told = run("seen").summary["test"]["guesses"]
    experiment = run("adapted").experiment
    evaluated = []
    monkeypatch.setattr(evaluator, "build_evaluation", lambda *args, **_: evaluated.append(args))
    test = experiment.data.test
    assert TASK.baselines(experiment, test)[BASE_ALONE].metrics == told[BASE_ALONE]
    fewer = dataclasses.replace(test, query=test.query.head(1))
    with pytest.raises(TypeError):  # What builds the evaluation returns nothing here.
        TASK.baselines(experiment, fewer)
    assert len(evaluated) == 1


def test_a_server_knows_nothing_of_users_who_never_took_part(tiny, table):
    options = {"method": "central_fedperc", "evaluate_on": "unseen"}
    with pytest.raises(UserError, match="central_fedperc needs --evaluate_on=seen"):
        tiny.run(TASK, text_file=table, **options)


def utterances_of(dataset):
    return {tuple(row) for row in dataset.labels.tolist()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["unseen", "generated"])
def test_query_sets_are_trained_on_by_nothing(run, name):
    finished = run(name)
    data = finished.data
    trained, tested = utterances_of(data.train), utterances_of(data.test_clients)
    validated = utterances_of(data.validation.support) | utterances_of(data.validation.query)
    assert len(trained | validated | tested) == 240 == len(trained) + len(validated) + len(tested)
    assert len(finished.evaluated) == 1 + len(finished.summary["by_samples"])
    for held_out, (support, query) in zip([validated, *[tested] * 3], finished.evaluated):
        asked, seen = utterances_of(query), utterances_of(support)
        assert asked and not asked & (trained | seen) and asked | seen <= held_out
        if name == "generated":
            for client in range(query.num_clients):
                (features, labels), (_, others) = query.client(client), support.client(client)
                told = others[others >= 0][:12]
                told = np.pad(told, (0, 12 - len(told)), constant_values=-1)
                assert (features["history"] == told).all() and len(labels)
    # All tests ask the same.
    assert len({frozenset(utterances_of(query)) for _, query in finished.evaluated[1:]}) == 1
    sizes = [support.counts.max() for support, _ in finished.evaluated[1:]]
    assert sizes[-2:] == [1, max(sizes)] and max(sizes) > 1


def reference_perplexity(base, query, personal, context):
    """Returns the perplexity of tokens from the fourth on, by transformers' model and NumPy."""
    model = TFGPT2LMHeadModel.from_pretrained(base.source)
    prefix = (personal[query.example_clients] * context[query.features["context"]])[:, np.newaxis]
    words = model.transformer.wte(query.features["text"][:, :-1])
    logits = model(None, inputs_embeds=tf.concat([prefix, words], axis=1)).logits.numpy()
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, query.labels.clip(0)[..., None], -1)[..., 0]
    return math.exp(-chosen[:, 3:][query.labels[:, 3:] >= 0].mean())


@pytest.mark.exhaustive(but=("seen",))
@pytest.mark.parametrize("name", ["seen", "unseen"])
def test_results_are_those_of_transformers_own_model(run, tiny_base, name):
    """Seen users have what they have kept; others the mean of that, as no noise is asked for."""
    finished = run(name)
    trained, test = finished.trained, finished.data.test_clients
    kept = trained.kept[PERSONAL][:, 0]
    context = trained.weights[CONTEXT]
    _, query = finetuning_sets(test, num_samples=None, seed=0)
    if name == "seen":
        assert trained.has_kept.all()
        personal = kept
    else:
        assert 4 <= trained.has_kept.sum()
        personal = np.tile(kept[trained.has_kept].mean(0), [test.num_clients, 1])
    expected = reference_perplexity(tiny_base, query, personal, context)
    found = finished.summary["by_samples"]["0"]["perplexity"]
    assert found == pytest.approx(expected, rel=1e-4)
