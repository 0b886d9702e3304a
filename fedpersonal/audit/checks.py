"""The checks of an audit: each returns the leaks that it finds, a sentence each."""

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
from fedpersonal.audit.subject import Recorder, Round, Subject
from fedpersonal.data.clients import ClientDataset
from fedpersonal.federated.boundary import Crossing
from fedpersonal.model.names import CLUSTER_SHARES
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec, each_seed
from fedpersonal.randomness import Purpose, generator


def without_labels(model: PartitionedModel) -> PartitionedModel:
    """Returns a model without its data loss, its metrics and its examples' weights.

    Losses that the model adds stay. Example weights are left out, since clients send them by
    declaration. Local variables start at random, so that they differ where examples do, even if
    they usually start as zeros. Exact reconstruction, which uses no loss, still fits them to the
    labels.
    """
    cut, loss = copy.copy(model), model._example_loss
    cut._example_loss = lambda labels, predictions: 0.0 * loss(labels, predictions)
    cut.metrics, cut.example_weight = (), None
    for group in ("variables", "global_variables", "local_variables", "all_variables"):
        variables = getattr(model, group)
        setattr(cut, group, tuple(_random_start(v) if v.is_local else v for v in variables))
    return cut


def _random_start(variable: VariableSpec) -> VariableSpec:
    def sample(seed: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.random.stateless_normal(variable.shape, seed, stddev=0.5), variable.dtype)

    return dataclasses.replace(variable, initializer=each_seed(sample))


