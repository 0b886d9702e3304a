"""Runs side by side: which are seeds of one method, and whether methods test the same clients."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedpersonal.errors import UserError, escaped, listed, one_line
from fedpersonal.report.run import RunData, option_text, read_run, shown

FEWEST, MOST = 2, 10
# These say where a run computes and keeps things, not what it does.
_ELSEWHERE = frozenset(
    "seed output_dir runtime ray_address rounds_per_checkpoint shards data_dir "
    "cache_dir base_model_dir".split()
)
# These say which examples are tested.
_OF_TEST = (
    "task evaluate_on split_by unseen_users max_ratings_per_user max_sentences kept_sentences "
    "negatives num_negatives vocab_size num_oov_buckets known_words sequence_length"
).split()
# A method's name tells so many options, and so much of each.
_NAMED, _LONGEST = 2, 24
HAS_EXAMPLES = "has_examples"


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedRun:
    """A finished run that has evaluated clients.

    Attributes:
        data: What its folder says.
        clients: Its `per_client.csv`; with the column `has_examples`, 1.0 or 0.0.
    """

    data: RunData
    clients: pd.DataFrame

    @classmethod
    def read(cls, folder: str | os.PathLike) -> ComparedRun:
        """Reads a folder.

        Raises:
            UserError: If it is not that of a run, which has ended and evaluated clients.
        """
        data = read_run(folder)
        clients = data.clients
        if not isinstance(data.summary.get("test"), dict) or not len(clients):
            raise UserError(f"{data.path} has no evaluated clients to compare.")
        examples, names = clients.get("num_examples"), clients.get("client")
        if examples is None or examples.dtype.kind not in "iuf" or not (examples > 0).any():
            raise UserError(f"{data.path / 'per_client.csv'} is damaged: nobody has examples.")
        if names is None or names.duplicated().any():
            raise UserError(f"{data.path / 'per_client.csv'} is damaged: see its clients' names.")
        return cls(data, clients.assign(**{HAS_EXAMPLES: (examples > 0).astype(float)}))

    @property
    def folder(self) -> str:
        """Its folder as messages name it."""
        return escaped(str(self.data.path))

    @property
    def test(self) -> Mapping[str, Any]:
        """What its test came to."""
        return self.data.summary["test"]

    @property
    def seed(self) -> int | None:
        """Its seed."""
        return self.data.config.get("seed")

    @functools.cached_property
    def options(self) -> dict[str, str]:
        """Its options as JSON, but for those that do not matter."""
        options = self.data.options.items()
        return {k: json.dumps(v, ensure_ascii=False) for k, v in options if k not in _ELSEWHERE}

    def shown(self, name: str) -> str:
        """Returns the value of an option as a page shows it."""
        options = self.data.options
        return option_text(name, options[name]) if name in options else "absent"

    @functools.cached_property
    def tested(self) -> pd.Series:
        """How many examples each evaluated client is tested on, by its name."""
        rows = self.clients[self.clients["num_examples"] > 0]
        return rows.set_index("client")["num_examples"]

    @functools.cached_property
    def metrics(self) -> list[str]:
        """The metrics that it has of all clients and of each."""
        numbers = self.clients.select_dtypes("number").columns
        return [
            name
            for name, value in self.test.items()
            if isinstance(value, (int, float))
            and not name.startswith("num_")
            and not name.endswith("_before")
            and (f"{name}_after" in numbers or name in numbers)
        ]

    @property
    def usual_metrics(self) -> Sequence[str]:
        """The metrics that its task prints, if it is the run of a task."""
        return self.data.task.metrics if self.data.task else ()

    def rows(self, weights: str | None) -> pd.DataFrame:
        """Returns the clients that count, by name: those with a weight, or all."""
        clients = self.clients.set_index("client").sort_index()
        return clients if weights is None else clients[clients[weights] > 0]

    @property
    def num_bytes(self) -> float | None:
        """What all clients of all rounds received and sent; None where that is not known."""
        of_round, rounds = self.data.bytes_per_round, self.data.summary.get("rounds")
        return of_round * rounds if of_round and isinstance(rounds, int) else None


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedMethod:
    """Runs that differ by their seed alone.

    Attributes:
        name: Its name, with the options that tell it from others of that name.
        runs: The runs by seed, in ascending order.
        seeds: The seeds that all compared methods have.
    """

    name: str
    runs: Mapping[int | None, ComparedRun]
    seeds: Sequence[int | None]

    @property
    def first(self) -> ComparedRun:
        """One of its runs: those of other seeds have the same options."""
        return next(iter(self.runs.values()))

    @property
    def paired(self) -> list[ComparedRun]:
        """Its runs of the seeds that all have."""
        return [self.runs[seed] for seed in self.seeds]


def read_methods(folders: Sequence[str | os.PathLike]) -> list[ComparedMethod]:
    """Reads runs and puts the seeds of each method together, in the order of the folders.

    Raises:
        UserError: If they are too few or too many, one is no finished run or is given twice, or
            methods are not tested on the same examples of the same clients, seed by seed.
    """
    if not FEWEST <= len(folders) <= MOST:
        given = f"{len(folders)} {'is' if len(folders) == 1 else 'are'} given"
        raise UserError(f"a comparison is of {FEWEST} to {MOST} run folders; {given}.")
    groups: dict[str, dict[int | None, ComparedRun]] = {}
    for folder in folders:
        run = ComparedRun.read(folder)
        runs = groups.setdefault(json.dumps(run.options, sort_keys=True), {})
        same = runs.setdefault(run.seed, run)
        if same is not run:
            raise UserError(
                f"{run.folder} is given twice."
                if same.data.path == run.data.path
                else f"{same.folder} and {run.folder} are the same run: no option differs, and the "
                f"seed of both is {one_line(run.seed)}."
            )
    ordered = [
        {seed: runs[seed] for seed in sorted(runs, key=lambda seed: seed or 0)}
        for runs in groups.values()
    ]
    seeds = [seed for seed in ordered[0] if all(seed in runs for runs in ordered)]
    firsts = [next(iter(runs.values())) for runs in ordered]
    if not seeds:
        words = [f"{listed([*map(str, r)])} of {first.folder}" for r, first in zip(ordered, firsts)]
        raise UserError(
            f"no seed is common to all methods, seeds {'; '.join(words)}: runs of another seed "
            "test other clients."
        )
    for seed in seeds:
        same_seed = [runs[seed] for runs in ordered]
        for run in same_seed[1:]:
            _check_match(same_seed[0], run)
    names = _names(firsts)
    return [ComparedMethod(name, runs, seeds) for name, runs in zip(names, ordered)]


def differing_options(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns the names of the options that differ."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    return [name for name in names if len({run.options.get(name) for run in runs}) > 1]


def _check_match(first: ComparedRun, second: ComparedRun) -> None:
    """Raises a UserError unless both are tested on the same examples of the same clients."""
    differ = differing_options([first, second])
    data = [run.data.config.get("data") for run in (first, second)]
    labels = [run.data.summary.get("test_labels") for run in (first, second)]
    ours, others = first.tested, second.tested
    shared = ours.index.intersection(others.index)
    if "task" in differ:
        why = "they are of two tasks"
    elif data[0] != data[1]:
        why = f"their data differ, {_differences(*data)}"
    elif len(shared) < max(len(ours), len(others)):
        why = (
            f"they evaluate {len(ours):,} and {len(others):,} clients, of whom {len(shared):,} are "
            "the same"
        )
    elif num_others := int((ours != others.loc[ours.index]).sum()):
        why = f"{num_others:,} of {len(ours):,} clients are tested on other numbers of examples"
    elif labels[0] != labels[1] and None in labels:
        why = "only one of them says which examples it is tested on (test_labels)"
    elif labels[0] != labels[1]:
        why = "clients are tested on other examples"
    else:
        return
    words = [f"{n} is {first.shown(n)} and {second.shown(n)}" for n in differ if n in _OF_TEST]
    because = f" ({'; '.join(words)})" if words else ""
    raise UserError(f"{first.folder} and {second.folder} cannot be compared: {why}{because}.")


def _differences(first: Any, second: Any) -> str:
    """Returns by which parts fingerprints of data differ, in words."""
    parts = [v if isinstance(v, Mapping) else {"fingerprint": v} for v in (first, second)]
    names = [n for n in {**parts[0], **parts[1]} if parts[0].get(n) != parts[1].get(n)]
    return one_line(
        "; ".join(f"{n} {parts[0].get(n, 'absent')} and {parts[1].get(n, 'absent')}" for n in names)
    )


def _names(firsts: Sequence[ComparedRun]) -> list[str]:
    """Returns a name for each: that of its method, and the options that tell it from others."""
    names = []
    for run in firsts:
        alike = [other for other in firsts if other.data.method == run.data.method]
        differ = [name for name in differing_options(alike) if name != "method"]
        words = [f"{name}={run.shown(name)[:_LONGEST]}" for name in differ[:_NAMED]]
        words += [f"{len(differ) - _NAMED} more"] if len(differ) > _NAMED else []
        method = shown(run.data.method)
        names.append(f"{method} ({', '.join(words)})" if differ else method)
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [n if names.count(n) == 1 else f"{n} #{c}" for n, c in zip(names, counts)]
