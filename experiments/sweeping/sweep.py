"""Runs of settings and seeds, and the choice of a setting by validation clients alone."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.children import Call, call_at_once, fitting
from experiments.papers.jobs import Job, check_folders
from experiments.sweeping import trials
from experiments.sweeping.grid import Setting, values_text
from experiments.sweeping.trials import Trial
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import find_metric, lower_is_better
from fedpersonal.evaluation.guess import best_guess
from fedpersonal.options import Value
from fedpersonal.tasks.task import Task

_LONGEST_NAME = 100
_TRAININGS_A_PROCESS = 8


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a setting came to.

    Attributes:
        setting: The setting.
        trials: Its runs, one a seed.
        scores: Their metric on validation clients, one a seed; none where a run has diverged.
        diverged: Why it has; empty where none has.
    """

    setting: Setting
    trials: Sequence[Trial]
    scores: Sequence[float]
    diverged: str = ""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.mean(self.scores)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is asked.

    Attributes:
        task: The task.
        given: Its options that all runs share.
        settings: Options in which runs differ.
        seeds: Seeds of each setting; all have the split of the first, unless `given` names one.
        output_dir: Receives the runs and the table.
        metric: By which a setting is chosen; None for the first that the task prints.
        at_once: How many runs at once; None for as many as fit.
        beside: How many settings next to the chosen one are tested, too.
    """

    task: Task
    given: Mapping[str, Value]
    settings: Sequence[Setting]
    seeds: Sequence[int]
    output_dir: pathlib.Path
    metric: str | None = None
    at_once: int | None = None
    beside: int = 1

    @functools.cached_property
    def shared(self) -> dict[str, Value]:
        """The options that all runs share, the number of shards among them.

        How many runs share the machine must not change what comes of them.
        """
        on_cluster = self.given.get("runtime") == "ray"
        shards = {} if on_cluster else {"shards": 1}
        # Nobody who is tested has a part in the choice, by whatever seed.
        return {**shards, "split_seed": self.seeds[0], **self.given}

    @functools.cached_property
    def trials(self) -> list[Trial]:
        """All runs, seed by seed, so that each setting is met early.

        Raises:
            UserError: If options of a setting contradict each other.
        """
        return [self._trial(setting, seed) for seed in self.seeds for setting in self.settings]

    @property
    def chosen_by(self) -> str:
        """The metric by which a setting is chosen, the first that validations have."""
        if self.metric:
            return self.metric
        found = (trial.validation.metrics for trial in self.trials if trial.is_validated)
        known = next((metrics for metrics in found if metrics), ())
        return next((n for n in self.task.metrics if find_metric(n, known)), self.task.metrics[0])

    def check(self) -> None:
        """Raises a `UserError` where options contradict each other, or a folder has another run."""
        check_folders(trial.run for trial in self.trials)
        if lower_is_better(self.chosen_by) is None:
            raise UserError(
                f"--metric={self.chosen_by}: it is not known whether less or more of it is better."
            )

    def run(self) -> list[Scored]:
        """Runs what is missing.

        Returns:
            Every setting: those that can be chosen, the best one first, and those that diverged.
            The runs of the first ones have been tested.

        Raises:
            UserError: If a run fails otherwise than by its options, or all settings diverge.
        """
        try:
            self._call("train", trials.train, [t for t in self.trials if not t.is_validated])
            ranked = self.ranked()
            chosen = [trial for one in self.tested(ranked) for trial in one.trials]
            self._call("test", trials.test, [t for t in chosen if not t.run.is_done()])
        except (KeyboardInterrupt, SystemExit):
            print("Stopped; the same command goes on from there.", file=sys.stderr, flush=True)
            raise
        return ranked

    def guess(self, scored: Scored) -> tuple[str, float] | None:
        """Returns the best guess on the validation clients of a setting, and its mean."""
        told = [{"guesses": trial.validation.guesses} for trial in scored.trials]
        name = find_metric(self.chosen_by, scored.trials[0].validation.metrics)
        return best_guess(told, name or self.chosen_by)

    def tested(self, ranked: Sequence[Scored]) -> list[Scored]:
        """Returns the settings of which test clients are looked at, the chosen one first."""
        return [one for one in ranked[: 1 + self.beside] if not one.diverged]

    def ranked(self) -> list[Scored]:
        """Returns every setting, the best one on validation clients first, diverged ones last."""
        scored = [self._scored(setting) for setting in self.settings]
        good = [one for one in scored if not one.diverged]
        if not good:
            raise UserError(
                f"every setting diverges; {values_text(scored[0].setting)}: {scored[0].diverged}"
            )
        sign = 1 if lower_is_better(self.chosen_by) else -1
        return [*sorted(good, key=lambda s: sign * s.mean), *(s for s in scored if s.diverged)]

    def _trial(self, setting: Setting, seed: int) -> Trial:
        title = f"{values_text(setting)}, seed {seed}"
        values = {**self.shared, **setting, "seed": seed}
        run = Job(title, self.output_dir / folder_name(setting) / f"seed_{seed}", self.task, values)
        try:
            self.task.settle(run.options)
        except UserError as error:
            raise UserError(f"--grid: with {values_text(setting)}: {error}") from None
        return Trial(setting, seed, run)

    def _scored(self, setting: Setting) -> Scored:
        own = [trial for trial in self.trials if trial.setting == setting]
        told = [(trial.seed, trial.validation.diverged) for trial in own]
        diverged = next((f"seed {seed}: {why}" for seed, why in told if why), "")
        return Scored(setting, own, [] if diverged else list(map(self._score, own)), diverged)

    def _call(self, verb: str, function: Callable[..., None], missing: Sequence[Trial]) -> None:
        """Has runs trained or tested, and tells of each one's end."""

        def ended(trial: Trial, error: UserError | None) -> str:
            if error:
                raise UserError(f"{trial.run.title}: {error}") from error
            return self._outcome(trial, verb)

        # The summary of a test tells the memory of its process.
        number = _TRAININGS_A_PROCESS if verb == "train" else 1
        call_trials(verb, function, missing, len(self.trials), self.at_once, ended, number)

    def _outcome(self, trial: Trial, verb: str) -> str:
        """Returns in words what came of a run."""
        if verb == "test":
            test = trial.run.summary["test"]
            known = find_metric(self.chosen_by, test)
            return f"{self.chosen_by} {test[known]:.4f}" if known else "done"
        if trial.validation.diverged:
            return f"diverged: {trial.validation.diverged}"
        return f"validation {self.chosen_by} {self._score(trial):.4f}"

    def _score(self, trial: Trial) -> float:
        """Returns the metric of a validation by which a setting is chosen.

        Raises:
            UserError: If there is none, or it is of other clients than those of other settings.
        """
        validation = trial.validation
        name = find_metric(self.chosen_by, validation.metrics)
        if not name:
            raise UserError(
                f"--metric={self.chosen_by} is not told of validation clients; these are: "
                f"{', '.join(validation.metrics)}."
            )
        others = (o for o in self.trials if o.seed == trial.seed and o.is_validated)
        first = next(other for other in others if not other.validation.diverged)
        if first.validation.clients != validation.clients:
            raise UserError(
                f"--grid: {values_text(first.setting)} and {values_text(trial.setting)} are "
                "validated on other clients or examples, so their figures cannot be compared; "
                "leave such options out."
            )
        return validation.metrics[name]


