"""What a phase moves, what it is pulled to, and how the phase applies the model."""

from __future__ import annotations

from fedpersonal.algorithm import GradientPhase, Phase
from fedpersonal.client.values import ClientValues, Examples, own_copies, sent_for_copy
from fedpersonal.model.partition import PartitionedModel, Values


def moving_names(model: PartitionedModel, phase: Phase) -> list[str]:
    """Returns the names of the variables that a phase moves."""
    return [v.name for v in model.variables if phase.moves(v)]


def readings(model: PartitionedModel, phase: GradientPhase) -> list[PartitionedModel]:
    """Returns the model as a phase applies it: as it is, with personal copies, or both ways."""
    if not model.copies:
        return [model]
    moving, copied = set(moving_names(model, phase)), set(model.copies.values())
    is_personal = any(v.is_personal and v.name in moving for v in model.local_variables)
    is_shared = not is_personal or bool(copied & moving)
    return [model] * is_shared + [model.personal] * is_personal


def proximal_anchors(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    moving: Values,
    examples: Examples,
) -> Values:
    """Returns what a phase's proximal term pulls variables to: (C, ...), or (1, ...) for all."""
    if not phase.proximal:
        return {}
    local = {v.name for v in model.local_variables}
    anchors = {k: v for k, v in moving.items() if k not in local}
    # Of copies, that is what the server sent, however what they copy has moved since.
    own = [name for name in moving if name in model.copies]
    pulled = {name: sent_for_copy(model, name, values.shared, examples) for name in own}
    return {**anchors, **pulled}


def split_values(
    model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples
) -> tuple[ClientValues, Values]:
    """Returns the values that a phase leaves alone; and each client's, (C, ...), that it moves."""
    moving = moving_names(model, phase)
    lent = {k: v for k, v in values.shared.items() if k in moving and k not in values.own}
    own = {**values.own, **own_copies(model, lent, examples)}
    frozen = ClientValues(
        {k: v for k, v in values.shared.items() if k not in own},
        {k: v for k, v in own.items() if k not in moving},
        values.noise,
    )
    return frozen, {name: own[name] for name in moving}


def sent_copies(model: PartitionedModel, own: Values) -> Values:
    """Returns clients' copies that are sent for the variables that they copy, by these' names."""
    replaced = {v.name for v in model.global_variables if v.is_replaced}
    return {source: own[name] for name, source in model.copies.items() if source in replaced}
