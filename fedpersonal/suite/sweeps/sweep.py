"""Runs of settings and seeds, and the choice of a setting by validation clients only."""

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

from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import strongest_baseline
from fedpersonal.evaluation.client_metrics import find_metric, lower_is_better
from fedpersonal.options import Value
from fedpersonal.suite.commands.children import Call, jobs_that_fit, run_calls
from fedpersonal.suite.papers.jobs import Job, check_folders
from fedpersonal.suite.sweeps import trials
from fedpersonal.suite.sweeps.grid import Setting, values_text
from fedpersonal.suite.sweeps.trials import Trial
from fedpersonal.suite.tasks.task import Task

_LONGEST_NAME = 100
_TRAININGS_A_PROCESS = 8


@dataclasses.dataclass(frozen=True)
class Scored:
    """A setting and its scores.

    Attributes:
        setting: The setting.
        trials: Its runs, one per seed.
        scores: Their metric on validation clients, one per seed; empty if a run has diverged.
        diverged: Why a run has diverged; empty if none has.
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
    """A sweep over settings.

    Attributes:
        task: The task.
        options: Options of the task that all runs share.
        settings: Options in which runs differ.
        seeds: Seeds of each setting; all have the split of the first, unless `options` has one.
        output_dir: The folder of the runs and the table.
        metric: The metric by which a setting is chosen; None for the first that the task prints.
        jobs: Number of parallel runs; None for all that fit.
        runners_up: Number of settings after the chosen one that are also tested.
    """

    task: Task
    options: Mapping[str, Value]
    settings: Sequence[Setting]
    seeds: Sequence[int]
    output_dir: pathlib.Path
    metric: str | None = None
    jobs: int | None = None
    runners_up: int = 1

    @functools.cached_property
    def shared(self) -> dict[str, Value]:
        """The options that all runs share, including the number of shards.

        The number is fixed so that results do not depend on the number of parallel runs.
        """
        on_cluster = self.options.get("runtime") == "ray"
        shards = {} if on_cluster else {"shards": 1}
        # With one split for all seeds, no test client of any seed is used for the choice.
        return {**shards, "split_seed": self.seeds[0], **self.options}

    @functools.cached_property
    def trials(self) -> list[Trial]:
        """All runs, seed by seed, so that each setting is run early.

        Raises:
            UserError: If options of a setting contradict each other.
        """
        return [self._trial(setting, seed) for seed in self.seeds for setting in self.settings]

    @property
    def chosen_by(self) -> str:
        """The metric by which a setting is chosen, the first that validations have."""
        if self.metric:
            return self.metric
        validated = (trial.validation.metrics for trial in self.trials if trial.is_validated)
        names = next((metrics for metrics in validated if metrics), ())
        return next((n for n in self.task.metrics if find_metric(n, names)), self.task.metrics[0])

    def check(self) -> None:
        """Checks the sweep before it runs.

        Raises:
            UserError: If options contradict each other, or a folder has another run.
        """
        check_folders(trial.run for trial in self.trials)
        if lower_is_better(self.chosen_by) is None:
            raise UserError(
                f"--metric={self.chosen_by}: it is unknown whether lower or higher is better."
            )

    def run(self) -> list[Scored]:
        """Runs the missing runs.

        Returns:
            All settings: first those that can be chosen, best first, then those that diverged. The
            runs of the chosen setting and of the runners-up have been tested.

        Raises:
            UserError: If a run fails for another reason than its options, or all settings diverge.
        """
        try:
            self._call("train", trials.train, [t for t in self.trials if not t.is_validated])
            ranked = self.ranked()
            chosen = [trial for one in self.tested(ranked) for trial in one.trials]
            self._call("test", trials.test, [t for t in chosen if not t.run.is_done()])
        except (KeyboardInterrupt, SystemExit):
            print("Stopped; the same command resumes the sweep.", file=sys.stderr, flush=True)
            raise
        return ranked

    def baseline(self, scored: Scored) -> tuple[str, float] | None:
        """Returns the strongest baseline on a setting's validation clients, and its mean."""
        results = [{"guesses": trial.validation.guesses} for trial in scored.trials]
        name = find_metric(self.chosen_by, scored.trials[0].validation.metrics)
        return strongest_baseline(results, name or self.chosen_by)

    def tested(self, ranked: Sequence[Scored]) -> list[Scored]:
        """Returns the settings that are evaluated on test clients, the chosen one first."""
        return [one for one in ranked[: 1 + self.runners_up] if not one.diverged]

    def ranked(self) -> list[Scored]:
        """Returns all settings, from best to worst on validation clients; diverged ones last."""
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
            self.task.with_defaults(run.options)
        except UserError as error:
            raise UserError(f"--grid: with {values_text(setting)}: {error}") from None
        return Trial(setting, seed, run)

    def _scored(self, setting: Setting) -> Scored:
        runs = [trial for trial in self.trials if trial.setting == setting]
        reasons = [(trial.seed, trial.validation.diverged) for trial in runs]
        diverged = next((f"seed {seed}: {why}" for seed, why in reasons if why), "")
        return Scored(setting, runs, [] if diverged else list(map(self._score, runs)), diverged)

    def _call(self, verb: str, function: Callable[..., None], missing: Sequence[Trial]) -> None:
        """Trains or tests runs in child processes, and prints a line at the end of each."""

        def ended(trial: Trial, error: UserError | None) -> str:
            if error:
                raise UserError(f"{trial.run.title}: {error}") from error
            return self._outcome(trial, verb)

        # The summary of a test includes the memory of its process, so each test needs a new one.
        number = _TRAININGS_A_PROCESS if verb == "train" else 1
        call_trials(verb, function, missing, len(self.trials), self.jobs, ended, number)

    def _outcome(self, trial: Trial, verb: str) -> str:
        """Returns the outcome of a run in words."""
        if verb == "test":
            test = trial.run.summary["test"]
            name = find_metric(self.chosen_by, test)
            return f"{self.chosen_by} {test[name]:.4f}" if name else "done"
        if trial.validation.diverged:
            return f"diverged: {trial.validation.diverged}"
        return f"validation {self.chosen_by} {self._score(trial):.4f}"

    def _score(self, trial: Trial) -> float:
        """Returns the metric of a validation by which a setting is chosen.

        Raises:
            UserError: If there is none, or its clients differ from those of other settings.
        """
        validation = trial.validation
        name = find_metric(self.chosen_by, validation.metrics)
        if not name:
            raise UserError(
                f"--metric={self.chosen_by} is no metric of validation clients; these are: "
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
    jobs: int | None,
    ended: Callable[[Trial, UserError | None], str],
    calls_a_process: int,
) -> None:
    """Calls a function for the runs of trials in parallel, and prints a line at the end of each.

    Args:
        verb: The action of the function, in the printed lines.
        function: A function of a module.
        trials: The trials.
        total: Number of all trials, with those that need no call.
        jobs: Number of parallel calls; None for all that fit.
        ended: Receives a trial and the mistake with which it has ended, or None; returns its
            outcome in words.
        calls_a_process: As for `run_calls`.
    """
    if not trials:
        return
    jobs, done = jobs or jobs_that_fit(len(trials)), 0
    began = time.monotonic()
    by_path = {trial.run.path: trial for trial in trials}

    def report(path: pathlib.Path, error: UserError | None) -> None:
        nonlocal done
        trial, done = by_path[path], done + 1
        outcome = ended(trial, error)
        print(f"{verb} {done} of {len(trials)}: {trial.run.title}: {outcome}", flush=True)

    print(f"{len(trials)} of {total} runs to {verb}, {jobs} in parallel", flush=True)
    for path in by_path:
        path.mkdir(parents=True, exist_ok=True)
    calls = {path: Call(function, (one.run,), one.output) for path, one in by_path.items()}
    run_calls(calls, jobs=jobs, ended=report, calls_a_process=calls_a_process)
    print(f"{len(trials)} runs in {time.monotonic() - began:.0f} s", flush=True)


def folder_name(setting: Mapping[str, Any]) -> str:
    """Returns the name of a setting's folder, which is unique for each setting."""
    text = values_text(setting)
    name = re.sub(r"[^\w.,=+-]+", "_", text.replace(", ", ","))
    if name != text.replace(", ", ",") or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}_{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    return name
