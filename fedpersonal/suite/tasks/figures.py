"""Texts that a program prints of a test: metrics, their numbers of clients, and baselines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedpersonal.errors import noun_with_count
from fedpersonal.evaluation.baselines import CHANCE, strongest
from fedpersonal.evaluation.client_metrics import find_metric


def population_text(test: Mapping[str, Any], client: str = "user") -> str:
    """Returns the population of a test, such as `test, 3 users (22 more without a query set)`.

    Args:
        test: The entry `test` of a summary.
        client: The noun for a client.
    """
    without = test["num_clients_without_query"]
    more = f" ({without:,} more without a query set)" if without else ""
    return f"test, {noun_with_count(test['num_clients'], client)}{more}"


def metrics_text(test: Mapping[str, Any], metrics: Iterable[str], client: str = "user") -> str:
    """Returns metrics of a test, such as `rmse 1.4410, hr@10 0.4800 (25 users; chance: 0.1000)`.

    Metrics that the test does not have are left out. A metric without clients reads `no rmse`.

    Args:
        test: The entry `test` of a summary.
        metrics: The metrics, in order.
        client: The noun for a client.
    """
    texts = []
    for metric in metrics:
        name = find_metric(metric, [*test, *test["num_clients_of"]])
        if name is not None:
            value = f"{name} {test[name]:.4f}" if name in test else f"no {name}"
            texts.append(value + with_baseline(test, name, client))
    return ", ".join(texts)


def with_baseline(test: Mapping[str, Any], name: str, client: str = "user") -> str:
    """Returns a note in brackets on a metric: its number of clients and the best baseline.

    Args:
        test: The entry `test` of a summary.
        name: The metric.
        client: The noun for a client.
    """
    notes, best = [], strongest(test["guesses"], name)
    if name in test["num_clients_of"]:
        notes.append(noun_with_count(test["num_clients_of"][name], client))
    if best:
        notes.append(f"{best[0]}: {best[1]:.4f}")
        chance = test["guesses"].get(CHANCE, {}).get(name)
        if chance is not None and best[0] != CHANCE:
            notes.append(f"{CHANCE}: {chance:.4f}")
    return f" ({'; '.join(notes)})" if notes else ""


def before_and_after(test: Mapping[str, Any], name: str, *, is_personalised: bool) -> str:
    """Returns a metric of a summary's test, with its value before personalisation if any."""
    if not is_personalised:
        return f"{test[name]:.4f}"
    return f"{test['before'][name]:.4f} before and {test[name]:.4f} after personalisation"


def unseen_text(unseen: Mapping[str, Any], name: str, client: str = "user") -> str:
    """Returns a metric of unseen clients, before and after personalisation, with the baseline.

    Args:
        unseen: The entry `unseen` of a summary.
        name: The metric.
        client: The noun for a client.
    """
    stages = before_and_after(unseen, name, is_personalised=unseen["is_personalised"])
    clients = noun_with_count(unseen["num_clients"], client)
    return f"{clients} who never took part: {name} {stages}{with_baseline(unseen, name, client)}"
