"""Federated User Representation Learning.

Bui et al., "Federated User Representation Learning", 2019 (arXiv 1909.12535), section 3.5: each
user keeps local variables, such as a user embedding, and trains them jointly with the global ones.

Departures: local variables may have a separate optimizer, and a bound on their change in a round.
Unseen users rebuild them; the paper has no procedure for unseen users.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase


class Furl(
    Method,
    name="furl",
    title="FURL",
    extra_options=KeepingOptions,
    local_variables="kept",
    local_part="embedding",
):
    """FURL: one phase moves all variables, jointly, on all of a client's data."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase; local variables may have a separate optimizer."""
        local = self.optimizer("local")
        return (self.phase(optimizers={"local": local} if local else {}),)


furl = constructor(Furl)
