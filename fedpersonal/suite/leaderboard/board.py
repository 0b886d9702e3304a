"""The runs of the table: missing runs are tuned, trained and tested in parallel."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedpersonal.errors import TrainingError, UserError
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.files import write_json
from fedpersonal.methods.algorithm import STARTS
from fedpersonal.methods.method import Method, methods
from fedpersonal.options import Value
from fedpersonal.suite.commands.children import BYTES_A_RUN, jobs_that_fit
from fedpersonal.suite.leaderboard.settings import (
    TunedSetting,
    read_settings,
    settings_to_try,
    write_settings,
)
from fedpersonal.suite.leaderboard.tasks import FULL, QUICK, REFERENCE, Entry
from fedpersonal.suite.papers.jobs import Job, check_folders, open_job
from fedpersonal.suite.sweeps import trials
from fedpersonal.suite.sweeps.sweep import Sweep, call_trials, folder_name
from fedpersonal.suite.sweeps.trials import Trial, Validation, write_validation

SETTINGS = "settings.json"
STARTS_FILE = "starts.json"
# The beginning of the reason why a method does not run on a task.
REFUSED = "refused: "
# One split for all seeds and for the tuning, so that no test client is used for the choice.
SPLIT_SEED = 0
TUNING_SEED = 100
_CALLS_A_PROCESS = 10
# Memory of a run of methods that keep a model for each client.
_BYTES_A_RUN = {QUICK: BYTES_A_RUN, FULL: 6e9}
# By task and method.
Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Board:
    """The runs of a leaderboard.

    Attributes:
        entries: The tasks.
        names: The methods; empty for all that fit any model, and each task's extra methods.
        size: `quick` or `full`.
        seeds: Seeds of a cell, which share a split.
        output_dir: The folder of the runs, the tuned settings and the pages.
        settings: The file of settings of earlier tunings.
        data: The folders of data, by flag.
        options: Options that all runs share, such as their runtime.
        jobs: Number of parallel runs; None for all that fit.
        tune: Number of settings to try for each method and task; None for no tuning.
        tuning_seeds: Number of seeds that try them, different from `seeds`, on the same split.
    """

    entries: Sequence[Entry]
    names: Sequence[str]
    size: str
    seeds: Sequence[int]
    output_dir: pathlib.Path
    settings: pathlib.Path
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    jobs: int | None = None
    tune: int | None = None
    tuning_seeds: int = 1

    def methods(self, entry: Entry) -> list[type[Method]]:
        """Returns the methods to run on a task, with the reference method."""
        available = entry.library.methods
        names = {*self.names, REFERENCE} if self.names else {*methods(), *entry.extra_methods}
        return [method for name, method in available.items() if name in names]

    @functools.cached_property
    def tuned(self) -> dict[Key, TunedSetting]:
        """The tuned settings by task and method; other cells use the first setting."""
        earlier = read_settings(self.settings, self.size)
        return {**earlier, **read_settings(self.output_dir / SETTINGS, self.size)}

    def setting(self, entry: Entry, method: type[Method]) -> TunedSetting | None:
        """Returns the tuned setting of a method, or of the method whose tuning it shares."""
        return self.tuned.get((entry.name, self._tuned_as(entry, method).name))

    @functools.cached_property
    def trials(self) -> dict[Key, list[Trial]]:
        """The runs of each cell, one per seed."""
        return {
            (entry.name, method.name): [self._trial(entry, method, seed) for seed in self.seeds]
            for entry in self.entries
            for method in self.methods(entry)
        }

    def check(self) -> None:
        """Reads the data of each task, and checks its folders, before the first run.

        Raises:
            UserError: If data are missing or damaged, or a folder has another run.
        """
        for entry in self.entries:
            flag = entry.sizes[self.size].data
            if flag and flag not in self.data:
                raise UserError(
                    f"--size={self.size}: the task {entry.name} needs --{flag}, the folder of its "
                    "data; pass it, or leave the task out by --tasks."
                )
        for entry in self.entries:
            values = self._values(entry, entry.library.methods[REFERENCE])
            options = entry.library.with_defaults(entry.library.options(**values))
            try:
                print(f"{entry.name}: {entry.library.read(options).summary()}", flush=True)
            except UserError as error:
                raise UserError(f"--tasks={entry.name}: {error}") from None
        check_folders(trial.run for cell in self.trials.values() for trial in cell)

    def run(self) -> dict[Key, str]:
        """Runs the missing runs.

        Returns:
            The reasons why cells have no value, by task and method.
        """
        try:
            if self.tune:
                self._tune(self.tune)
            return self._test()
        except (KeyboardInterrupt, SystemExit):
            print("Stopped; the same command resumes from there.", file=sys.stderr, flush=True)
            raise

    def _values(self, entry: Entry, method: type[Method]) -> dict[str, Value]:
        # The number of shards is fixed, so that results do not depend on the parallel runs.
        shards = {} if self.options.get("runtime") == "ray" else {"shards": 1}
        shared = {**shards, "split_seed": SPLIT_SEED}
        return {**shared, **entry.values(self.size, method, self.data), **self.options}

    def _tuned_as(self, entry: Entry, method: type[Method]) -> type[Method]:
        """Returns the method whose tuning a method shares: without fine-tuning, if that is idle."""
        base = next((m for m in self.methods(entry) if m.name == method.same_rounds_as), method)
        options = entry.library.options(**self._values(entry, method))
        return base if entry.library.is_finetuning_idle(options) else method

    def _trial(self, entry: Entry, method: type[Method], seed: int) -> Trial:
        tuned, values = self.setting(entry, method), self._values(entry, method)
        first = entry.first_options(self._tuned_as(entry, method), values)
        setting = tuned.setting if tuned else first
        unknown = setting.keys() - entry.library.options.declarations().keys()
        if unknown:
            raise UserError(
                f"the tuned settings of {method.name} on {entry.name} have {sorted(unknown)[0]}, "
                "which is no option any more; tune again by --tune."
            )
        name = folder_name(setting) if setting else "preset"
        path = self.output_dir / "runs" / entry.name / method.name / name / f"seed_{seed}"
        values = {**values, **setting, "seed": seed}
        title = f"{entry.name}, {method.name}, seed {seed}"
        return Trial(setting, seed, Job(title, path, entry.library, values))

    def _tune(self, number: int) -> None:
        """Tries settings on validation clients of other seeds, and writes the best ones."""
        pairs = [(e, m) for e, m in self._pairs() if self._tuned_as(e, m) is m]
        sweeps = {(e.name, m.name): self._sweep(e, m, number) for e, m in pairs}
        keys = {t.run.path: key for key, sweep in sweeps.items() for t in sweep.trials}
        check_folders(trial.run for sweep in sweeps.values() for trial in sweep.trials)
        missing = [t for sweep in sweeps.values() for t in sweep.trials if not t.is_validated]

        def ended(trial: Trial, error: UserError | None) -> str:
            if error:  # The method does not run on this task; its cell shows the reason.
                write_validation(trial.run, Validation({}, diverged=str(error)))
            key = keys[trial.run.path]
            return f"{' by '.join(key)}: {_outcome(trial, sweeps[key].metric or '')}"

        self._call("tune", tune, missing, len(keys), ended)
        tuned = {}
        for key, sweep in sweeps.items():
            try:
                ranked = sweep.ranked()
            except UserError:  # All settings diverge, as the first one will.
                continue
            first = next(one for one in ranked if one.setting == sweep.settings[0])
            tuned[key] = TunedSetting(
                dict(ranked[0].setting),
                sweep.chosen_by,
                ranked[0].mean,
                None if first.diverged else first.mean,
                len(sweep.settings),
                sum(bool(one.diverged) for one in ranked),
                list(sweep.seeds),
                SPLIT_SEED,
            )
        write_settings(self.output_dir / SETTINGS, self.size, {**self.tuned, **tuned})
        del self.__dict__["tuned"]
        self.__dict__.pop("trials", None)

    def _call(
        self,
        verb: str,
        function: Callable[[Job], None],
        trials: Sequence[Trial],
        total: int,
        ended: Callable[[Trial, UserError | None], str],
    ) -> None:
        jobs = self.jobs or jobs_that_fit(len(trials), _BYTES_A_RUN[self.size])
        call_trials(verb, function, trials, total, jobs, ended, _CALLS_A_PROCESS)

    def _pairs(self) -> Iterable[tuple[Entry, type[Method]]]:
        return ((entry, method) for entry in self.entries for method in self.methods(entry))

    def _sweep(self, entry: Entry, method: type[Method], number: int) -> Sweep:
        values = self._values(entry, method)
        return Sweep(
            entry.library,
            values,
            settings_to_try(entry, values, method, number),
            range(TUNING_SEED, TUNING_SEED + self.tuning_seeds),
            self.output_dir / "tuning" / entry.name / method.name,
            entry.chosen_by or entry.metric,
        )

    def _test(self) -> dict[Key, str]:
        """Trains and tests missing runs; returns the reasons why cells have no value."""
        every = [trial for cell in self.trials.values() for trial in cell]
        refused: dict[pathlib.Path, str] = {}
        metrics = {entry.library.name: entry.metric for entry in self.entries}

        def ended(trial: Trial, error: UserError | None) -> str:
            if error:
                refused[trial.run.path] = str(error)
                return f"{REFUSED}{error}"
            if trial.is_validated:
                return _outcome(trial, "")
            results, metric = trial.run.summary["test"], metrics[trial.run.task.name]
            name = find_metric(metric, results)
            return f"{metric} {results[name]:.4f}" if name else "done"

        missing = [trial for trial in every if not _is_done(trial)]
        self._call("test", test, missing, len(every), ended)
        why = {}
        for key, cell in self.trials.items():
            reasons = [_reason(trial, refused) for trial in cell]
            if any(reasons):
                why[key] = next(filter(None, reasons))
        return why


def tune(run: Job) -> None:
    """Trains a run and evaluates validation clients."""
    trials.train(run)
    _delete_kept_values(run)


def test(run: Job) -> None:
    """Trains and tests a run, or records that it diverges; then tests other starts of clients."""
    from fedpersonal.suite.tasks.running import run_experiment
    from fedpersonal.training.loaded import load_run
    from fedpersonal.training.tested import summarize

    experiment, opened = open_job(run)
    starts: dict[str, Any] = {}
    try:
        with opened as folder:
            run_experiment(experiment, folder, progress=False)
        # Training each client's copy of the whole model again would take longer than the rounds.
        if experiment.has_kept(experiment.data.test) and not experiment.algorithm.personal:
            with load_run(run.path).trained as trained:
                for start in STARTS[1:]:  # The summary has the first one.
                    options = experiment.options.replace(local_start=start)
                    changed = dataclasses.replace(experiment, options=options)
                    starts[start] = summarize(run.task.test(changed, trained))
    except TrainingError as error:
        write_validation(run, Validation({}, diverged=str(error)))
    else:  # The presence of this file marks the run as done.
        write_json(run.path / STARTS_FILE, starts, checked=True)
    _delete_kept_values(run)


def _delete_kept_values(run: Job) -> None:
    """Deletes the kept values of a finished run's clients: with a model each, gigabytes."""
    from fedpersonal.runs.store import LOCAL_STATE

    for path in run.path.glob(f"{LOCAL_STATE}*"):
        path.unlink()


def _is_done(trial: Trial) -> bool:
    return trial.is_validated or (trial.run.path / STARTS_FILE).exists()


def _reason(trial: Trial, refused: Mapping[pathlib.Path, str]) -> str:
    """Returns the reason why a run has no results; empty if it has."""
    if trial.is_validated:
        return f"diverged: {trial.validation.diverged}"
    why = refused.get(trial.run.path, "")
    return f"{REFUSED}{why}" if why else ""


def _outcome(trial: Trial, metric: str) -> str:
    """Returns the outcome of a validation in words."""
    validation = trial.validation
    if validation.diverged:
        return f"diverged: {validation.diverged}"
    name = find_metric(metric, validation.metrics)
    return f"validation {name} {validation.metrics[name]:.4f}" if name else "done"
