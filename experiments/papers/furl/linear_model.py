"""What a central linear model reaches with the same inputs: a ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from experiments.papers.runs import Run
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.texts.hashed_words import PADDING
from fedpersonal.evaluation.auc import auc

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import TrainedModel

# Inverse weights of the squared norm: what is best for validation texts counts.
STRENGTHS = (0.1, 0.3, 1.0, 3.0)


def measure_linear(run: Run, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Fits a logistic regression on bags of hashed words and who the user is.

    Args:
        run: The run that is to have the result.
        experiment: One whose data have the features "text", "num_words" and "user".
        trained: What it has trained, which is not looked at.

    Returns:
        The area under the ROC curve of the test texts, or where there are more than two labels the
        accuracy, as `test`, and the best of `STRENGTHS`.
    """
    del run, trained
    from sklearn.linear_model import LogisticRegression

    def measure(model: LogisticRegression, matrix: scipy.sparse.csr_matrix, labels: np.ndarray):
        if experiment.data.is_binary:
            return auc(labels, model.decision_function(matrix))
        return float(model.score(matrix, labels))

    data, num_ids = experiment.data, experiment.data.vocabulary.size
    train, *parts = (
        (as_matrix(part, num_ids, data.num_users), part.labels)
        for part in (data.train, data.validation.query, data.test.query)
    )
    found = []
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=200).fit(*train)
        found.append((*(measure(model, *part) for part in parts), strength))
    _, measured, strength = max(found)
    metric = "auc" if experiment.data.is_binary else "accuracy"
    return {"test": {metric: measured}, "strength": strength}


def as_matrix(part: ClientDataset, num_ids: int, num_users: int) -> scipy.sparse.csr_matrix:
    """Returns a row a text, (n, num_ids + num_users): its bag, of length 1, and a 1 for its user.

    Args:
        part: Texts with the features "text", "num_words" and "user".
        num_ids: Ids of words.
        num_users: Users who train.
    """
    text, counts = part.features["text"], part.features["num_words"]
    is_word = text != PADDING
    shares = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    starts = np.append(0, np.cumsum(counts))
    bags = scipy.sparse.csr_matrix((shares, text[is_word], starts), (len(text), num_ids))
    whose = np.arange(len(text) + 1)
    ones = np.ones(len(text))
    users = scipy.sparse.csr_matrix((ones, part.features["user"], whose), (len(text), num_users))
    return scipy.sparse.hstack([bags, users], format="csr")
