"""What a program prints of a test: metrics, how many clients count in each, and guesses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedpersonal.errors import counted_nouns
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.evaluation.guess import CHANCE, strongest


def tested_text(test: Mapping[str, Any], client: str = "user") -> str:
    """Returns whom a test is of, such as `test, 3 users (22 more without a query set)`.

    Args:
        test: The entry `test` of a summary.
        client: What a client is, a noun.
    """
    without = test["num_clients_without_query"]
    more = f" ({without:,} more without a query set)" if without else ""
    return f"test, {counted_nouns(test['num_clients'], client)}{more}"


def figures_text(test: Mapping[str, Any], metrics: Iterable[str], client: str = "user") -> str:
    """Returns metrics of a test, such as `rmse 1.4410, hr@10 0.4800 (25 users; chance: 0.1000)`.

    Metrics that the test does not have are left out; of one in which no client counts it says so.

    Args:
        test: The entry `test` of a summary.
        metrics: The metrics, in order.
        client: What a client is, a noun.
    """
    told = []
    for metric in metrics:
        name = find_metric(metric, [*test, *test["num_clients_of"]])
        if name is not None:
            figure = f"{name} {test[name]:.4f}" if name in test else f"no {name}"
            told.append(figure + beside(test, name, client))
    return ", ".join(told)


def beside(test: Mapping[str, Any], name: str, client: str = "user") -> str:
    """Returns in brackets what is to be known of a metric: who counts in it, and what it must beat.

    Args:
        test: The entry `test` of a summary.
        name: The metric.
        client: What a client is, a noun.
    """
    about, best = [], strongest(test["guesses"], name)
    if name in test["num_clients_of"]:
        about.append(counted_nouns(test["num_clients_of"][name], client))
    if best:
        about.append(f"{best[0]}: {best[1]:.4f}")
        chance = test["guesses"].get(CHANCE, {}).get(name)
        if chance is not None and best[0] != CHANCE:
            about.append(f"{CHANCE}: {chance:.4f}")
    return f" ({'; '.join(about)})" if about else ""


def before_and_after(test: Mapping[str, Any], name: str, *, is_personalised: bool) -> str:
    """Returns a metric of a summary's test, with its value before if clients personalise."""
    if not is_personalised:
        return f"{test[name]:.4f}"
    return f"{test['before'][name]:.4f} before and {test[name]:.4f} after personalisation"


def unseen_text(unseen: Mapping[str, Any], name: str, client: str = "user") -> str:
    """Returns a metric of clients that never took part, before and after, and what it must beat.

    Args:
        unseen: The entry `unseen` of a summary.
        name: The metric.
        client: What a client is, a noun.
    """
    stages = before_and_after(unseen, name, is_personalised=unseen["is_personalised"])
    who = counted_nouns(unseen["num_clients"], client)
    return f"{who} who never took part: {name} {stages}{beside(unseen, name, client)}"
