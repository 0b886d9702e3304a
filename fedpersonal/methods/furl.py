"""Federated User Representation Learning.

Bui et al., "Federated User Representation Learning", 2019 (arXiv 1909.12535), section 3.5: private
variables, such as a user's embedding, are kept by the user and trained jointly with the federated
ones.

Departures: local variables may have an optimizer of their own, and a bound on what a round changes
in them; users who took no part rebuild them, where the paper has no method for them.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.methods.phases import Phase


class Furl(
    Method,
    name="furl",
    title="FURL",
    reads=KeepingOptions,
    local_variables="kept",
    local_part="embedding",
):
    """What a client of FURL does: it moves all variables, jointly, on all of its data."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase; local variables may have an optimizer of their own."""
        local = self.optimizer("local")
        return (self.phase(optimizers={"local": local} if local else {}),)


furl = constructor(Furl)
