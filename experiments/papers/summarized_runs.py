"""Runs of a sweep that end with a summary, each in a folder of its own."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.papers.sweep import check_config, run_missing


@dataclasses.dataclass(frozen=True)
class SummarizedRun:
    """A run.

    Attributes:
        title: For people.
        path: Its folder.
        options: What it trains, a dataclass.
    """

    title: str
    path: pathlib.Path
    options: Any

    def is_done(self) -> bool:
        """Whether its summary is there."""
        return (self.path / "summary.json").exists()

    def summary(self) -> dict[str, Any]:
        """Returns what it came to."""
        return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))


def complete(
    runs: Sequence[SummarizedRun],
    work: Callable[[SummarizedRun, Any, Mapping[str, Any]], None],
    source: Any,
    about: Mapping[str, Any],
    *,
    isolated: bool = True,
) -> None:
    """Runs whatever is missing, one run after another.

    Args:
        runs: The runs.
        work: A function of a module: runs one, given the source and its configuration.
        source: Where the data come from, in each run's process too.
        about: What tells the data from others; part of each run's configuration.
        isolated: Whether each run has a process of its own, so that its memory comes back.

    Raises:
        UserError: If a folder holds another run, or training diverges.
    """
    configs = [{**dataclasses.asdict(run.options), **about} for run in runs]
    for run, config in zip(runs, configs):
        check_config(run.path, config)
    for number, (run, config) in enumerate(zip(runs, configs), start=1):
        run_missing(
            run.title,
            number,
            len(runs),
            is_done=run.is_done,
            work=work,
            arguments=(run, source, config),
            isolated=isolated,
        )
