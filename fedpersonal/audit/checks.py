"""The checks of an audit: each returns what it has found, a sentence a leak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np

from fedpersonal.audit.reference import Arrays, Client, Reference
from fedpersonal.audit.severed import any_labels, severed
from fedpersonal.audit.subject import Round, Subject
from fedpersonal.audit.tap import Tap
from fedpersonal.draws import Purpose, generator
from fedpersonal.process.boundary import Crossing

# Two ways to compute the same differ by rounding, here less than this share of the largest value.
_ROUNDING = 1e-3
# How many times as far off rounding may lead as in a trial of it.
_SHAKEN = 30.0
# Weights and counts are sums of a few numbers.
_ROUNDING_OF_COUNTS = 1e-6


# Other labels or inputs may come to the same sum by chance: so many draws of each are tried.
_DRAWS = 3

# What changes; what the client has kept then, and draws of its labels or the order of its inputs;
# whether a penalty may tell.
_Trial = tuple[str, Optional[Arrays], list[dict[str, np.ndarray]], bool]


def check_broadcast(subject: Subject, rounds: Sequence[Round]) -> list[str]:
    """What is broadcast does not depend on what clients bring to the round."""
    tap, found = Tap(subject.process.next, "broadcast"), []
    labels = _changed_labels(subject, generator(Purpose.AUDIT, 0, round_number=0))
    state = rounds[0].state
    if subject.has_aggregator:  # Its states are others than those of the rounds.
        state = subject.process.initialize()
    for one in rounds:
        if subject.clients.num_clients > 1:
            other = subject.argument(1, None)
        else:
            other = subject.argument(0, None, labels=labels)
        own = subject.argument(0, one.local)
        sent, again = tap(state, own).members[0], tap(state, other).members[0]
        found += [
            f"round {one.number + 1}: the broadcast of {name} depends on a client's data"
            for name, _ in _differences(tap.crossings, sent, again)
        ]
        following = one.traffic.result
        if subject.has_aggregator:
            following = subject.process.next(state, own)
        state = following.state
    return found


def check_severed(subject: Subject, rounds: Sequence[Round], *, adds_losses: bool) -> list[str]:
    """With the data loss multiplied by 0, nothing sent depends on local variables or examples.

    Args:
        subject: What is audited.
        rounds: The rounds from whose states to try.
        adds_losses: Whether the model adds losses, which may depend on inputs and be a penalty on
            local variables: the loss that is reported then tells their size, and opposite values
            must give the same.
    """
    tap, found = Tap(subject.build(severed(subject.model)).next, "aggregate"), []
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
    if copies and copies.are_sent:  # By the algorithm's own word, and the reference tells how.
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
                found += [
                    f"round {past.number + 1}: {name} changes by {amount:.2g} when {what} do, and "
                    "the data loss is 0"
                    for name, amount in changes.items()
                    if not (_is_named(name, "loss") and adds_losses and may_tell_size)
                ]
    return found


def check_reference(
    subject: Subject, reference: Reference, crossings: Sequence[Crossing], rounds: Sequence[Round]
) -> list[str]:
    """What is sent is the update, the weight and the metrics of a plain round, and nothing else."""
    found, client = [], subject.examples(0)
    for one in rounds:
        local = one.local
        if local is None:
            local = reference.fresh_local_values(client, one.number)
        wanted = _expected_leaves(subject, reference, one, local, client)
        names = {v.name for v in subject.model.global_variables}
        largest = max((np.abs(wanted[name]).max() for name in names), default=0.0)
        shaken = None
        for crossing, value in zip(crossings, one.traffic.members[0]):
            name = crossing.name or "weight"
            known = next((n for n in wanted if _is_named(name, n)), None)
            if known is None or wanted[known].shape != value.shape:
                found.append(
                    f"round {one.number + 1}: {_shown(crossing)} is sent, and is no update, weight "
                    "or metric"
                )
                continue
            scale = np.abs(wanted[known]).max(initial=0.0)
            if known in names:
                scale = max(scale, _ROUNDING * largest)
            is_count = value.ndim == 0 and known not in names
            allowed = scale * (_ROUNDING_OF_COUNTS if is_count else _ROUNDING)
            error = np.abs(value - wanted[known]).max(initial=0.0)
            if error > allowed and known in names:
                # An optimizer such as Adam makes much of the rounding where a gradient should be 0.
                if shaken is None:
                    shaken = _expected_leaves(subject, reference, one, local, client, shake=True)
                allowed += _SHAKEN * np.abs(shaken[known] - wanted[known]).max(initial=0.0)
            if not error <= allowed:
                found.append(
                    f"round {one.number + 1}: {_shown(crossing)} differs by {error:.2g} from that "
                    f"of a plain round, and rounding explains {allowed:.2g}"
                )
    return found


def _expected_leaves(
    subject: Subject,
    reference: Reference,
    one: Round,
    local: Arrays,
    client: Client,
    *,
    shake: bool = False,
) -> dict[str, np.ndarray]:
    """Returns what a client should send, by the last part of its name.

    With `shake`, what it should if all values that it starts from were rounded otherwise.
    """
    weights, local = dict(one.weights), dict(local)
    if shake:
        random = generator(Purpose.AUDIT, 0, round_number=4)
        for values in (weights, local):
            for name, value in values.items():
                factor = 1.0 + 3e-7 * random.choice([-1.0, 1.0], value.shape)
                values[name] = (value * factor).astype(value.dtype)
    expected = reference.run(weights, local, client, one.number)
    owned = subject.model.owned
    updates = {
        name: update * (1.0 if name in owned else expected.weight)
        for name, update in expected.updates.items()
    }
    return {"weight": np.asarray(expected.weight), **expected.sums, **updates}


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
