"""Chooses the number of passes of clients that train alone, by validation."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.experiment import Experiment

EPOCHS = "standalone_epochs"
# The number of passes grows by a factor until this many in a row have not improved validation.
_FACTOR, _PATIENCE, _MOST = 4, 2, 256
# The number without validation clients, the same as for fine-tuning.
_USUAL = 5


def choose_epochs(experiment: Experiment) -> Experiment:
    """Returns the experiment with the number of passes that validates best.

    Training alone has no rounds, and any fixed number of passes would be too few or too many. The
    numbers 1, 4, 16 and so on are tried on the validation clients, each from the initial weights.

    Args:
        experiment: An experiment. It is returned unchanged if its method trains in rounds, or if
            options fix the number of passes.
    """
    options, method = experiment.options, experiment.method
    is_open = EPOCHS in method.options.declarations() and not getattr(options, EPOCHS)
    if not is_open:
        return experiment
    if not experiment.data.validation.query.num_examples:
        return _with_epochs(experiment, _USUAL)
    metric, mode = experiment.watched_metric
    values: dict[int, float] = {}
    best, least, epochs = 1, math.inf, 1
    # A learning rate too high for this many passes shows in the metric; silence NumPy's warnings.
    with experiment.trainer.untrained() as trained, np.errstate(over="ignore", invalid="ignore"):
        while epochs <= min(_MOST, best * _FACTOR**_PATIENCE):
            candidate = _with_epochs(experiment, epochs)
            values[epochs] = candidate.task.validate(candidate)(trained).overall()[metric]
            loss = values[epochs] if mode == "min" else -values[epochs]
            if loss < least:
                best, least = epochs, loss
            epochs *= _FACTOR
    validation = {str(n): v for n, v in values.items()}
    entry = {"epochs": best, "metric": metric, "validation": validation}
    chosen = _with_epochs(experiment, best)
    client_facts = {**experiment.client_facts, "standalone": entry}
    return dataclasses.replace(chosen, client_facts=client_facts)


def _with_epochs(experiment: Experiment, epochs: int) -> Experiment:
    options = experiment.options.replace(**{EPOCHS: epochs})
    finetuning = experiment.method.finetuning(options, experiment.layers)
    evaluator = dataclasses.replace(experiment.evaluator, finetuning=finetuning)
    return dataclasses.replace(experiment, options=options, evaluator=evaluator)
