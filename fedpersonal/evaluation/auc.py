"""How well scores rank examples of one class before those of the other."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedpersonal.errors import UserError
from fedpersonal.evaluation.column_checks import check_column, check_numbers


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Returns the area under the ROC curve, of all examples pooled.

    It is the chance that a positive example has a higher score than a negative one, where equal
    scores count half; nothing is binned.

    Args:
        labels: (num_examples,) of 0 and 1.
        scores: (num_examples,) floats, such as logits.

    Returns:
        The area; NaN where the examples are all of one class, or there are none.

    Raises:
        UserError: If a label is neither 0 nor 1, a score is not finite, or they are not as many.
    """
    truth = check_column("labels", labels, len(np.asarray(scores)))
    logits = check_numbers("scores", scores, len(truth))
    if not np.isin(truth, (0, 1)).all():
        raise UserError("labels must be 0 or 1")
    if len(np.unique(truth)) < 2:
        return math.nan
    from sklearn.metrics import roc_auc_score  # Its import takes longer than help may.

    return float(roc_auc_score(truth, logits))
