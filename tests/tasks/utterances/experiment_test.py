"""Experiments on utterances: what is tested after how many samples, and where users start."""

from __future__ import annotations

import csv
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from transformers import TFGPT2LMHeadModel

from fedpersonal.errors import UserError
from fedpersonal.evaluation import evaluate as evaluator
from fedpersonal.federated.cohort import make_cohort
from fedpersonal.tasks.utterances.data import finetuning_sets
from fedpersonal.tasks.utterances.task import TASK

PERSONAL = "language_model/personal_embedding/embeddings"
CONTEXT = "language_model/context_embedding/embeddings"
# Without noise, the mean of what seen users have kept can be told exactly.
EXACT_MEAN = {"clip_norm": 1e6, "noise_multiplier": 0.0}
RUNS = {
    "seen": {"method": "fedperc", "clients_per_round": 8},
    "unseen": {"method": "fedperc", "evaluate_on": "unseen", **EXACT_MEAN},
    "generated": {"method": "fedperc_generated"},
    "split_head": {"method": "split_learning"},
    "shared_head": {"method": "meta_learning"},
    "adapted": {"method": "fedsa_lora", "lora_matrices": "all"},
    "head_and_bias": {"method": "meta_learning_bias"},
    "central": {"method": "central_meta_learning_bias"},
}
SENT = {
    "seen": CONTEXT,
    "unseen": CONTEXT,
    "generated": CONTEXT,
    "split_head": "language_model/context_head/embeddings",
    "shared_head": "language_model/head/kernel",
    "adapted": "language_model/shared_lora_a/kernel",
    "head_and_bias": "language_model/shared_head/kernel",
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
                found[name] = tiny.run(TASK, text_file=table, **RUNS[name])
            found[name].evaluated = evaluated
        return found[name]

    return run


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
    ids = tiny_base.config.vocab_size
    # Of LoRA, factors of rank 8 for all that a block of 8 numbers makes.
    made = 8 * (3 + 1 + 4 + 1)
    local = {"split_head": ids * 8, "shared_head": 0, "adapted": 8 * made, "head_and_bias": ids}
    assert summary["local_bytes_per_client"] == 4 * local.get(name, 8)

    sent = {row["name"] for row in finished.boundary}
    assert SENT[name] in finished.crossing
    assert not any("/base/" in other for other in sent)
    assert any("/personal_generator/" in other for other in sent) == (name == "generated")
    means = {other for other in sent if other.startswith("clipped.")}
    assert means == ({f"clipped.{PERSONAL}"} if name == "unseen" else set())
    (frozen,) = [row for row in finished.boundary if row["direction"] == "once"]
    assert frozen["num_bytes"] == summary["frozen_bytes"] > 1000


def test_a_server_with_everybodys_data_has_a_row_for_each_user(run):
    """Its predictions are those of users who keep their rows themselves."""
    central, federated = run("central"), run("head_and_bias")
    head, bias = "language_model/shared_head/kernel", "language_model/personal_bias/embeddings"
    rows = central.trained.weights[bias]
    assert rows.shape[0] == 8 and len(np.unique(rows, axis=0)) == 8
    moved = SimpleNamespace(
        weights={head: central.trained.weights[head]},
        kept_by=lambda ids: (np.ones(len(ids), bool), {bias: rows[:, np.newaxis]}),
    )
    evaluate = federated.experiment.evaluation(federated.data.test, (), with_before=False)
    expected = evaluate(moved).overall()["perplexity"]
    (found,) = {results["perplexity"] for results in central.summary["by_samples"].values()}
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_mean_of_factors_that_take_turns_has_the_mean_of_their_products(tiny, table):
    """Against NumPy; that of factors that learn together has another."""
    distances = {}
    for name in ("rolora", "lora"):
        trainer = tiny.build(TASK, text_file=table, method=name, proximal=0.1).trainer
        state, furthest = trainer.process.initialize(), []
        for number in range(1, 5):
            data, everybody = trainer._draw.clients_of_round(number)
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
    ],
)
def test_options_that_do_not_fit_the_method_are_the_users_mistake(tiny, table, options, message):
    with pytest.raises(UserError, match=message):
        tiny.run(TASK, text_file=table, **options)


def test_a_server_knows_nothing_of_users_who_never_took_part(tiny, table):
    options = {"method": "central_fedperc", "evaluate_on": "unseen"}
    with pytest.raises(UserError, match="central_fedperc needs --evaluate_on=seen"):
        tiny.run(TASK, text_file=table, **options)


def utterances_of(dataset):
    return {tuple(row) for row in dataset.labels.tolist()}


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


@pytest.mark.parametrize("name", ["seen", "unseen"])
def test_results_are_those_of_transformers_own_model(run, tiny_base, name):
    """Seen users have what they have kept; others the mean of that, as no noise is asked for."""
    finished = run(name)
    trained, test = finished.trained, finished.data.test_clients
    kept = trained.kept[PERSONAL][:, 0]
    context = trained.weights[CONTEXT]
    _, query = finetuning_sets(test, num_samples=None, seed=0)
    if name == "seen":
        assert trained.known.all()
        personal = kept
    else:
        assert 4 <= trained.known.sum()
        personal = np.tile(kept[trained.known].mean(0), [test.num_clients, 1])
    expected = reference_perplexity(tiny_base, query, personal, context)
    found = finished.summary["by_samples"]["0"]["perplexity"]
    assert found == pytest.approx(expected, rel=1e-4)
