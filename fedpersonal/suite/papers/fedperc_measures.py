"""Measurements for FedPerC's tables after a training: base model, new lines, embeddings, times.

**The base model without a prefix** is a reference for FedPerC.

**Losses on new lines.** Characters repeat themselves and each other: a test utterance that a
training utterance repeats word for word, except for case and punctuation, does not test
personalisation.

**Specificity of embeddings** (section 4). A user's held-out utterances are predicted with the
user's personal embedding, and with those of other users who are most often in the same context. The
utterances' context embeddings do not change, and nothing is fine-tuned. A user *beats the median*
if the user's embedding reaches a lower loss per token than the median of the others', and *beats
the mean* if it is lower than the mean of the others' losses. A *pair* is a user and one of the
others, and is *won* if the user's embedding reaches the lower loss. If embeddings are unrelated to
their users, half of all pairs are won by chance.

**Times** (Table 3). A train pass is a step of one user: forward and backward through the model on
15 utterances, and Adam's update of the trained variables. A test pass predicts 15 utterances, with
their loss.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.papers.jobs import Job
from fedpersonal.suite.readers.labelled_texts import most_frequent_labels
from fedpersonal.suite.readers.sentences import split_words
from fedpersonal.suite.tasks.utterances.methods import FEDERATED

if TYPE_CHECKING:
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import Kept, TrainedModel

# Utterances of at least this number of words are reported separately, since short ones are often
# repeated.
LONG = 6
SHARES = ("beats_median", "beats_mean", "pairs_won")
UTTERANCES = 15
_WARM_UPS = 3


def test_base_model(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Tests the base model without a prefix on the query sets of FedPerC's run of the same seed.

    See `evaluate_base_model`.
    """
    from fedpersonal.suite.models.pretraining import NOTES
    from fedpersonal.suite.tasks.utterances.models import evaluate_base_model
    from fedpersonal.training.tested import test_summary

    data = experiment.data
    results = evaluate_base_model(
        data.base, experiment.model.frozen, data.test.query, experiment.evaluator
    )
    clients, tokens = results.per_client(), results.after["perplexity"][:, 1]
    num_parameters = sum(value.size for value in data.base.weights.values())
    config = data.base.config
    return {
        "by_samples": {"0": test_summary(results, results.overall())},
        "clients": {name: clients[name] for name in ("client", "perplexity_after")},
        "tokens": tokens,
        "base": f"{data.base.name}: {num_parameters:,} parameters, {config.n_layer} layers of "
        f"{config.n_embd}, {config.vocab_size:,} tokens",
        "pretrained_here": (pathlib.Path(data.base.source) / NOTES).exists(),
    }


def describe_base(summary: Mapping[str, Any]) -> str:
    """Returns a description of the base model in a summary of `test_base_model`."""
    if not summary["pretrained_here"]:
        return f"{summary['base']}."
    return (
        f"{summary['base']}; a small model that was pretrained here, on texts of users who take no "
        "part. Its perplexities cannot be compared with those of the paper's DistilGPT2, which has "
        "82 million parameters and other tokens; only the order of the methods can."
    )


def measure_losses(
    job: Job, experiment: Experiment, trained: TrainedModel, *, base_alone: bool = False
) -> dict[str, Any]:
    """Tests seen users after fine-tuning on all samples, or the base model without a prefix.

    Returns:
        `all` and `new`, each with `loss` and `tokens`, sums over each user's query set; `new` only
        counts utterances that no training utterance repeats. `repeated` and, among utterances of at
        least 6 words, `repeated_long` are the shares of repeated utterances in query sets.
    """
    from fedpersonal.suite.tasks.utterances.models import evaluate_base_model

    data, evaluator = experiment.data, experiment.evaluator
    query, trained_lines = data.test.query, set(words_of(data.train, data.base.tokenizer))
    lines = words_of(query, data.base.tokenizer)
    repeated = np.array([words in trained_lines for words in lines], bool)
    is_long = np.array([len(words) >= LONG for words in lines], bool)
    summary: dict[str, Any] = {
        "clients": query.client_ids,
        "repeated": float(repeated.mean()),
        "repeated_long": float(repeated[is_long].mean()) if is_long.any() else 0.0,
    }
    for name, kept in (("all", np.ones_like(repeated)), ("new", ~repeated)):
        part = dataclasses.replace(data.test, query=query.filter_examples(kept))
        if base_alone:
            results = evaluate_base_model(data.base, experiment.model.frozen, part.query, evaluator)
        else:
            results = experiment.evaluation(part, evaluator.finetuning, with_before=False)(trained)
        loss, tokens = results.after["perplexity"].T
        summary[name] = {"loss": loss, "tokens": tokens}
    return summary


