"""Validation over the rounds of a run: the best round, and the last round compared with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedpersonal.errors import with_count
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better, main_metric

_PREFIX = "eval/"


@dataclasses.dataclass(frozen=True)
class BestRound:
    """The round that validated best, and the last one that was validated.

    Attributes:
        metric: The metric, such as `rmse`.
        best_round: The first round with the best value.
        best: That value.
        last_round: The last round with a value.
        last: That value.
    """

    metric: str
    best_round: int
    best: float
    last_round: int
    last: float

    @property
    def is_last(self) -> bool:
        """Whether no round was better than the last one."""
        return self.best_round == self.last_round

    def sentence(self, unit: str = "", tested_round: int | None = None) -> str:
        """Returns both rounds in a sentence.

        Args:
            unit: The unit of the metric, such as `stars`.
            tested_round: The round whose model was tested; None for the last.
        """
        unit = f" {unit}" if unit else ""
        start = f"validation {self.metric} was best in round {self.best_round:,} ({self.best:.4f})"
        if self.is_last:
            return f"{start}, the last one"
        worse = abs(self.last - self.best)
        end = f"; in the last round, {self.last_round:,}, it is {worse:.4f}{unit} worse"
        if tested_round not in (None, self.last_round):
            end += f"; the model of round {tested_round:,} was tested"
        return start + end


def passes_sentence(choice: Mapping[str, Any]) -> str:
    """Returns a sentence on the number of passes that validated best.

    Args:
        choice: The number of `epochs`, the `metric`, and its value in `validation` for each number
            of passes that was tried, as a text.
    """
    values = ", ".join(f"{value:.4f} with {n}" for n, value in choice["validation"].items())
    passes = with_count(choice["epochs"], "passes")
    return f"each client trains alone, in {passes}: validation {choice['metric']} is {values}"


def is_passes(value: Any) -> bool:
    """Reports whether a value is an argument of `passes_sentence`."""
    if not isinstance(value, dict) or not isinstance(value.get("validation"), dict):
        return False
    numbers = [value.get("epochs"), *value["validation"].values()]
    return "metric" in value and all(isinstance(number, (int, float)) for number in numbers)


def find_best_round(rounds: pd.DataFrame, metrics: Sequence[str] = ()) -> BestRound | None:
    """Finds the round of a run that validated best.

    Args:
        rounds: `metrics.csv`, with a row for each round.
        metrics: The main metrics of the run, in order of preference; the default metrics otherwise.

    Returns:
        The round; None if fewer than two rounds were validated by a metric for which it is defined
        whether lower or higher is better.
    """
    columns = [str(name) for name in rounds if str(name).startswith(_PREFIX)]
    names = [name[len(_PREFIX) :] for name in columns if rounds[name].notna().sum() > 1]
    names = [name for name in names if lower_is_better(name) is not None]
    metric = next(iter(find_metrics(metrics, names)), main_metric(names))
    if metric is None:
        return None
    values = rounds.set_index("round")[_PREFIX + metric].dropna()
    best = values.idxmin() if lower_is_better(metric) else values.idxmax()
    last = values.index[-1]
    return BestRound(metric, int(best), float(values[best]), int(last), float(values[last]))
