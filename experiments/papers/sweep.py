"""What tables and figures of several runs have in common."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tabulate

from experiments.papers.child_process import run_in_child
from fedpersonal.errors import UserError
from fedpersonal.simulation.run_config import settle


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and the standard deviation over seeds, None for a single one."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return statistics.mean(values), deviation


def with_deviation(mean: float, deviation: float | None, *, digits: int) -> str:
    """Formats a mean over seeds, and its standard deviation unless there is a single seed."""
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def as_github_table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """Formats cells as a table of GitHub's Markdown."""
    return tabulate.tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def check_config(
    folder: pathlib.Path, config: Mapping[str, Any], *, ignore: Collection[str] = ()
) -> None:
    """Raises a UserError if a folder holds a run with another configuration.

    Args:
        folder: The run's folder, which is not locked by this.
        config: The configuration.
        ignore: What may differ.
    """
    settle(folder / "config.json", config, ignore=ignore)


def run_missing(
    title: str,
    number: int,
    count: int,
    *,
    is_done: Callable[[], bool],
    work: Callable[..., None],
    arguments: Sequence[Any],
    isolated: bool = True,
) -> None:
    """Does the work of one run of a sweep unless it is done.

    Args:
        title: Names the run.
        number: Its number in the sweep, from 1.
        count: How many runs the sweep has.
        is_done: Whether all that the work leaves is there.
        work: A function of a module.
        arguments: Its arguments.
        isolated: Whether to work in a process of its own.

    Raises:
        UserError: That of the work, with the title before it.
    """
    line = f"run {number} of {count}: {title}"
    if is_done():
        print(f"{line}: done before", flush=True)
        return
    print(line, flush=True)
    try:
        if isolated:
            run_in_child(work, *arguments)
        else:
            work(*arguments)
    except UserError as error:
        raise UserError(f"{title}: {error}") from error
