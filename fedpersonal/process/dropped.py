"""Whose updates a server leaves out, as they are not finite: a simulation alone can find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedpersonal.process.shards import Cohort

_MOST = 3
_MOST_ROUNDS = 12  # Enough for one client among 4,096.


def find_dropped(next_round: Callable[[Any, Cohort], Any], state: Any, cohort: Cohort) -> list[str]:
    """Returns the first clients, at most 3, of a cohort whose updates are not finite.

    The server knows only how many they are: the round is run again with ever fewer clients, at
    most 12 times; then the clients found so far are all.

    Args:
        next_round: Runs a round, without other effects.
        state: The state before it.
        cohort: Its clients, of whom at least one's update is not finite.
    """

    def has_any(places: Sequence[int]) -> bool:
        return bool(next_round(state, cohort.only(places)).metrics["num_dropped_updates"])

    found: list[str] = []
    waiting: list[tuple[Sequence[int], bool]] = [(range(len(cohort.client_ids)), True)]
    rounds = 0
    while waiting and len(found) < _MOST:
        places, is_known = waiting.pop()
        if is_known and len(places) == 1:
            found.append(str(cohort.client_ids[places[0]]))
            continue
        if rounds == _MOST_ROUNDS:
            break
        rounds += 1
        if not is_known:
            waiting += [(places, True)] if has_any(places) else []
            continue
        first, second = places[: len(places) // 2], places[len(places) // 2 :]
        # Where the first half has none, the second must have some.
        waiting += [(second, False), (first, True)] if has_any(first) else [(second, True)]
    return found
