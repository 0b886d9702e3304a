"""What a program prints of a test names clients by the task's noun."""

from __future__ import annotations

from typing import Any

from fedpersonal.suite.tasks import figures
from fedpersonal.suite.tasks.task import Task

GUESSES = {"the most frequent": {"accuracy": 0.25}}
UNSEEN = {
    "num_clients": 1,
    "num_clients_of": {},
    "accuracy": 0.5,
    "is_personalised": False,
    "guesses": GUESSES,
}
TEST: dict[str, Any] = {
    "num_clients": 100,
    "num_clients_without_query": 2,
    "num_clients_of": {"accuracy": 60},
    "num_examples": 1000,
    "accuracy": 0.5,
    "guesses": GUESSES,
}


def test_a_task_of_ones_own_says_what_its_clients_are():
    class Cities(Task):
        client = "city"

    (line,) = Cities().report({"test": TEST})
    assert line == (
        "test, 100 cities (2 more without a query set), 1,000 examples: "
        "accuracy 0.5000 (60 cities; the most frequent: 0.2500)"
    )
    (line,) = Task().report({"test": TEST})
    assert "100 users" in line and "60 users" in line


def test_one_client_is_singular():
    one = figures.population_text({**TEST, "num_clients": 1}, "seen user")
    assert one.startswith("test, 1 seen user (2")
    assert figures.unseen_text(UNSEEN, "accuracy", "writer") == (
        "1 writer who never took part: accuracy 0.5000 (the most frequent: 0.2500)"
    )
