"""The checks of an audit: each returns what it has found, a sentence a leak."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from fedpersonal.audit.plain_model import Arrays, Client
from fedpersonal.audit.reference import Reference
from fedpersonal.audit.subject import Round, Subject, Tap
from fedpersonal.data.clients import ClientDataset
from fedpersonal.draws import Purpose, generator
from fedpersonal.federated.boundary import Crossing
from fedpersonal.model.names import CLUSTER_SHARES
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec, each_seed


def severed(model: PartitionedModel) -> PartitionedModel:
    """Returns a model without its data loss, its metrics and its examples' weights.

    Losses that it adds stay. What examples weigh by their labels is sent by declaration.
    Its local variables start at random, so that they differ where examples do, even if they usually
    start as zeros. Exact reconstruction, which takes no loss, still fits them to the labels.
    """
    cut, loss = copy.copy(model), model._example_loss
    cut._example_loss = lambda labels, predictions: 0.0 * loss(labels, predictions)
    cut.metrics, cut.example_weight = (), None
    for group in ("variables", "global_variables", "local_variables", "all_variables"):
        variables = getattr(model, group)
        setattr(cut, group, tuple(_random_start(v) if v.is_local else v for v in variables))
    return cut


def _random_start(variable: VariableSpec) -> VariableSpec:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.random.stateless_normal(variable.shape, seed, stddev=0.5), variable.dtype)

    return dataclasses.replace(variable, initializer=each_seed(draw))


def other_labels(
    model: PartitionedModel, labels: np.ndarray, pool: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Returns other labels of the same examples, which count as often as before.

    Where each label has a weight of its own, that is the same labels in another order.

    Args:
        model: The model, whose `example_weight` says as how many an example counts.
        labels: (n, ...).
        pool: Labels to draw from, (m, ...).
        random: The draws.
    """
    # 0 and negative labels often stand for padding, where one may count otherwise.
    for values, may_change in (
        (np.unique(pool), np.ones(labels.shape, bool)),
        (np.unique(pool[pool > 0]), labels > 0),
    ):
        if not values.size:
            continue
        changed = np.where(may_change, _others(labels, values, random), labels)
        weights = [
            model.example_weights(tf.constant(column)).numpy() for column in (labels, changed)
        ]
        if np.array_equal(*weights):
            return changed.astype(labels.dtype)
    return random.permutation(labels)


