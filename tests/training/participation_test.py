"""Who takes part, against the documented rule written out client by client."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.methods.phases import GradientPhase, RidgePhase
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.client_sampling import ClientSampling
from fedpersonal.training.clients import ClientSampler
from fedpersonal.training.participation import (
    ClientClock,
    Participation,
    count_work,
)

CLIENTS, WANTED, SEED = 60, 8, 5
SGD = build_sgdm(0.1)
COUNTS = np.random.default_rng(1).integers(0, 40, CLIENTS)
WORK = 2 * COUNTS
TRAIN = ClientDataset(
    [f"c{i}" for i in range(CLIENTS)],
    np.append(0, np.cumsum(COUNTS)),
    {"x": np.zeros(COUNTS.sum(), np.float32)},
    np.zeros(COUNTS.sum(), np.float32),
)
CLOCK = ClientClock(overhead_seconds=0.5, example_seconds=0.1)
EVERYTHING = {
    "dropout_rate": 0.2,
    "lost_update_rate": 0.2,
    "over_selection": 0.8,
    "round_time_limit": 6.0,
    "min_examples": 5,
}


# Two passes over its examples, one by one, are WORK.
TWICE = SimpleNamespace(
    keeps=True, name="twice", phases=[GradientPhase("global", "all", SGD, epochs=2)]
)


def draw(participation=None, train=TRAIN, **options):
    defaults = {"clients_per_round": WANTED, "batch_size": 1, "seed": SEED}
    return ClientSampling(TWICE, train, participation=participation, **{**defaults, **options})


def stream(purpose, round_number=0):
    """The documented stream of client 0, or of no client."""
    key = (purpose, round_number, 0)
    return np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=key))


def by_hand(round_number, *, sampling="fixed", **asked):
    """Goes through the documented rule, one client after another."""
    ask = {**dict.fromkeys(EVERYTHING, 0), "round_time_limit": math.inf, **asked}
    eligible = [i for i in range(CLIENTS) if COUNTS[i] >= ask["min_examples"]]
    random = stream(3, round_number)
    if sampling == "poisson":
        count = random.binomial(len(eligible), WANTED / len(eligible))
    else:
        count = min(len(eligible), math.ceil(round(WANTED * (1 + ask["over_selection"]), 6)))
    drawn = [eligible[i] for i in random.choice(len(eligible), count, replace=False)]
    begins = [True] * count
    if ask["dropout_rate"]:
        luck = random.random(count)
        begins = [x >= ask["dropout_rate"] for x in luck]
        if sampling == "fixed":
            begins[int(np.argmax(luck))] = True
    normal = stream(5).standard_normal(CLIENTS)
    after = stream(4, round_number)
    losing = after.random(count)
    fates, seconds = [], []
    for place, client in enumerate(drawn):
        seconds.append(0.5 + WORK[client] * 0.1 * math.exp(0.5 * normal[client]))
        if not begins[place]:
            fates.append("before")
        elif losing[place] < ask["lost_update_rate"]:
            fates.append("after")
        else:
            fates.append("late" if seconds[place] > ask["round_time_limit"] else "in time")
    in_time = sorted((s, p) for p, s in enumerate(seconds) if fates[p] == "in time")
    wanted = WANTED if sampling == "fixed" else count
    for _, place in in_time[wanted:]:
        fates[place] = "surplus"
    took = max((s for p, s in enumerate(seconds) if fates[p] == "in time"), default=0.0)
    if fates.count("in time") < wanted and ask["round_time_limit"] < math.inf:
        took = ask["round_time_limit"]
    names = {
        "num_dropped_before": "before",
        "num_dropped_after": "after",
        "num_late": "late",
        "num_surplus": "surplus",
        "num_reported": "in time",
    }
    columns = {"num_drawn": count, **{name: fates.count(f) for name, f in names.items()}}
    reported = [c for c, f in zip(drawn, fates) if f == "in time"]
    lost = [c for c, f in zip(drawn, fates) if f in ("after", "late", "surplus")]
    return reported, lost, {**columns, "simulated_seconds": pytest.approx(took, rel=1e-12)}


@pytest.mark.parametrize(
    ("part", "options", "expected"),
    [
        ("all", {}, [12, 6, 0, 3]),
        ("all", {"epochs": 2, "max_steps": 5}, [15, 12, 0, 6]),
        ("support", {}, [6, 3, 0, 3]),
        ("query", {"epochs": 3}, [18, 9, 0, 0]),
    ],
)
def test_work_is_that_of_the_steps(part, options, expected):
    counts = np.array([11, 4, 0, 2])
    phase = GradientPhase("global", part, SGD, **options)
    assert count_work([phase], counts, batch_size=3).tolist() == expected
    ridge = count_work([RidgePhase("support", l2=1.0), phase], counts, batch_size=3)
    assert (ridge - expected).tolist() == [6, 3, 0, 3]


ASKED = [
    EVERYTHING,
    {},
    *({name: value} for name, value in EVERYTHING.items()),
    {"over_selection": 20.0, "min_examples": 30},
    {"lost_update_rate": 0.9, "over_selection": 0.5},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_who_takes_part_follows_from_seed_and_round(sampling, asked):
    asked = {k: v for k, v in asked.items() if sampling == "fixed" or k != "over_selection"}
    who = draw(Participation(clock=CLOCK, **asked), sampling=sampling)
    total = dict.fromkeys(who.columns(1), 0)
    for number in [*range(30), 3]:
        found = who.outcome(number)
        reported, lost, columns = by_hand(number, sampling=sampling, **asked)
        assert (found.reported.tolist(), found.lost.tolist()) == (reported, lost)
        assert found.columns == columns
        total = {name: total[name] + value for name, value in found.columns.items()}
    wanted_fates = {
        "dropout_rate": "num_dropped_before",
        "lost_update_rate": "num_dropped_after",
        "round_time_limit": "num_late",
    }
    for option, name in wanted_fates.items():
        assert (total[name] > 0) == (option in asked)
    fates = total.keys() - {"num_drawn", "simulated_seconds"}
    assert total["num_drawn"] == sum(total[name] for name in fates)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize(
    "asked", [{}, {"dropout_rate": 0.3, "lost_update_rate": 0.4, "min_examples": 5}], ids=len
)
def test_those_never_drawn_are_as_many_as_expected(sampling, asked):
    rounds, seeds, found = 15, 40, []
    for seed in range(seeds):
        who = draw(Participation(**asked) if asked else None, sampling=sampling, seed=seed)
        found.append(sum(not own for own in who.attended_rounds(rounds).values()))
    deviation = np.std(found) / seeds**0.5
    assert who.expect_never_sampled(rounds) == pytest.approx(np.mean(found), abs=3 * deviation)
    # Who has too few examples is in no round, however many there are.
    barred = (COUNTS < asked.get("min_examples", 0)).sum()
    assert who.expect_never_sampled(10_000) == pytest.approx(barred)


@pytest.mark.parametrize(
    ("rounds", "barred", "line"),
    [
        (60, 0, "about 6 of 180 clients will never be sampled in 60 rounds of 10; 120 rounds would "
                "leave 0.2"),
        (120, 0, ""),
        (120, 30, "about 30 of 180 clients will never be sampled in 120 rounds of 10"),
    ],
)  # fmt: skip
def test_few_rounds_are_warned_of(rounds, barred, line, caplog):
    ends = np.cumsum(np.repeat([1, 2], [barred, 180 - barred]))
    columns = {"x": np.zeros(ends[-1], np.float32)}
    train = ClientDataset([f"c{i}" for i in range(180)], np.append(0, ends), columns, columns["x"])
    draw(Participation(min_examples=2), train, clients_per_round=10).warn_of_never_sampled(rounds)
    assert [record.message for record in caplog.records] == [line] * bool(line)


def test_nothing_asked_draws_as_the_sampler_does():
    sampler = ClientSampler(num_clients=CLIENTS, clients_per_round=WANTED, seed=SEED)
    for who in (draw(), draw(Participation())):
        for number in range(20):
            np.testing.assert_array_equal(who.outcome(number).reported, sampler.sample(number))


def test_clients_of_unknown_size_drop_out_without_a_clock():
    train = SimpleNamespace(num_clients=CLIENTS)
    found = draw(Participation(dropout_rate=0.3, lost_update_rate=0.3), train).columns(1)
    assert "simulated_seconds" not in found and found["num_drawn"] == WANTED
    for options, said in (
        ({"min_examples": 3}, "min_examples is 3, but these clients are read when"),
        ({"round_time_limit": 9.0}, "round_time_limit requires the number of examples"),
        ({"over_selection": 0.1}, "over_selection requires the number of examples"),
        ({"clock": ClientClock(speed_spread=0)}, "a clock requires the number of examples"),
    ):
        with pytest.raises(UserError, match=said):
            draw(Participation(**options), train)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dropout_rate": 1.0}, "Participation: dropout_rate=1.0 is out of range"),
        ({"lost_update_rate": -0.1}, "lost_update_rate=-0.1"),
        ({"over_selection": math.inf}, "over_selection=inf"),
        ({"min_examples": -1}, "min_examples=-1"),
        ({"round_time_limit": 0}, "round_time_limit=0"),
        ({"round_time_limit": 1.0}, "no client reports so early"),
        ({"clock": {"speed_spread": -1}}, "ClientClock: speed_spread=-1 is out of range"),
        ({"clock": {"example_seconds": math.nan}}, "ClientClock: example_seconds=nan"),
        ({"lost_clients_keep": True, "dropout_rate": 0.5}, "has no effect without"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_in_a_line(options, said):
    with pytest.raises(UserError, match=said) as refused:
        clock = ClientClock(**options.get("clock", {}))
        Participation(**{**options, "clock": clock})
    assert "\n" not in str(refused.value)


def test_a_draw_that_contradicts_is_refused_in_a_line():
    more = Participation(over_selection=0.3)
    more.check_sampling("fixed", is_private=False)
    with pytest.raises(UserError, match="with Poisson sampling that number is random"):
        more.check_sampling("poisson", is_private=False)
    with pytest.raises(UserError, match="the epsilon of differential privacy requires one"):
        more.check_sampling("fixed", is_private=True)
    Participation(round_time_limit=5.0, min_examples=3).check_sampling("poisson", is_private=True)
    with pytest.raises(UserError, match="min_examples is 99, but no client has more than 39"):
        Participation(min_examples=99).eligible(TRAIN)
