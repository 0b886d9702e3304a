"""Random draws: what is drawn for one purpose says nothing of what is drawn for another."""

from __future__ import annotations

import ast
import itertools
import pathlib

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.randomness import Purpose, generator
from fedpersonal.training.clients import ClientSampler, sampled_clients

ROOT = pathlib.Path(__file__).parents[1]
FILES = [path for room in ("fedpersonal", "experiments") for path in (ROOT / room).rglob("*.py")]
ONCE = {Purpose.SPLIT, Purpose.PRETRAINING_TEXTS, Purpose.PRETRAINED_WEIGHTS}


def test_no_two_draws_share_a_stream():
    """Of purposes, seeds, rounds and clients, small ones and those that need several words."""
    seeds, rounds = (0, 1, 2, 7, 2**32, 2**32 + 7, 2**127 + 1), (0, 1, 2, 11, 2**32 - 1)
    clients = (0, 1, 2, 11, 2**32, 2**63 + 1)
    found = []
    for purpose, seed in itertools.product(Purpose, seeds):
        for number, client in [(0, 0)] if purpose in ONCE else itertools.product(rounds, clients):
            rng = generator(purpose, seed, round_number=number, client=client)
            found.append(rng.bit_generator.state["state"]["state"])
    assert len(found) == len(seeds) * (len(ONCE) + 30 * (len(Purpose) - len(ONCE)))
    assert len(set(found)) == len(found)


def test_numbers_of_purposes_stay_as_they_are():
    """They are part of the streams, and so of every figure."""
    assert [purpose.value for purpose in Purpose] == [*range(len(Purpose))]
    first = [generator(p, 3).integers(1000) for p in (Purpose.SPLIT, Purpose.ROUND_CLIENTS)]
    same = [np.random.default_rng(s).integers(1000) for s in (3, [3, 0, 0, 0, 3, 0, 0])]
    assert first == same


def test_every_example_of_every_client_is_drawn_as_often():
    """Also those of client 0, in the rounds in which it takes part."""
    num_clients, num_examples, rounds = 4, 4, 2000
    dataset = _numbered(num_clients, num_examples)
    sampler = ClientSampler(num_clients=num_clients, clients_per_round=1, seed=3)
    counts = np.zeros(num_clients * num_examples)
    for number in range(1, rounds + 1):
        drawn, indices = sampled_clients(
            dataset, sampler.sample(number), round_number=number, examples_per_round=1, seed=3
        )
        counts[drawn.subset(indices).labels.astype(int)] += 1
    # Each is binomial with chance 1/16.
    expected = rounds / counts.size
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected), counts


def test_draws_come_from_one_place():
    """Other modules take a generator, whose type alone they name."""
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                own = {"random", "numpy.random"} & {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                own = "numpy.random" in names or node.module in ("random", "numpy.random")
            else:
                module = getattr(node, "value", None)  # Of an attribute.
                is_numpys = isinstance(module, ast.Attribute) and ast.unparse(module) == "np.random"
                own = is_numpys and getattr(node, "attr", "") != "Generator"
            if own:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    places = {place.rpartition(":")[0] for place in found}
    assert places == {"fedpersonal/randomness.py"}, found


def _numbered(num_clients, num_examples):
    """Clients whose examples are their own numbers."""
    numbers = np.arange(num_clients * num_examples, dtype=np.float32)
    names = np.array([f"client{i}" for i in range(num_clients)], object)
    return ClientDataset(
        names, np.arange(0, len(numbers) + 1, num_examples), {"x": numbers}, numbers
    )
