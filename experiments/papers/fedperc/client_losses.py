"""Each client's loss on what it is tested on, and on those lines that nobody has trained on.

Characters repeat themselves and each other: a test utterance that stands word for word among those
for training, but for case and marks, is no test of who knows what.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.runs import Run
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.texts.splitting import split_words

if TYPE_CHECKING:
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import TrainedModel

# Utterances with so many words are told apart: short ones are often repeated.
LONG = 6


def measure_losses(
    run: Run, experiment: Experiment, trained: TrainedModel, *, base_alone: bool = False
) -> dict[str, Any]:
    """Tests seen users after fine-tuning on all samples, or the base model by itself.

    Returns:
        `all` and `new`, each with `loss` and `tokens`, sums of each user's query set, of which
        `new` has what no utterance for training repeats; and `repeated`, and `repeated_long` among
        utterances of 6 words and more, the shares of query sets that are repeated.
    """
    from fedpersonal.tasks.utterances.base_model import evaluate_alone

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
