"""How long clients train that train alone: as many passes as validate best."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment

EPOCHS = "standalone_epochs"
# Numbers of passes grow by a factor, until so many in a row have not validated better.
_FACTOR, _PATIENCE, _MOST = 4, 2, 256
# Without validation clients, as many as fine-tuning makes.
_USUAL = 5


def choose_epochs(experiment: Experiment) -> Experiment:
    """Returns the experiment with the number of passes that validates best.

    Other methods train for many rounds. Training alone has none, and any fixed number of passes
    would be too few or too many: 1, 4, 16 and so on are tried, each from the initial weights, on
    the validation clients.

    Args:
        experiment: Of any method; those that train in rounds, or whose number of passes is given,
            are returned as they are.
    """
    options, method = experiment.options, experiment.method
    is_open = EPOCHS in method.options.declarations() and not getattr(options, EPOCHS)
    if not is_open:
        return experiment
    if not experiment.data.validation.query.num_examples:
        return _with_epochs(experiment, _USUAL)
    metric, mode = experiment.watched
    values: dict[int, float] = {}
    best, least, epochs = 1, math.inf, 1
    # A rate that is too high for so many passes shows in their value, without NumPy's warnings.
    with experiment.trainer.untrained() as trained, np.errstate(over="ignore", invalid="ignore"):
        while epochs <= min(_MOST, best * _FACTOR**_PATIENCE):
            tried = _with_epochs(experiment, epochs)
            values[epochs] = tried.task.validate(tried)(trained).overall()[metric]
            loss = values[epochs] if mode == "min" else -values[epochs]
            if loss < least:
                best, least = epochs, loss
            epochs *= _FACTOR
    found = {"epochs": best, "metric": metric, "validation": {str(n): v for n, v in values.items()}}
    chosen = _with_epochs(experiment, best)
    return dataclasses.replace(chosen, findings={**experiment.findings, "standalone": found})


def _with_epochs(experiment: Experiment, epochs: int) -> Experiment:
    options = experiment.options.replace(**{EPOCHS: epochs})
    finetuning = experiment.method.finetuning(options, experiment.layers)
    evaluator = dataclasses.replace(experiment.evaluator, finetuning=finetuning)
    return dataclasses.replace(experiment, options=options, evaluator=evaluator)
