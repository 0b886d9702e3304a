"""A local score function, and item embeddings that each client adapts.

Zhang et al., "Dual Personalization on Federated Recommendation", IJCAI 2023 (arXiv 2301.08143),
Algorithm 1: a client first trains its score function, which it keeps, with the item embeddings that
the server sent. It then trains the embeddings with the new score function. The server averages the
embeddings. A client predicts with the embeddings that it trained last.

Departures: a client trains the embeddings again before it predicts, from the latest ones of the
server. It therefore keeps only its score function; the authors' code also keeps a table of items.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.fed_rep import FedRep
from fedpersonal.methods.phases import Phase


class PFedRec(FedRep, name="pfedrec", title="PFedRec", local_part="head", finetunes="global"):
    """PFedRec: FedRep for a model whose score function is local."""

    def adaptation(self) -> tuple[Phase, ...]:
        """Returns the second phase, which a client runs again before it predicts."""
        return self.phases()[1:]


# A client runs the second phase again before it predicts: pass that phase as `finetuning`.
pfedrec = constructor(PFedRec)
