"""The area under the ROC curve of the texts of all clients together."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.evaluation.auc import auc
from fedpersonal.evaluation.client_results import ClientResults


@dataclasses.dataclass(frozen=True, eq=False)
class ResultsWithArea(ClientResults):
    """Results of labels of 0 and 1, with `auc`.

    Attributes:
        query: What was predicted.
    """

    query: ClientDataset

    def overall(self) -> dict[str, float]:
        """Returns the metrics over all clients, after personalisation."""
        return {**super().overall(), **area_metric(self, self.query)}


def area_metric(results: ClientResults, query: ClientDataset) -> dict[str, float]:
    """Returns the area as `auc`; nothing where all labels are the same."""
    predictions = results.predictions
    assert predictions is not None
    is_real = np.arange(predictions.shape[1]) < query.counts[:, np.newaxis]
    area = auc(query.labels, predictions[is_real])
    return {} if math.isnan(area) else {"auc": area}
