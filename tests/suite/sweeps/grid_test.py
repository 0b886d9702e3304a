"""Settings of a sweep: every combination, draws, and what is said of a wrong text."""

from __future__ import annotations

import collections
import itertools
import math

import pytest

from fedpersonal.errors import UserError
from fedpersonal.options import Options, option
from fedpersonal.suite.sweeps.grid import Range, all_settings, parse_grid, sample_settings


class Toys(Options):
    """What toys do."""

    rate: float = option(0.5, "A rate.", above=0, at_most=100)
    units: int = option(3, "Units.", at_least=1, at_most=1000)
    layers: tuple[int, ...] = option((3,), "Layers.", at_least=0)
    names: tuple[str, ...] = option((), "Names.")
    kind: str = option("a", "A kind.", choices=("a", "b"))
    bias: bool = option(False, "A bias.")
    limit: int | None = option(None, "A limit.", at_least=1)
    seed: int = option(0, "A seed.", at_least=0)


TEXTS = {
    "rate": (["0.1", "1e-3", "3"], [0.1, 0.001, 3.0]),
    "units": (["16", "32"], [16, 32]),
    "layers": (["64+32", "0"], [(64, 32), (0,)]),
    "names": (["in+out", "in"], [("in", "out"), ("in",)]),
    "kind": (["b", "a"], ["b", "a"]),
    "bias": (["true", "false"], [True, False]),
    "limit": (["none", "4"], [None, 4]),
}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_settings_are_the_product_of_the_values(count):
    for names in itertools.permutations(TEXTS, count):
        text = ";".join(f"{name}={','.join(TEXTS[name][0])}" for name in names)
        product = itertools.product(*(TEXTS[name][1] for name in names))
        expected = [dict(zip(names, values)) for values in product]
        found = all_settings(parse_grid(text, Toys))
        assert found == expected
        kinds = [[type(value) for value in setting.values()] for setting in found]
        assert kinds == [[type(value) for value in setting.values()] for setting in expected]


def test_blanks_and_a_last_semicolon_do_not_matter():
    expected = parse_grid("rate=0.1,0.3;units=2", Toys)
    assert parse_grid(" rate = 0.1 , 0.3 ;\n units=2 ; ", Toys) == expected


MISTAKES = {
    "": "it has no option",
    ";": "it has no option",
    "rate": "'rate' has no values; write it as name=value,value",
    "rate=": "'rate=' has no values",
    "=1": "'' is no option that can be chosen",
    "rat=1": "'rat' is no option that can be chosen; did you mean rate?",
    "rate=1;units=2;rate=3": "rate appears twice",
    "rate=0.1,.1": "rate has '.1' twice",
    "rate=1,": "--rate is ; it must be a finite number above 0",
    "rate=fast": "--rate is fast; it must be a finite number above 0 and at most 100",
    "rate=nan": "--rate is nan; it must be a finite number",
    "rate=-1": "--rate is -1.0; it must be a finite number above 0",
    "rate=none": "--rate is none; it must be a finite number",
    "units=1.5": "--units is 1.5; it must be a whole number at least 1",
    "units=16,2000": "--units is 2000; it must be a whole number",
    "layers=3+x": "--layers is 3,x; each must be a whole number",
    "kind=c": "--kind is c; it must be one of a, b",
    "bias=yes": "--bias is yes; it must be true or false",
    "rate=1..": "rate has '1..'; a range is low..high, without others",
    "rate=1..2,3": "rate has '1..2,3'; a range is low..high, without others",
    "rate=1..2..3": "rate has '1..2..3'; a range is low..high, without others",
    "rate=log:2": "rate has 'log:2'; a range is low..high, without others",
    "rate=2..1": "rate=2..1: the first number must be below the second",
    "rate=1..1": "the first number must be below the second",
    "limit=none..4": "limit=none..4: the first number must be below the second",
    "rate=1..200": "--rate is 200.0; it must be a finite number",
    "seed=log:0..4": "seed=log:0..4: logarithms need numbers above 0",
    "kind=a..b": "--kind is a..b; it must be one of a, b",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_names_the_culprit(text):
    with pytest.raises(UserError) as told:
        parse_grid(text, Toys)
    assert str(told.value).startswith("--grid: ") and MISTAKES[text] in str(told.value)


def test_ranges_are_for_draws_only():
    grid = parse_grid("units=1,2;rate=1..2", Toys)
    assert grid["rate"] == Range(1.0, 2.0, is_log=False, is_whole=False)
    with pytest.raises(UserError, match="rate has a range, which needs --random=N"):
        all_settings(grid)


def test_draws_are_in_the_range_spread_as_said_and_all_different():
    grid = parse_grid("rate=log:0.001..10;units=1..4;limit=log:1..1000;kind=a,b", Toys)
    drawn = sample_settings(grid, 4000, seed=1)
    assert len({tuple(setting.items()) for setting in drawn}) == 4000
    for setting in drawn[:500]:
        Toys(**setting)
        assert float(f"{setting['rate']:.4g}") == setting["rate"]
    rates = [setting["rate"] for setting in drawn]
    # A quarter of the logarithms is in each of the four decades.
    decades = collections.Counter(math.floor(math.log10(rate)) for rate in rates)
    assert all(abs(decades[d] / 4000 - 1 / 4) < 0.03 for d in (-3, -2, -1, 0))
    units = collections.Counter(setting["units"] for setting in drawn)
    assert sorted(units) == [1, 2, 3, 4]
    assert all(abs(count / 4000 - 1 / 4) < 0.03 for count in units.values())
    limits = [setting["limit"] for setting in drawn]
    assert {type(limit) for limit in limits} == {int} and 1 <= min(limits) < max(limits) <= 1000


@pytest.mark.parametrize("seed", range(20))
def test_three_draws_in_a_row_have_a_value_of_each_third_of_each_range(seed):
    grid = parse_grid("rate=log:0.01..10;units=1..6;limit=1..1000", Toys)
    drawn = sample_settings(grid, 9, seed=seed)
    for start in (0, 3, 6):
        some = drawn[start : start + 3]
        assert {math.floor(math.log10(one["rate"])) for one in some} == {-2, -1, 0}
        assert {(one["units"] - 1) // 2 for one in some} == {0, 1, 2}


def test_draws_are_fixed_by_their_seed_and_more_of_them_begin_alike():
    grid = parse_grid("rate=0.1..10;kind=a,b", Toys)
    assert sample_settings(grid, 20, seed=3)[:5] == sample_settings(grid, 5, seed=3)
    assert sample_settings(grid, 5, seed=3) != sample_settings(grid, 5, seed=4)


def test_all_of_a_small_grid_can_be_drawn_and_no_more():
    grid = parse_grid("units=1..3;kind=a,b", Toys)
    found = sample_settings(grid, 6, seed=0)
    assert sorted(map(str, found)) == sorted(
        str({"units": units, "kind": kind}) for units in (1, 2, 3) for kind in "ab"
    )
    with pytest.raises(UserError, match="--random=7: --grid has only 6 settings"):
        sample_settings(grid, 7, seed=0)