def any_labels(labels: np.ndarray, pool: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns other labels of as many examples, each drawn from a pool."""
    return _others(labels, np.unique(pool), random).astype(labels.dtype)


def _others(labels: np.ndarray, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws for each label one of the values, another one where there are others."""
    place = np.searchsorted(values, labels) + random.integers(1, max(2, values.size), labels.shape)
    return values[place % values.size]


# Honest updates differ from those of a plain round by at most 8 units of float32's rounding, and
# sums of metrics by 2, over all methods and both packings (`docs/explanation/boundary.md`).
_UNIT = 2.0**-24
_UNITS = 24.0
# An optimizer such as Adam makes much of the rounding where a gradient should be 0: honest updates
# are at most twice as far off as a trial that rounds the start otherwise, and three trials vary.
_SHAKEN, _SHAKES = 6.0, 3


# Other labels or inputs may come to the same sum by chance: so many draws of each are tried.
_DRAWS = 3

# What changes; what the client has kept then, and draws of its labels or the order of its inputs;
# whether a penalty may tell.
_Trial = tuple[str, Optional[Arrays], list[dict[str, Any]], bool]


def check_broadcast(subject: Subject, rounds: Sequence[Round]) -> list[str]:
    """What is broadcast does not depend on what clients bring to the round."""
    tap, leaks = Tap(subject.process.next, "broadcast"), []
    labels = _changed_labels(subject, generator(Purpose.AUDIT, 0, round_number=0))
    state = rounds[0].state
    if subject.has_aggregator:  # Its states are others than those of the rounds.
        state = subject.process.initialize()
    for one in rounds:
        if subject.clients.num_clients > 1:
            other = subject.argument(1, None)
        else:
            other = subject.argument(0, None, labels=labels)
        own = subject.argument(0, one.local, round_number=one.number)
        sent, again = tap(state, own).members[0], tap(state, other).members[0]
        leaks += [
            f"round {one.number + 1}: the broadcast of {name} depends on a client's data"
            for name, _ in _differences(tap.crossings, sent, again)
        ]
        following = one.traffic.result
        if subject.has_aggregator:
            following = subject.process.next(state, own)
        state = following.state
    return leaks


def check_severed(subject: Subject, rounds: Sequence[Round], *, adds_losses: bool) -> list[str]:
    """With the data loss multiplied by 0, nothing sent depends on local variables or examples.

    Args:
        subject: What is audited.
        rounds: The rounds from whose states to try.
        adds_losses: Whether the model adds losses, which may depend on inputs and be a penalty on
            local variables: the loss that is reported then tells their size, and opposite values
            must give the same.
    """
    tap, leaks = Tap(subject.build(severed(subject.model)).next, "aggregate"), []
    random = generator(Purpose.AUDIT, 0, round_number=1)
    labels = [{"labels": _changed_labels(subject, random)} for _ in range(_DRAWS)]
    keeps = subject.algorithm.keeps
    trials: list[_Trial]
    one, other = (_random_local(subject, random) if keeps else None for _ in range(2))
    if keeps:
        flipped = {name: -value for name, value in one.items()} if one else None
        trials = [
            ("labels", one, labels, False),
            ("local variables", other, [{}], True),
            ("the signs of local variables", flipped, [{}], False),
        ]
    elif subject.model.local_variables:
        trials = [("labels, or local variables with them,", None, labels, True)]
    else:
        trials = [("labels", None, labels, False)]
    copies = subject.algorithm.personal
    if copies and copies.are_told:  # By the algorithm's own word, and the reference tells how.
        trials = trials[:1]
    elif not adds_losses:
        count = len(subject.examples(0).labels)
        orders = [{"order": random.integers(0, count, count)} for _ in range(_DRAWS)]
        trials.append(("inputs, or local variables with them,", one, orders, False))
    fresh: list[_Trial] = [("labels, or a first draw with them,", None, labels, True)]
    for past in rounds:
        for kept, tried in ((one, trials), (None, fresh if keeps else [])):
            before = tap(past.state, subject.argument(0, kept)).members[0] if tried else []
            for what, changed, draws, may_tell_size in tried:
                changes: dict[str, float] = {}
                for own in draws:
                    after = tap(past.state, subject.argument(0, changed, **own)).members[0]
                    for name, amount in _differences(tap.crossings, before, after):
                        changes[name] = max(amount, changes.get(name, 0.0))
                leaks += [
                    f"round {past.number + 1}: {name} changes by {amount:.2g} when {what} do, and "
                    "the data loss is 0"
                    for name, amount in changes.items()
                    if not (_is_named(name, "loss") and adds_losses and may_tell_size)
                ]
    return leaks


class Tolerance(NamedTuple):
    """The difference that rounding explains in a value that clients send.

    Attributes:
        name: The name of the value.
        allowed: The largest difference that is taken for rounding.
        share: That difference as a share of the value's largest entry.
    """

    name: str
    allowed: float
    share: float


def check_reference(
    subject: Subject, reference: Reference, crossings: Sequence[Crossing], rounds: Sequence[Round]
) -> tuple[list[str], Tolerance | None]:
    """Compares what is sent with the update, the weight and the metrics of a plain round.

    Returns:
        A sentence for each difference that rounding does not explain; and the widest tolerance of
        all values that were compared, None where none was.
    """
    leaks, client, widest = [], subject.examples(0), None
    for one in rounds:
        local = one.local
        if local is None:
            local = reference.fresh_local_values(client, one.number)
        wanted = _expected_leaves(subject, reference, one, local, client)
        shaken: list[dict[str, np.ndarray]] = []
        for crossing, value in zip(crossings, one.traffic.members[0]):
            name = crossing.name or "weight"
            known = next((n for n in wanted if _is_named(name, n)), None)
            if known is None or wanted[known].shape != value.shape:
                leaks.append(
                    f"round {one.number + 1}: {_shown(crossing)} is sent, and is no update, weight "
                    "or metric"
                )
                continue
            scale = np.abs(wanted[known]).max(initial=0.0)
            # An update is a difference of weights, which round, times the client's weight.
            rounded = scale + np.abs(one.weights.get(known, 0.0)).max(initial=0.0) * max(
                1.0, 0.0 if known in subject.model.owned else float(wanted["weight"])
            )
            allowed = _UNITS * _UNIT * rounded
            error = np.abs(value - wanted[known]).max(initial=0.0)
            if error > allowed:
                shaken = shaken or [
                    _expected_leaves(subject, reference, one, local, client, shake=number)
                    for number in range(1, 1 + _SHAKES)
                ]
                differences = [np.abs(of[known] - wanted[known]) for of in shaken]
                allowed += _SHAKEN * max(d.max(initial=0.0) for d in differences)
            if not error <= allowed:
                leaks.append(
                    f"round {one.number + 1}: {_shown(crossing)} differs by {error:.2g} from that "
                    f"of a plain round, and rounding explains {allowed:.2g}"
                )
            elif scale and (widest is None or allowed / scale > widest.share):
                widest = Tolerance(_shown(crossing), float(allowed), float(allowed / scale))
    return leaks, widest


def _expected_leaves(
    subject: Subject,
    reference: Reference,
    one: Round,
    local: Arrays,
    client: Client,
    *,
    shake: int = 0,
) -> dict[str, np.ndarray]:
    """Returns what a client should send, by the last part of its name.

    `shake` is the number of a trial in which all values that it starts from, and float labels, are
    rounded otherwise; 0 for none.
    """
    weights, local, labels = dict(one.weights), dict(local), client.labels
    if shake:
        random = generator(Purpose.AUDIT, 0, round_number=10 + shake)
        for values in (weights, local):
            for name, value in values.items():
                factor = 1.0 + 3e-7 * random.choice([-1.0, 1.0], value.shape)
                values[name] = (value * factor).astype(value.dtype)
        if labels.dtype.kind == "f":  # Errors of predictions round as they do, if weights are 0.
            towards = random.choice(np.array([-np.inf, np.inf], labels.dtype), labels.shape)
            labels = np.nextafter(labels, towards)
    expected = reference.run(weights, local, client, one.number, labels=labels)
    owned = subject.model.owned
    updates = {
        name: update * (1.0 if name in owned else expected.weight)
        for name, update in expected.updates.items()
    }
    states = {
        name: value * (expected.weight if name == CLUSTER_SHARES else 1.0)
        for name, value in expected.states.items()
    }
    return {"weight": np.asarray(expected.weight), **expected.sums, **updates, **states}


def _differences(
    crossings: Sequence[Crossing], one: Sequence[np.ndarray], other: Sequence[np.ndarray]
) -> Iterator[tuple[str, float]]:
    """Yields the names of values that are not equal to the bit, and how far they are apart."""
    for crossing, before, after in zip(crossings, one, other):
        if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            yield (
                _shown(crossing),
                float(np.abs(np.subtract(before, after, dtype=np.float64)).max()),
            )


def _shown(crossing: Crossing) -> str:
    return crossing.name or f"a nameless {crossing.dtype} of shape {crossing.shape}"


def _is_named(name: str, last: str) -> bool:
    return f".{name}".endswith(f".{last}")


def _changed_labels(subject: Subject, random: np.random.Generator) -> np.ndarray:
    own = subject.examples(0).labels
    return any_labels(own, subject.clients.labels.astype(own.dtype), random)


def _random_local(subject: Subject, random: np.random.Generator) -> Arrays:
    return {
        v.name: random.normal(0.0, 0.5, v.shape).astype(v.dtype.as_numpy_dtype)
        for v in subject.model.local_variables
    }


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
        chance: What it is on average between that variable and a random direction.
    """

    table: str
    cohort: int
    share_of_rows: float
    rows_seen: float
    variable: str | None = None
    cosine: float | None = None
    chance: float | None = None


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
    model, measured = subject.model, []
    tables = [name for name in model.global_tables if name not in model.owned]
    for size in COHORTS if tables else ():
        if size > clients.num_clients:
            break
        cohort = clients.subset(np.arange(size))
        brought = subject.cohort(cohort, [None] * size, round_number=last.number)
        traffic = tap(last.state, brought)
        looked_at = [subject.examples(place, cohort) for place in range(min(size, _LOOKED_AT))]
        vectors = [_vectors(reference, last, client) for client in looked_at]
        for name in tables:
            places = [i for i, c in enumerate(tap.crossings) if f".{c.name}".endswith(f".{name}")]
            total = sum(member[place] for member in traffic.members for place in places)
            measured += list(_compare(subject, name, np.asarray(total), size, looked_at, vectors))
    return measured


def _mean_cosine(size: int) -> float:
    """Returns the mean absolute cosine between a vector of so many numbers and random ones."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)


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
        chance = _mean_cosine(direction.size)
        yield Inherent(table, size, *shares, name, float(np.mean(cosines)), chance)
    if not fitting:
        yield Inherent(table, size, *shares)