def other_labels(
    model: PartitionedModel, labels: np.ndarray, pool: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Returns other labels of the same examples, with the same example weights.

    If each label has another weight, it returns the same labels in another order.

    Args:
        model: The model, whose `example_weight` weights examples by their labels.
        labels: (n, ...).
        pool: Labels to sample from, (m, ...).
        random: The random numbers.
    """
    # 0 and negative labels often mark padding, whose weight may differ.
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
    """Returns other labels of the same shape, each sampled from a pool."""
    return _others(labels, np.unique(pool), random).astype(labels.dtype)


def _others(labels: np.ndarray, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Samples for each label one of the values, another one if there are others."""
    place = np.searchsorted(values, labels) + random.integers(1, max(2, values.size), labels.shape)
    return values[place % values.size]


# Honest updates differ from a plain round's by at most 8 units of float32's rounding, and sums of
# metrics by 2, over all methods and both packings (`docs/explanation/boundary.md`).
_UNIT = 2.0**-24
_UNITS = 24.0
# An optimizer such as Adam magnifies rounding where a gradient should be 0. The errors of honest
# updates are then at most twice the change by a trial that rounds the start otherwise; since trials
# vary, three are made and the limit is six times.
_PERTURBED_UNITS, _PERTURBATIONS = 6.0, 3


# Other labels or inputs may give the same sum by chance, so several samples of each are tried.
_SAMPLES = 3

# The part that changes; the local variables that the client has kept then; samples of its labels or
# of the order of its inputs; and whether a penalty may reveal the change.
_Trial = tuple[str, Optional[Arrays], list[dict[str, Any]], bool]


def check_broadcast(subject: Subject, rounds: Sequence[Round]) -> list[str]:
    """Checks that broadcasts do not depend on data or local variables of the round's clients."""
    recorder, leaks = Recorder(subject.process.next, "broadcast"), []
    labels = _changed_labels(subject, generator(Purpose.AUDIT, 0, round_number=0))
    state = rounds[0].state
    if subject.has_aggregator:  # The aggregator's states differ from those of the rounds.
        state = subject.process.initialize()
    for one in rounds:
        if subject.clients.num_clients > 1:
            other = subject.argument(1, None)
        else:
            other = subject.argument(0, None, labels=labels)
        first = subject.argument(0, one.local, round_number=one.number)
        sent, again = recorder(state, first).members[0], recorder(state, other).members[0]
        leaks += [
            f"round {one.number + 1}: the broadcast of {name} depends on a client's data"
            for name, _ in _differences(recorder.crossings, sent, again)
        ]
        output = one.traffic.result
        if subject.has_aggregator:
            output = subject.process.next(state, first)
        state = output.state
    return leaks


def check_without_labels(
    subject: Subject, rounds: Sequence[Round], *, adds_losses: bool
) -> list[str]:
    """Checks, with the data loss times 0, that sent tensors depend on no local variable or example.

    Args:
        subject: The audited process.
        rounds: The rounds whose states are the starts of trials.
        adds_losses: Whether the model adds losses. They may depend on inputs, and be a penalty on
            local variables: the reported loss then reveals their size, but local variables of
            opposite signs must give the same loss.
    """
    recorder, leaks = Recorder(subject.build(without_labels(subject.model)).next, "aggregate"), []
    random = generator(Purpose.AUDIT, 0, round_number=1)
    labels = [{"labels": _changed_labels(subject, random)} for _ in range(_SAMPLES)]
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
    if copies and copies.reveals_copies:  # The algorithm declares it, and the reference checks how.
        trials = trials[:1]
    elif not adds_losses:
        count = len(subject.examples(0).labels)
        orders = [{"order": random.integers(0, count, count)} for _ in range(_SAMPLES)]
        trials.append(("inputs, or local variables with them,", one, orders, False))
    first = "labels, or initial local variables with them,"
    fresh: list[_Trial] = [(first, None, labels, True)]
    for past in rounds:
        for kept, tried in ((one, trials), (None, fresh if keeps else [])):
            before = recorder(past.state, subject.argument(0, kept)).members[0] if tried else []
            for what, changed, samples, may_reveal_size in tried:
                changes: dict[str, float] = {}
                for options in samples:
                    argument = subject.argument(0, changed, **options)
                    after = recorder(past.state, argument).members[0]
                    for name, amount in _differences(recorder.crossings, before, after):
                        changes[name] = max(amount, changes.get(name, 0.0))
                leaks += [
                    f"round {past.number + 1}: {name} changes by {amount:.2g} when {what} do, and "
                    "the data loss is 0"
                    for name, amount in changes.items()
                    if not (_is_named(name, "loss") and adds_losses and may_reveal_size)
                ]
    return leaks


class Tolerance(NamedTuple):
    """The difference that rounding explains in a value that clients send.

    Attributes:
        name: The name of the value.
        allowed: The largest difference that counts as rounding.
        share: That difference as a share of the value's largest entry.
    """

    name: str
    allowed: float
    share: float


def check_reference(
    subject: Subject, reference: Reference, crossings: Sequence[Crossing], rounds: Sequence[Round]
) -> tuple[list[str], Tolerance | None]:
    """Compares sent values with the update, the weight and the metrics of a plain round.

    Returns:
        A sentence for each difference that rounding does not explain; and the widest tolerance of
        all compared values, None if none was compared.
    """
    leaks, client, widest = [], subject.examples(0), None
    for one in rounds:
        local = one.local
        if local is None:
            local = reference.fresh_local_values(client, one.number)
        expected = _expected_leaves(subject, reference, one, local, client)
        perturbed: list[dict[str, np.ndarray]] = []
        for crossing, value in zip(crossings, one.traffic.members[0]):
            name = crossing.name or "weight"
            key = next((n for n in expected if _is_named(name, n)), None)
            if key is None or expected[key].shape != value.shape:
                leaks.append(
                    f"round {one.number + 1}: {_describe(crossing)} is sent, but is no update, "
                    "weight or metric"
                )
                continue
            scale = np.abs(expected[key]).max(initial=0.0)
            # An update is a difference of weights, which round, times the client's weight.
            is_weighted = key not in subject.model.server_rows_per_client
            weight = max(1.0, float(expected["weight"]) if is_weighted else 0.0)
            rounded = scale + np.abs(one.weights.get(key, 0.0)).max(initial=0.0) * weight
            allowed = _UNITS * _UNIT * rounded
            error = np.abs(value - expected[key]).max(initial=0.0)
            if error > allowed:
                perturbed = perturbed or [
                    _expected_leaves(subject, reference, one, local, client, perturbation=number)
                    for number in range(1, 1 + _PERTURBATIONS)
                ]
                differences = [np.abs(trial[key] - expected[key]) for trial in perturbed]
                allowed += _PERTURBED_UNITS * max(d.max(initial=0.0) for d in differences)
            if not error <= allowed:
                leaks.append(
                    f"round {one.number + 1}: {_describe(crossing)} differs by {error:.2g} from a "
                    f"plain round's, and rounding explains {allowed:.2g}"
                )
            elif scale and (widest is None or allowed / scale > widest.share):
                widest = Tolerance(_describe(crossing), float(allowed), float(allowed / scale))
    return leaks, widest


def _expected_leaves(
    subject: Subject,
    reference: Reference,
    one: Round,
    local: Arrays,
    client: Client,
    *,
    perturbation: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the values that a client should send, by the last part of their names.

    `perturbation` is the number of a trial that rounds all initial values, and float labels,
    otherwise; 0 for none.
    """
    weights, local, labels = dict(one.weights), dict(local), client.labels
    if perturbation:
        random = generator(Purpose.AUDIT, 0, round_number=10 + perturbation)
        for values in (weights, local):
            for name, value in values.items():
                factor = 1.0 + 3e-7 * random.choice([-1.0, 1.0], value.shape)
                values[name] = (value * factor).astype(value.dtype)
        if labels.dtype.kind == "f":  # With weights of 0, errors of predictions round as labels do.
            towards = random.choice(np.array([-np.inf, np.inf], labels.dtype), labels.shape)
            labels = np.nextafter(labels, towards)
    expected = reference.run(weights, local, client, one.number, labels=labels)
    unweighted = subject.model.server_rows_per_client
    updates = {
        name: update * (1.0 if name in unweighted else expected.weight)
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
    """Yields the names of values that differ in any bit, and their largest differences."""
    for crossing, before, after in zip(crossings, one, other):
        if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            yield (
                _describe(crossing),
                float(np.abs(np.subtract(before, after, dtype=np.float64)).max()),
            )


def _describe(crossing: Crossing) -> str:
    return crossing.name or f"a nameless {crossing.dtype} of shape {crossing.shape}"


def _is_named(name: str, last: str) -> bool:
    return f".{name}".endswith(f".{last}")


def _changed_labels(subject: Subject, random: np.random.Generator) -> np.ndarray:
    labels = subject.examples(0).labels
    return any_labels(labels, subject.clients.labels.astype(labels.dtype), random)


def _random_local(subject: Subject, random: np.random.Generator) -> Arrays:
    return {
        v.name: random.normal(0.0, 0.5, v.shape).astype(v.dtype.as_numpy_dtype)
        for v in subject.model.local_variables
    }


COHORTS = (1, 10, 100)
# Clients of a cohort over which measures are averaged.
_MEASURED = 3


@dataclasses.dataclass(frozen=True)
class TableLeak:
    """Measures of what a cohort's sum of honest updates of a table reveals of one client.

    Attributes:
        table: The table's variable.
        cohort: The number of clients.
        share_of_rows: The share, of all rows that changed, that this client looks up.
        rows_seen: The share, of the rows that this client looks up, that changed.
        variable: The local variable that is compared with the rows, or None.
        cosine: The absolute cosine between the update's first direction and that variable.
        chance: The mean absolute cosine between that variable and a random direction.
    """

    table: str
    cohort: int
    share_of_rows: float
    rows_seen: float
    variable: str | None = None
    cosine: float | None = None
    chance: float | None = None


def measure_table_leaks(
    subject: Subject, recorder: Recorder, reference: Reference, clients: ClientDataset, last: Round
) -> list[TableLeak]:
    """Measures what updates reveal in cohorts of several sizes, in the mean over some clients.

    Args:
        subject: The audited process.
        recorder: The recorder of the values that members of CLIENTS send.
        reference: The plain rounds, for clients' local variables.
        clients: Clients that train; cohorts larger than their number are left out.
        last: The round whose weights are sent.
    """
    model, measured = subject.model, []
    tables = [name for name in model.global_tables if name not in model.server_rows_per_client]
    for size in COHORTS if tables else ():
        if size > clients.num_clients:
            break
        cohort = clients.subset(np.arange(size))
        argument = subject.cohort(cohort, [None] * size, round_number=last.number)
        traffic = recorder(last.state, argument)
        examples = [subject.examples(place, cohort) for place in range(min(size, _MEASURED))]
        vectors = [_local_values(reference, last, client) for client in examples]
        for name in tables:
            places = [i for i, c in enumerate(recorder.crossings) if _is_named(c.name, name)]
            total = sum(member[place] for member in traffic.members for place in places)
            measured += list(_compare(subject, name, np.asarray(total), size, examples, vectors))
    return measured


def _mean_cosine(size: int) -> float:
    """Returns the mean absolute cosine between a vector of `size` numbers and random ones."""
    return math.exp(math.lgamma(size / 2) - math.lgamma((size + 1) / 2)) / math.sqrt(math.pi)


def _local_values(reference: Reference, last: Round, client: Client) -> dict[str, np.ndarray]:
    """Returns a client's local variables before its last phase."""
    local = reference.fresh_local_values(client, last.number)
    return reference.run(last.weights, local, client, last.number).local


def _compare(
    subject: Subject,
    table: str,
    update: np.ndarray,
    size: int,
    clients: list[Client],
    vectors: list[dict[str, np.ndarray]],
) -> Iterator[TableLeak]:
    """Compares a table's summed update with clients' ids and local variables."""
    rows = update.reshape(update.shape[0], -1)
    changed = np.flatnonzero(np.abs(rows).max(1))
    if not changed.size:
        return
    feature = subject.model.global_tables[table]
    client_ids = [np.unique(client.features[feature]) for client in clients]
    both = [np.intersect1d(changed, ids).size for ids in client_ids]
    shares = (
        float(np.mean([count / changed.size for count in both])),
        float(np.mean([count / ids.size for count, ids in zip(both, client_ids)])),
    )
    comparable = [
        v.name
        for v in subject.model.local_variables
        if v.size == rows.shape[1] > 1 and all(values[v.name].any() for values in vectors)
    ]
    direction = np.linalg.svd(rows[changed].astype(np.float64), full_matrices=False)[2][0]
    for name in comparable:
        flat = [values[name].reshape(-1) for values in vectors]
        cosines = [abs(direction @ vector) / np.linalg.norm(vector) for vector in flat]
        chance = _mean_cosine(direction.size)
        yield TableLeak(table, size, *shares, name, float(np.mean(cosines)), chance)
    if not comparable:
        yield TableLeak(table, size, *shares)
