"""What honest updates tell of a client, measured: the rows that it touches, and its vector.

The gradient of a table's rows is each example's error times the vector that they are multiplied
with: an update of one client has rows for its items alone, and they point where its vector does.
Nothing but more clients, or noise, hides that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from fedpersonal.audit.reference import Client, Reference
from fedpersonal.audit.subject import Round, Subject
from fedpersonal.audit.tap import Tap
from fedpersonal.data.client_dataset import ClientDataset

COHORTS = (1, 10, 100)
_LOOKED_AT = 3


@dataclasses.dataclass(frozen=True)
class Inherent:
    """What the sum of a cohort's honest updates of a table tells of one of its clients.

    Attributes:
        table: The table's variable.
        cohort: How many clients there are.
        share_of_rows: Share of the rows that changed which are this client's.
        rows_seen: Share of the rows that this client looks up which changed.
        variable: The local variable compared with the rows, or None.
        cosine: The absolute cosine between the update's first direction and that variable.
    """

    table: str
    cohort: int
    share_of_rows: float
    rows_seen: float
    variable: str | None = None
    cosine: float | None = None


def measure(
    subject: Subject, tap: Tap, reference: Reference, clients: ClientDataset, last: Round
) -> list[Inherent]:
    """Measures what updates tell in cohorts of several sizes, on average over some clients.

    Args:
        subject: What is audited.
        tap: What tells what members of its cohorts send.
        reference: Plain rounds, whose local variables are known.
        clients: Clients that train; of more than there are, a cohort is left out.
        last: A round, whose weights are sent.
    """
    model, found = subject.model, []
    tables = [name for name in model.global_tables if name not in model.owned]
    for size in COHORTS if tables else ():
        if size > clients.num_clients:
            break
        cohort = clients.subset(np.arange(size))
        traffic = tap(last.state, subject.cohort(cohort, [None] * size))
        looked_at = [subject.examples(place, cohort) for place in range(min(size, _LOOKED_AT))]
        vectors = [_vectors(reference, last, client) for client in looked_at]
        for name in tables:
            places = [i for i, c in enumerate(tap.crossings) if f".{c.name}".endswith(f".{name}")]
            total = sum(member[place] for member in traffic.members for place in places)
            found += list(_compare(subject, name, np.asarray(total), size, looked_at, vectors))
    return found


def _vectors(reference: Reference, last: Round, client: Client) -> dict[str, np.ndarray]:
    """Returns a client's local variables as its last phase finds them."""
    local = reference.fresh_local_values(client, last.number)
    return reference.run(last.weights, local, client, last.number).local


def _compare(
    subject: Subject,
    table: str,
    update: np.ndarray,
    size: int,
    clients: list[Client],
    vectors: list[dict[str, np.ndarray]],
) -> Iterator[Inherent]:
    rows = update.reshape(update.shape[0], -1)
    changed = np.flatnonzero(np.abs(rows).max(1))
    if not changed.size:
        return
    feature = subject.model.global_tables[table]
    own = [np.unique(client.features[feature]) for client in clients]
    both = [np.intersect1d(changed, ids).size for ids in own]
    shares = (
        float(np.mean([count / changed.size for count in both])),
        float(np.mean([count / ids.size for count, ids in zip(both, own)])),
    )
    fitting = [
        v.name
        for v in subject.model.local_variables
        if v.size == rows.shape[1] > 1 and all(own[v.name].any() for own in vectors)
    ]
    direction = np.linalg.svd(rows[changed].astype(np.float64), full_matrices=False)[2][0]
    for name in fitting:
        flat = [own[name].reshape(-1) for own in vectors]
        cosines = [abs(direction @ vector) / np.linalg.norm(vector) for vector in flat]
        yield Inherent(table, size, *shares, name, float(np.mean(cosines)))
    if not fitting:
        yield Inherent(table, size, *shares)
