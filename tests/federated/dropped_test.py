"""Clients whose updates are left out are found by few rounds."""

import types

import pytest

from fedpersonal.federated.cohort import find_dropped


def find(count, bad):
    """Returns the clients found, of `count` clients, and the places of each round that was run."""
    names = [f"c{place}" for place in range(count)]
    cohort, rounds = types.SimpleNamespace(client_ids=names, only=list), []

    def next_round(state, places):
        rounds.append(places)
        lost = len({*places} & {*bad})
        return types.SimpleNamespace(metrics={"num_dropped_updates": lost})

    return find_dropped(next_round, None, cohort), rounds


@pytest.mark.parametrize(
    ("count", "bad", "most"),
    [(1, [0], 0), (2, [1], 1), (8, [0, 5, 6, 7], 10), (1_000, [999], 10), (1_000, [400], 12)],
)
def test_the_first_clients_are_found_by_halves(count, bad, most):
    found, rounds = find(count, bad)
    assert found == [f"c{place}" for place in bad[:3]]
    assert len(rounds) <= most
    assert [*range(count)] not in rounds  # What came of all of them is known.


def test_a_search_that_takes_long_ends():
    found, rounds = find(10_000, [0, 9_999])
    assert found == []
    assert len(rounds) == 12
    found, rounds = find(1_000, [0, 999])
    assert found == ["c0"]
    assert len(rounds) == 12
