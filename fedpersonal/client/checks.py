"""Whether an algorithm's phases fit a model, told before anything slow."""

from __future__ import annotations

from collections.abc import Sequence

from fedpersonal.algorithm import GradientPhase, Phase
from fedpersonal.client.optimizer import optimizer_of
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import check_names


def check_phases(model: PartitionedModel, phases: Sequence[Phase]) -> None:
    """Checks what phases name, and their optimizers, against a model.

    Raises:
        UserError: If one names no variable, or a frozen one, or an optimizer cannot be used.
    """
    for i, phase in enumerate(phases):
        if not isinstance(phase, GradientPhase):
            continue
        if not isinstance(phase.variables, str):
            check_names(f"phase {i}: variables", phase.variables, model.variables)
        keys = [key for key in phase.optimizers if key != "local"]
        check_names(f"phase {i}: optimizers", keys, model.variables)
        for variable in model.variables:
            if phase.moves(variable):
                optimizer_of(phase, variable)
                if phase.ahead is not None:
                    optimizer_of(phase.ahead, variable)