def words_of(dataset: ClientDataset, tokenizer: GPT2TokenizerFast) -> list[tuple[str, ...]]:
    """Returns the words of each utterance, in lower case and without punctuation."""
    texts = tokenizer.batch_decode([row[row >= 0] for row in dataset.labels], True)
    return [
        tuple(word for words in split_words(text) for word in words if word[0].isalnum())
        for text in texts
    ]


def measure_specificity(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns the losses with users' and others' embeddings, and the shares of `shares`."""
    from fedpersonal.runs.kept import Snapshot

    data = experiment.data
    assert trained.kept_by  # Users keep their embeddings.
    kept = trained.kept_by(data.test.query.client_ids.tolist())
    evaluate = experiment.evaluation(data.test, (), brings_kept=True, with_before=False)
    contexts = most_frequent_labels(
        dataclasses.replace(data.train, labels=data.train.features["context"])
    )

    def from_start(start: Kept) -> ClientResults:
        has_values, values = start
        ids = data.test.query.client_ids[has_values]
        snapshot = Snapshot(ids, {name: value[has_values] for name, value in values.items()})
        return evaluate(dataclasses.replace(trained, kept_by=snapshot.kept_by))

    losses, others = compare_embeddings(
        from_start,
        kept,
        contexts,
        seed=job.options.seed,
    )
    return {**shares(losses, others), "own_loss": losses, "others_losses": others}


def compare_embeddings(
    evaluate: Callable[[Kept], ClientResults],
    kept: Kept,
    contexts: np.ndarray,
    *,
    max_others: int = 20,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Evaluates users with their embeddings and with those of other users.

    Args:
        evaluate: Maps the local values of users to the results on the held-out utterances, with
            users in the same order. It is called once, and then at most `max_others` times.
        kept: Which users have an embedding, bool (num_users,), and arrays (num_users, ...) by
            variable; users without an embedding are left out.
        contexts: int (num_users,): the most frequent context of each user.
        max_others: Largest number of others for a user; if there are more, they are sampled.
        seed: Seed of the samples.

    Returns:
        The loss per token with a user's embedding, float64 (num_users,), and with others',
        (num_users, most); NaN for missing others.
    """
    has_values, values = kept
    sources = sample_others(has_values, contexts, max_others=max_others, seed=seed)

    def losses(users: np.ndarray) -> np.ndarray:
        results = evaluate((has_values, {name: value[users] for name, value in values.items()}))
        sums = results.after["loss"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(has_values, sums[:, 0] / sums[:, 1], np.nan)

    all_users = np.arange(len(has_values))
    user_losses, others = losses(all_users), np.full(sources.shape, np.nan)
    for column, source in enumerate(sources.T):
        by_source = losses(np.where(source >= 0, source, all_users))
        others[:, column] = np.where(source >= 0, by_source, np.nan)
    return user_losses, others


def shares(losses: np.ndarray, others: np.ndarray) -> dict[str, float]:
    """Returns the shares of users that beat the median and the mean, and of pairs won.

    It adds `num_users` and `num_pairs`, the numbers of compared users and pairs; without any,
    shares are NaN. Losses are those of `compare_embeddings`.
    """
    compared = np.isfinite(losses) & np.isfinite(others).any(axis=1)
    losses, others = losses[compared], others[compared]
    pairs = np.isfinite(others)
    by_name = dict.fromkeys(SHARES, float("nan"))
    if len(losses):
        values = (
            np.mean(losses < np.nanmedian(others, axis=1)),
            np.mean(losses < np.nanmean(others, axis=1)),
            np.mean((losses[:, np.newaxis] < others)[pairs]),
        )
        by_name = dict(zip(SHARES, map(float, values)))
    return {"num_users": len(losses), "num_pairs": int(pairs.sum()), **by_name}


def sample_others(
    has_values: np.ndarray, contexts: np.ndarray, *, max_others: int, seed: int
) -> np.ndarray:
    """Samples other users with an embedding and the same context for each user.

    Arguments are those of `compare_embeddings`.

    Returns:
        int64 (num_users, most others of a user): indices of users, all different in a row; -1 for
        missing others.
    """
    rng = generator(Purpose.OTHER_USERS, seed)
    groups = [np.flatnonzero(has_values & (contexts == c)) for c in np.unique(contexts[has_values])]
    most = min(max_others, max((len(group) - 1 for group in groups), default=0))
    sources = np.full([len(has_values), most], -1, np.int64)
    for group in groups:
        # All users of a group shift by the same number, so each is equally often another's.
        for column, shift in enumerate(1 + rng.permutation(len(group) - 1)[:most]):
            sources[group, column] = np.roll(group, -shift)
    return sources


def time_passes(
    job: Job, experiment: Experiment, trained: TrainedModel, *, repeats: int
) -> dict[str, Any]:
    """Times the passes of all methods in turn, after a few that are not counted.

    The user is the one with the most utterances; passes have the first 15 of them.

    Returns:
        `train` and `test` by method, each with the `median` and the standard deviation, `sd`, in
        milliseconds.
    """
    import tensorflow as tf

    del trained
    # The initial values of heads do not change times.
    methods = [method.name for method in FEDERATED if not (method.is_fresh or method.parts)]
    passes = {
        (name, kind): run_pass
        for name in methods
        for kind, run_pass in _passes(job, experiment, name).items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in passes}
    for _ in range(_WARM_UPS + repeats):
        for key, run_pass in passes.items():
            start = time.perf_counter()
            tf.nest.map_structure(lambda tensor: tensor.numpy(), run_pass())
            times[key].append(1000 * (time.perf_counter() - start))
    counted = {key: milliseconds[_WARM_UPS:] for key, milliseconds in times.items()}
    return {
        name: {
            kind: {
                "median": statistics.median(counted[name, kind]),
                "sd": statistics.stdev(counted[name, kind]),
            }
            for kind in ("train", "test")
        }
        for name in methods
    }


def _passes(job: Job, experiment: Experiment, name: str) -> dict[str, Callable[[], Any]]:
    """Returns functions that run a train and a test pass of one user; the first call compiles."""
    import tensorflow as tf

    from fedpersonal.client.pooled import run_pooled_phase
    from fedpersonal.client.pooled_batches import predict_examples
    from fedpersonal.client.values import ClientValues
    from fedpersonal.federated.packing import as_examples, pack_clients
    from fedpersonal.methods.phases import GradientPhase

    task, data = job.task, experiment.data
    options = job.options.replace(method=name, local_steps=1, client_batch_size=UTTERANCES)
    built = task.build(task.sizes(data), options)
    model, algorithm = built.model, built.algorithm
    user = data.train.subset([int(data.train.counts.argmax())]).head(UTTERANCES)
    clients, phase = task.training_clients(model, user, options), algorithm.phases[-1]
    assert isinstance(clients, ClientDataset) and isinstance(phase, GradientPhase)
    packed = pack_clients(
        model,
        clients,
        [0],
        clients_per_shard=1,
        batch_size=UTTERANCES,
        touched_data=algorithm.touched_data,
    )
    packed = tf.nest.map_structure(tf.constant, packed)
    initialize = tf.function(
        lambda: model.initial_values(model.variables, tf.constant([options.seed, 0])),
        autograph=False,
    )
    values = initialize()
    local = {v.name: values.pop(v.name)[tf.newaxis] for v in model.local_variables}

    @tf.function(autograph=False)
    def train(shared, local, packed):
        examples, start = as_examples(model, packed), ClientValues(shared, local)
        moved, *_ = run_pooled_phase(model, phase, start, examples, with_metrics=False)
        # One number of each variable: reading all of them would be timed, too.
        return {key: tf.reshape(value, [-1])[0] for key, value in moved.per_client.items()}

    @tf.function(autograph=False)
    def test(shared, local, packed):
        return predict_examples(model, ClientValues(shared, local), as_examples(model, packed))[0]

    return {
        "train": lambda: train(values, local, packed),
        "test": lambda: test(values, local, packed),
    }
