"""A model whose clients have personal copies of global variables, in addition to the shared ones.

The copies are local variables, and all code treats them as such. The model can be applied with the
shared variables, or, as `personal`, with a client's copies.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.names import BLEND, COPY, MIXING, SERVER_STATE
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.model.variables import VariableSpec, check_names, each_seed


class PersonalModel(PartitionedModel):
    """A partitioned model with personal copies of global variables."""

    def __init__(
        self,
        base: PartitionedModel,
        layers: Sequence[str] = (),
        *,
        mixing: float | None = None,
        replaces: bool = False,
        role: str = "model",
        has_server_state: bool = False,
        blends: bool = False,
    ):
        """Adds the copies to a model's local variables.

        Of a table whose rows belong to one client each, a client only copies its row. If copies are
        sent, or are a state, it copies nothing of such a table: it trains the row itself.

        Args:
            base: The model.
            layers: Names of the layers or global variables to copy; none for all.
            mixing: The initial alpha, if a client applies the model with alpha * copy +
                (1 - alpha) * shared variable; None if it is applied with the copies.
            replaces: Whether clients send their copies in place of the copied variables.
            role: See `PersonalCopies`.
            has_server_state: See `PersonalCopies`.
            blends: See `PersonalCopies`.

        Raises:
            UserError: If a name chooses no variable, there is none to copy, or one to be blended is
                a lookup table.
        """
        self._share_state(base)
        self._is_personal, self._is_mixed = False, mixing is not None
        self.role, is_state = role, role == "state"
        check_names("personal copies", layers, base.global_variables)
        copied = [
            v
            for v in base.global_variables
            if not ((replaces or is_state) and v.name in base.server_rows_per_client)
            and (not layers or v.first_name(layers))
        ]
        if not copied:
            raise UserError(
                "personal copies: the model has no global variable that a client could copy; its "
                f"variables are {[v.name for v in base.variables]}."
            )
        constrained = [v.name for v in copied if v.constraint is not None]
        if role == "offset" and constrained:
            raise UserError(
                f"personal copies: {constrained[0]!r} has a Keras constraint, which adding an "
                "offset would violate. Build its layer without the constraint."
            )
        personal = tuple(
            _copy_of(v, is_row=v.name in base.server_rows_per_client, is_state=is_state)
            for v in copied
        )
        self.copies = {v.name: source.name for v, source in zip(personal, copied)}
        row_copies = {k: v for k, v in self.copies.items() if v in base.server_rows_per_client}
        self.per_client_rows = {name: base.tables[source] for name, source in row_copies.items()}
        if blends:
            personal += self._blends_of(personal)
        if mixing is not None:
            personal += (_mixing_weight(mixing),)
        self.local_variables = (*base.local_variables, *personal)
        shared, names = base.variables, {v.name for v in copied}
        if replaces:
            shared = tuple(dataclasses.replace(v, is_replaced=v.name in names) for v in shared)
        states = tuple(map(_server_state_of, copied)) if has_server_state else ()
        self.server_states = {v.name: source.name for v, source in zip(states, copied)}
        self.variables = (*shared, *states, *personal)
        self.global_variables = tuple(v for v in (*shared, *states) if not v.is_local)
        if is_state:
            return
        tables = {v.first_name(base.lookups) for v in copied}
        rows = {f"{COPY}/{k}": v for k, v in base.lookups.items() if k in tables}
        self.lookups = {**base.lookups, **rows}

    def _blends_of(self, copies: Sequence[VariableSpec]) -> tuple[VariableSpec, ...]:
        """Returns, per copy, how far its weights move to the value sent: 1 at first."""
        tables = [v.name for v in copies if self.copies[v.name] in self.base.tables]
        if tables:
            raise UserError(f"personal copies: {tables} are lookup tables, which are not blended.")
        weights = tuple(_blend_of(v, f"{BLEND}/{self.copies[v.name]}") for v in copies)
        self.blends = {weight.name: v.name for weight, v in zip(weights, copies)}
        return weights

    @functools.cached_property
    def global_tables(self) -> dict[str, str]:
        """See `PartitionedModel`; a state corrects all rows of its table, so it is excluded."""
        corrected = self.copies.values() if self.role == "state" else ()
        return {k: v for k, v in super().global_tables.items() if k not in corrected}

    @property
    def personal(self) -> PartitionedModel:
        """The model that a client predicts with: with its personal copies."""
        view = copy.copy(self)
        view._is_personal = True
        return view

    def as_keras_values(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """See `PartitionedModel`."""
        if not self._is_personal or self.role == "state":
            return values
        chosen = {source: values[name] for name, source in self.copies.items()}
        for source in (self.copies[name] for name in self.per_client_rows):
            # Each row of the table becomes the client's row.
            chosen[source] = tf.broadcast_to(chosen[source], tf.shape(values[source]))
        if self.role == "offset":
            chosen = {name: values[name] + offset for name, offset in chosen.items()}
        if self._is_mixed:
            # Personal training must not change the shared variables.
            alpha, fixed = (
                values[MIXING],
                {name: tf.stop_gradient(values[name]) for name in chosen},
            )
            chosen = {name: alpha * v + (1.0 - alpha) * fixed[name] for name, v in chosen.items()}
        return {**values, **chosen}

    @property
    def ignored_locals(self) -> Collection[str]:
        """See `PartitionedModel`."""
        reads = self._is_personal and self.role != "state"
        of_base = {v.name for v in self.base.local_variables}
        return {
            v.name
            for v in self.local_variables
            if v.name not in of_base and not (reads and v.name in (*self.copies, MIXING))
        }

    def initial_copy(self, value: Any) -> Any:
        """See `PartitionedModel`; zeros unless copies have the role `model`."""
        if self.role == "model":
            return value
        return tf.zeros_like(value) if tf.is_tensor(value) else np.zeros_like(value)

    def clamped(self, values: Values) -> Values:
        """See `PartitionedModel`; alpha is clamped between 0 and 1."""
        if MIXING not in values:
            return values
        return {**values, MIXING: tf.clip_by_value(values[MIXING], 0.0, 1.0)}


def _copy_of(variable: VariableSpec, *, is_row: bool, is_state: bool) -> VariableSpec:
    return dataclasses.replace(
        variable,
        shape=(1, *variable.shape[1:]) if is_row else variable.shape,
        name=f"{COPY}/{variable.name}",
        layer=f"{COPY}/{variable.layer}",
        names=(*(f"{COPY}/{name}" for name in variable.names), COPY),
        is_local=True,
        is_personal=True,
        is_state=is_state,
        constraint=None if is_state else variable.constraint,
    )


def _blend_of(copy: VariableSpec, name: str) -> VariableSpec:
    return _state_like(copy, name, layer=BLEND, start=tf.ones)


def _server_state_of(variable: VariableSpec) -> VariableSpec:
    name = f"{SERVER_STATE}/{variable.name}"
    return _state_like(variable, name, layer=SERVER_STATE, start=tf.zeros)


def _state_like(
    variable: VariableSpec, name: str, *, layer: str, start: Callable[..., tf.Tensor]
) -> VariableSpec:
    """Returns a state with the shape of a variable, moved by assignments, without a constraint."""
    return dataclasses.replace(
        variable,
        name=name,
        layer=layer,
        names=(name,),
        initializer=each_seed(lambda seed: start(variable.shape, variable.dtype)),
        is_state=True,
        constraint=None,
    )


def _mixing_weight(start: float) -> VariableSpec:
    return VariableSpec(
        name=MIXING,
        layer=MIXING,
        shape=(),
        dtype=tf.float32,
        is_local=True,
        initializer=each_seed(lambda seed: tf.constant(start)),
        names=(MIXING,),
        is_personal=True,
    )
