"""What FedPerC's tables measure after a training: the base alone, lines, embeddings, times.

**The base model alone** is what FedPerC is compared with.

**Losses on new lines.** Characters repeat themselves and each other: a test utterance that stands
word for word among those for training, but for case and marks, is no test of who knows what.

**Whose embedding it is** (section 4). A user's held-out utterances are predicted behind the user's
own personal embedding, and behind those of others who are most often in the same context; the
utterances' context embeddings stay as they are, and nothing is fine-tuned. A user *beats the
median* if the own embedding gives a lower loss a token than the median of those others does, and
*beats the mean* if it does so than their losses' mean. A *pair* is a user and one of the others,
and is *won* if the own embedding gives the lower loss. Of embeddings that hold nothing of their
users, half of all pairs are won by chance.

**Times** (Table 3). A train pass is a step of one user: forward and backward through the model on
15 utterances, and Adam's update of what moves. A test pass predicts 15 utterances, with their loss.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.jobs import Job
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.labelled_texts import most_frequent_labels
from fedpersonal.data.sentences import split_words
from fedpersonal.draws import Purpose, generator
from fedpersonal.tasks.utterances.methods import FEDERATED

if TYPE_CHECKING:
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import Kept, TrainedModel

# Utterances with so many words are told apart: short ones are often repeated.
LONG = 6
SHARES = ("beats_median", "beats_mean", "pairs_won")
UTTERANCES = 15
_WARM_UPS = 3


def test_base_model(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Tests the base model alone on the query sets of FedPerC's run with the same seed.

    See `evaluate_alone`.
    """
    from fedpersonal.models.pretraining import NOTES
    from fedpersonal.runs.tested import test_summary
    from fedpersonal.tasks.utterances.models import evaluate_alone

    data = experiment.data
    results = evaluate_alone(
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
    """Returns what a base model is, of the summary that `test_base_model` gives."""
    if not summary["pretrained_here"]:
        return f"{summary['base']}."
    return (
        f"{summary['base']}; a small one that was pretrained here, on what users who do not take "
        "part have written. Its perplexities cannot be compared with those of the paper's "
        "DistilGPT2, of 82 million parameters and other tokens: only the order of the methods can."
    )


def measure_losses(
    job: Job, experiment: Experiment, trained: TrainedModel, *, base_alone: bool = False
) -> dict[str, Any]:
    """Tests seen users after fine-tuning on all samples, or the base model by itself.

    Returns:
        `all` and `new`, each with `loss` and `tokens`, sums of each user's query set, of which
        `new` has what no utterance for training repeats; and `repeated`, and `repeated_long` among
        utterances of 6 words and more, the shares of query sets that are repeated.
    """
    from fedpersonal.tasks.utterances.models import evaluate_alone

    data, evaluator = experiment.data, experiment.evaluator
    query, known = data.test.query, set(words_of(data.train, data.base.tokenizer))
    asked = words_of(query, data.base.tokenizer)
    repeated = np.array([words in known for words in asked], bool)
    is_long = np.array([len(words) >= LONG for words in asked], bool)
    found: dict[str, Any] = {
        "clients": query.client_ids,
        "repeated": float(repeated.mean()),
        "repeated_long": float(repeated[is_long].mean()) if is_long.any() else 0.0,
    }
    for name, kept in (("all", np.ones_like(repeated)), ("new", ~repeated)):
        part = dataclasses.replace(data.test, query=query.filter_examples(kept))
        if base_alone:
            results = evaluate_alone(data.base, experiment.model.frozen, part.query, evaluator)
        else:
            results = experiment.evaluation(part, evaluator.finetuning, with_before=False)(trained)
        loss, tokens = results.after["perplexity"].T
        found[name] = {"loss": loss, "tokens": tokens}
    return found


def words_of(dataset: ClientDataset, tokenizer: GPT2TokenizerFast) -> list[tuple[str, ...]]:
    """Returns the words of each utterance, in lower case and without marks."""
    texts = tokenizer.batch_decode([row[row >= 0] for row in dataset.labels], True)
    return [
        tuple(word for words in split_words(text) for word in words if word[0].isalnum())
        for text in texts
    ]


def measure_specificity(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns losses and shares of the test utterances of seen users."""
    from fedpersonal.runs.kept import Snapshot

    data = experiment.data
    assert trained.kept_by  # Users keep their embeddings.
    kept = trained.kept_by(data.test.query.client_ids.tolist())
    evaluate = experiment.evaluation(data.test, (), brings_kept=True, with_before=False)
    contexts = most_frequent_labels(
        dataclasses.replace(data.train, labels=data.train.features["context"])
    )

    def from_start(start: Kept) -> ClientResults:
        known, values = start
        ids = data.test.query.client_ids[known]
        snapshot = Snapshot(ids, {name: value[known] for name, value in values.items()})
        return evaluate(dataclasses.replace(trained, kept_by=snapshot.kept_by))

    own, others = compare_embeddings(
        from_start,
        kept,
        contexts,
        seed=job.options.seed,
    )
    return {**shares(own, others), "own_loss": own, "others_losses": others}


def compare_embeddings(
    evaluate: Callable[[Kept], ClientResults],
    kept: Kept,
    contexts: np.ndarray,
    *,
    max_others: int = 20,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Evaluates users behind their own embeddings and behind others'.

    Args:
        evaluate: Maps what each user starts from to the results on the held-out utterances, the
            users in the same order; it is called once and then at most `max_others` times.
        kept: Who has an embedding, bool (num_users,), and variable name to (num_users, ...); only
            users with one take part.
        contexts: int (num_users,): the context that each is most often in.
        max_others: How many others a user is compared with, drawn at random, if there are more.
        seed: Seed of these draws.

    Returns:
        The loss a token behind a user's own embedding, float64 (num_users,), and behind others',
        (num_users, most); NaN where there are fewer.
    """
    known, values = kept
    sources = draw_others(known, contexts, max_others=max_others, seed=seed)

    def losses(of: np.ndarray) -> np.ndarray:
        results = evaluate((known, {name: value[of] for name, value in values.items()}))
        sums = results.after["loss"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(known, sums[:, 0] / sums[:, 1], np.nan)

    everybody = np.arange(len(known))
    own, others = losses(everybody), np.full(sources.shape, np.nan)
    for column, of in enumerate(sources.T):
        others[:, column] = np.where(of >= 0, losses(np.where(of >= 0, of, everybody)), np.nan)
    return own, others


def shares(own: np.ndarray, others: np.ndarray) -> dict[str, float]:
    """Returns the shares of users that beat the median and the mean, and of pairs won.

    Beside them `num_users` and `num_pairs` that there are to compare; without any, shares are NaN.
    Losses are those of `compare_embeddings`.
    """
    compared = np.isfinite(own) & np.isfinite(others).any(axis=1)
    own, others = own[compared], others[compared]
    pairs = np.isfinite(others)
    found = dict.fromkeys(SHARES, float("nan"))
    if len(own):
        values = (
            np.mean(own < np.nanmedian(others, axis=1)),
            np.mean(own < np.nanmean(others, axis=1)),
            np.mean((own[:, np.newaxis] < others)[pairs]),
        )
        found = dict(zip(SHARES, map(float, values)))
    return {"num_users": len(own), "num_pairs": int(pairs.sum()), **found}


def draw_others(
    known: np.ndarray, contexts: np.ndarray, *, max_others: int, seed: int
) -> np.ndarray:
    """Draws for each user others with an embedding and the same context.

    Arguments are those of `compare_embeddings`.

    Returns:
        int64 (num_users, most others of any): indices of users, all different in a row, -1 where
        there are fewer.
    """
    rng = generator(Purpose.OTHER_USERS, seed)
    groups = [np.flatnonzero(known & (contexts == c)) for c in np.unique(contexts[known])]
    most = min(max_others, max((len(group) - 1 for group in groups), default=0))
    sources = np.full([len(known), most], -1, np.int64)
    for group in groups:
        # Everybody in a group moves on by as many places, so that each is as often another's.
        for column, shift in enumerate(1 + rng.permutation(len(group) - 1)[:most]):
            sources[group, column] = np.roll(group, -shift)
    return sources


def time_passes(
    job: Job, experiment: Experiment, trained: TrainedModel, *, repeats: int
) -> dict[str, Any]:
    """Times the passes of all methods by turns, after a few that are not counted.

    The user is the one with the most utterances, of which the first 15 are taken.

    Returns:
        Method to `train` and `test`, each with the `median` and the standard deviation, `sd`, in
        milliseconds.
    """
    import tensorflow as tf

    del trained
    # However heads start, they take as long.
    methods = [method.name for method in FEDERATED if not (method.is_fresh or method.parts)]
    passes = {
        (name, what): work
        for name in methods
        for what, work in _passes(job, experiment, name).items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in passes}
    for _ in range(_WARM_UPS + repeats):
        for key, work in passes.items():
            start = time.perf_counter()
            tf.nest.map_structure(lambda tensor: tensor.numpy(), work())
            times[key].append(1000 * (time.perf_counter() - start))
    counted = {key: own[_WARM_UPS:] for key, own in times.items()}
    return {
        name: {
            what: {
                "median": statistics.median(counted[name, what]),
                "sd": statistics.stdev(counted[name, what]),
            }
            for what in ("train", "test")
        }
        for name in methods
    }


def _passes(job: Job, experiment: Experiment, name: str) -> dict[str, Callable[[], Any]]:
    """Returns functions that do a train and a test pass of one user, compiled at the first call."""
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
    draw = tf.function(
        lambda: model.initial_values(model.variables, tf.constant([options.seed, 0])),
        autograph=False,
    )
    values = draw()
    own = {v.name: values.pop(v.name)[tf.newaxis] for v in model.local_variables}

    @tf.function(autograph=False)
    def train(shared, own, packed):
        examples, start = as_examples(model, packed), ClientValues(shared, own)
        moved, *_ = run_pooled_phase(model, phase, start, examples, with_metrics=False)
        # Reading every number would be timed, too.
        return {key: tf.reshape(value, [-1])[0] for key, value in moved.own.items()}

    @tf.function(autograph=False)
    def test(shared, own, packed):
        return predict_examples(model, ClientValues(shared, own), as_examples(model, packed))[0]

    return {"train": lambda: train(values, own, packed), "test": lambda: test(values, own, packed)}