def call_trials(
    verb: str,
    function: Callable[[Job], None],
    trials: Sequence[Trial],
    total: int,
    at_once: int | None,
    ended: Callable[[Trial, UserError | None], str],
    calls_a_process: int,
) -> None:
    """Calls a function for the runs of trials, so many at once, and tells of each one's end.

    Args:
        verb: What it does.
        function: A function of a module.
        trials: The trials.
        total: How many there are, with those that need no call any more.
        at_once: How many at once; None for as many as fit.
        ended: Is given a trial and the mistake that it has ended with; returns what came of it.
        calls_a_process: As of `call_at_once`.
    """
    if not trials:
        return
    at_once, done = at_once or fitting(len(trials)), 0
    began = time.monotonic()
    by_path = {trial.run.path: trial for trial in trials}

    def tell(path: pathlib.Path, error: UserError | None) -> None:
        nonlocal done
        trial, done = by_path[path], done + 1
        outcome = ended(trial, error)
        print(f"{verb} {done} of {len(trials)}: {trial.run.title}: {outcome}", flush=True)

    print(f"{len(trials)} of {total} runs to {verb}, {at_once} at once", flush=True)
    for path in by_path:
        path.mkdir(parents=True, exist_ok=True)
    calls = {path: Call(function, (one.run,), one.output) for path, one in by_path.items()}
    call_at_once(calls, at_once=at_once, ended=tell, calls_a_process=calls_a_process)
    print(f"{len(trials)} runs in {time.monotonic() - began:.0f} s", flush=True)


def folder_name(setting: Mapping[str, Any]) -> str:
    """Returns the name of a setting's folder, another one for each setting."""
    told = values_text(setting)
    name = re.sub(r"[^\w.,=+-]+", "_", told.replace(", ", ","))
    if name != told.replace(", ", ",") or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}_{hashlib.blake2b(told.encode(), digest_size=4).hexdigest()}"
    return name
