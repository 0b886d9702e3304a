"""A score function of each client's own, and item embeddings that each client makes its own.

Zhang et al., "Dual Personalization on Federated Recommendation", IJCAI 2023 (arXiv 2301.08143),
Algorithm 1: a client trains its score function, which it keeps, with the items' embeddings as sent;
then these, with the score function as it is now. The server averages the embeddings. A client
predicts with those that its own last step has made of what was sent.

Departures: that step is made again before a client predicts, from what the server has sent by then.
So a client keeps its score function alone, where the authors' code keeps a table of items, too.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.fed_rep import FedRep
from fedpersonal.methods.phases import Phase


class PFedRec(FedRep, name="pfedrec", title="PFedRec", local_part="head", finetunes="global"):
    """What a client of PFedRec does, for a model whose score function is local."""

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the second phase, which a client runs again, on a copy of its own."""
        return self.phases()[1:]


# Before a client predicts, it runs the second phase again: give that as `finetuning`.
pfedrec = constructor(PFedRec)
