"""Orders of clients' examples: permutations that leave support and query sets as they are."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.shuffle import Shuffle
from fedpersonal.data.splits import SPLITS, dividing_part, is_in_part, split_parts


def make(*passes, seed=3):
    return Shuffle(passes or ((3, ()),), True, 4, seed)


def orders_of(client, count, round_number, **options):
    (orders,) = make(**options).orders([client], [count], round_number)
    return orders


def test_each_pass_takes_every_example_once_in_an_order_of_its_own():
    orders = orders_of("anna", 50, 7)
    assert (np.sort(orders, axis=1) == np.arange(50)).all()
    assert orders.shape == (3, 50) and orders.dtype == np.int32
    assert len({tuple(order) for order in [*orders, np.arange(50)]}) == 4
    assert orders_of("anna", 0, 7).shape == (3, 0)


def test_orders_follow_from_seed_round_and_name_alone():
    expected = orders_of("anna", 50, 7)
    np.testing.assert_array_equal(orders_of("anna", 50, 7), expected)
    others = [orders_of("anna", 50, 7, seed=4), orders_of("anna", 50, 8)]
    for other in [*others, orders_of("ann", 50, 7)]:
        assert (other != expected).mean() > 0.8
    among_others = make().orders(["ann", "anna", "nobody"], [999, 50, 0], 7)
    np.testing.assert_array_equal(among_others[1], expected)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("share", [0.5, 0.25])
@pytest.mark.parametrize("count", [3, 18, 41])
def test_support_and_query_sets_keep_their_examples(split, share, count):
    """Those of the data's order, by whole batches, with the batch that is not full among them."""
    support, query = split_parts(split, share)
    part = dividing_part(query)
    assert part == dividing_part(support)
    shuffle = make((2, ()), (2, (part,) if part else ()))
    batches, num_batches = np.arange(count) // 4, -(-count // 4)
    for part in (support, query):
        places = np.flatnonzero(is_in_part(part, batches, num_batches))
        (orders,) = shuffle.orders(["anna"], [count], 0)
        for order in orders[2:]:
            assert sorted(order[places]) == places.tolist()
        assert (np.sort(orders, axis=1) == np.arange(count)).all()


def test_every_place_is_as_likely():
    counts = np.zeros((5, 5))
    for number in range(400):
        for order in orders_of("anna", 5, number):
            counts[np.arange(5), order] += 1
    # Each is binomial with chance 1/5 of 1,200 draws.
    assert np.abs(counts - 240).max() < 5 * np.sqrt(1200 * 0.2 * 0.8)
