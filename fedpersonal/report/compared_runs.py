"""Runs side by side: which are seeds of one method, and whether methods test the same clients."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedpersonal.errors import UserError, escaped, listed, one_line
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.run_record import RunRecord

FEWEST, MOST = 2, 10
# These say where a run computes and keeps things, not what it does.
_ELSEWHERE = frozenset(
    "seed output_dir runtime ray_address ray_node_seconds rounds_per_checkpoint shards data_dir "
    "cache_dir base_model_dir".split()
)
# These say which examples are tested.
_OF_TEST = (
    "task evaluate_on split_by unseen_users max_ratings_per_user max_sentences kept_sentences "
    "negatives num_negatives vocab_size num_oov_buckets known_words sequence_length"
).split()
# A method's name tells so many options, and so much of each.
_NAMED, _LONGEST = 2, 24
_LONGEST_NAME = 60
HAS_EXAMPLES = "has_examples"


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedRun:
    """A finished run, read once.

    Attributes:
        record: Its folder.
        config: Its `config.json`.
        summary: Its `summary.json`.
        clients: Its `per_client.csv`; with the column `has_examples`, 1.0 or 0.0.
    """

    record: RunRecord
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    clients: pd.DataFrame

    @classmethod
    def read(cls, folder: str | os.PathLike) -> ComparedRun:
        """Reads a folder.

        Raises:
            UserError: If it is not that of a run, which has ended and evaluated clients.
        """
        record = RunFolder.read(folder)
        summary, clients = record.summary, record.per_client
        test, examples = summary.get("test"), clients.get("num_examples")
        if not isinstance(test, dict) or "client" not in clients or examples is None:
            raise UserError(f"{record.path} is damaged: its test or its clients' rows are missing.")
        if examples.dtype.kind not in "iuf" or clients["client"].duplicated().any():
            raise UserError(f"{record.path / 'per_client.csv'} is damaged: see its first columns.")
        if not (examples > 0).any():
            raise UserError(f"{record.path} has no evaluated clients.")
        clients = clients.assign(**{HAS_EXAMPLES: (examples > 0).astype(float)})
        return cls(record, record.config, summary, clients)

    @property
    def folder(self) -> str:
        """Its folder as messages name it."""
        return escaped(str(self.record.path))

    @property
    def seed(self) -> int | None:
        """Its seed."""
        return self.config.get("seed")

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return one_line(self.summary.get("algorithm", self.config["options"].get("algorithm")))

    @functools.cached_property
    def options(self) -> dict[str, str]:
        """Its options as JSON, but for those that do not matter."""
        options = self.config["options"].items()
        return {k: json.dumps(v, ensure_ascii=False) for k, v in options if k not in _ELSEWHERE}

    @functools.cached_property
    def metrics(self) -> pd.DataFrame:
        """Its `metrics.csv`; no rows where it did not train."""
        if not self.record.metrics_csv.exists():
            return pd.DataFrame({"round": [], "seconds": []})
        return self.record.metrics

    @functools.cached_property
    def tested(self) -> pd.Series:
        """How many examples each evaluated client is tested on, by its name."""
        rows = self.clients[self.clients["num_examples"] > 0]
        return rows.set_index("client")["num_examples"]


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedMethod:
    """Runs that differ by their seed alone.

    Attributes:
        name: Its algorithm, with the options that tell it from others of the same algorithm.
        runs: The runs by seed, in ascending order.
    """

    name: str
    runs: Mapping[int | None, ComparedRun]

    @property
    def first(self) -> ComparedRun:
        """One of its runs: those of other seeds have the same options."""
        return next(iter(self.runs.values()))


def read_methods(folders: Sequence[str | os.PathLike]) -> list[ComparedMethod]:
    """Reads runs and puts the seeds of each method together, in the order of the folders.

    Raises:
        UserError: If they are too few or too many, one is no finished run or is given twice, or
            methods are not tested on the same examples of the same clients, seed by seed.
    """
    if not FEWEST <= len(folders) <= MOST:
        raise UserError(
            f"a comparison is of {FEWEST} to {MOST} run folders; {len(folders)} are given."
        )
    groups: dict[str, dict[int | None, ComparedRun]] = {}
    for folder in folders:
        run = ComparedRun.read(folder)
        runs = groups.setdefault(json.dumps(run.options, sort_keys=True), {})
        same = runs.setdefault(run.seed, run)
        if same is not run:
            raise UserError(
                f"{run.folder} is given twice."
                if same.record.path == run.record.path
                else f"{same.folder} and {run.folder} are the same run: no option differs, and the "
                f"seed of both is {one_line(run.seed)}."
            )
    ordered = [dict(sorted(g.items(), key=lambda pair: pair[0] or 0)) for g in groups.values()]
    first, *others = ordered
    for other in others:
        shared_seeds(first, other)
    for seed in {seed: None for runs in ordered for seed in runs}:
        same_seed = [runs[seed] for runs in ordered if seed in runs]
        for run in same_seed[1:]:
            _check_match(same_seed[0], run)
    names = _names([next(iter(runs.values())) for runs in ordered])
    return [ComparedMethod(name, runs) for name, runs in zip(names, ordered)]


def shared_seeds(
    first: Mapping[int | None, ComparedRun], second: Mapping[int | None, ComparedRun]
) -> list[int | None]:
    """Returns the seeds by which both methods have runs.

    Raises:
        UserError: If there is none.
    """
    shared = [seed for seed in first if seed in second]
    if not shared:
        a, b = (next(iter(runs.values())) for runs in (first, second))
        raise UserError(
            f"{a.folder} and {b.folder} have no seed in common ({_seeds(first)}; "
            f"{_seeds(second)}): runs of another seed test other clients."
        )
    return shared


def _seeds(runs: Iterable[int | None]) -> str:
    return f"seed {listed([str(seed) for seed in runs])}"


def differing_options(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Returns the options that differ, each with the value of every run, JSON; absent is ''."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    found = {name: [run.options.get(name, "") for run in runs] for name in names}
    return {name: values for name, values in found.items() if len({*values}) > 1}


def _check_match(first: ComparedRun, second: ComparedRun) -> None:
    """Raises a UserError unless both are tested on the same examples of the same clients."""

    def refuse(why: str) -> UserError:
        return UserError(f"{first.folder} and {second.folder} cannot be compared: {why}.")

    differ = differing_options([first, second])
    if "task" in differ:
        raise refuse("their task is {} and {}".format(*differ["task"]))
    data = [run.config.get("data") for run in (first, second)]
    if data[0] != data[1]:
        raise refuse(f"their data differ, {_differences(*data)}")
    of_test = {name: pair for name, pair in differ.items() if name in _OF_TEST}
    told = [f"{name} is {a or 'absent'} and {b or 'absent'}" for name, (a, b) in of_test.items()]
    because = f" ({one_line('; '.join(told))})" if told else ""
    ours, others = first.tested, second.tested
    shared = ours.index.intersection(others.index)
    if len(shared) < max(len(ours), len(others)):
        raise refuse(
            f"they evaluate {len(ours):,} and {len(others):,} clients, of whom {len(shared):,} are "
            f"the same{because}"
        )
    others = others.loc[ours.index]
    num_others = int((ours != others).sum())
    if num_others:
        raise refuse(
            f"{num_others:,} of {len(ours):,} clients are tested on other numbers of examples"
            f"{because}"
        )
    labels = [run.summary.get("test_labels") for run in (first, second)]
    if (labels[0] is None) != (labels[1] is None):
        raise refuse("only one of them says which examples it is tested on (test_labels)")
    if labels[0] != labels[1]:
        raise refuse(f"clients are tested on other examples{because}")


def _differences(first: Any, second: Any) -> str:
    """Returns by which parts fingerprints of data differ, in words."""
    parts = [v if isinstance(v, Mapping) else {"fingerprint": v} for v in (first, second)]
    names = [n for n in {**parts[0], **parts[1]} if parts[0].get(n) != parts[1].get(n)]
    return one_line(
        "; ".join(f"{n} {parts[0].get(n, 'absent')} and {parts[1].get(n, 'absent')}" for n in names)
    )


def _names(firsts: Sequence[ComparedRun]) -> list[str]:
    """Returns a name for each method, distinct and of moderate length."""
    names = []
    for run in firsts:
        alike = [other for other in firsts if other.algorithm == run.algorithm]
        differ = [name for name in differing_options(alike) if name != "algorithm"]
        shown = [f"{n}={_short(run.options.get(n, 'absent'))}" for n in differ[:_NAMED]]
        rest = [f"{len(differ) - _NAMED} more"] if len(differ) > _NAMED else []
        told = f" ({', '.join([*shown, *rest])})" if differ else ""
        names.append(run.algorithm[:_LONGEST_NAME] + told)
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [n if names.count(n) == 1 else f"{n} #{c}" for n, c in zip(names, counts)]


def _short(value: str) -> str:
    value = escaped(value.strip('"'))
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
