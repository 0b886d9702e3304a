"""The runs of the table: what is missing is tuned, trained and tested, several at once."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.board.settings import Found, read_found, settings_of, write_found
from experiments.board.tasks import BASELINE, FULL, QUICK, Entry
from experiments.children import BYTES_A_RUN, fitting
from experiments.papers.jobs import Job, check_folders, open_job
from experiments.sweeping import trials
from experiments.sweeping.sweep import Sweep, call_trials, folder_name
from experiments.sweeping.trials import Trial, Validation, write_validation
from fedpersonal.errors import TrainingError, UserError
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.files import write_json
from fedpersonal.methods.algorithm import STARTS
from fedpersonal.methods.method import Method, methods
from fedpersonal.options import Value

SETTINGS = "settings.json"
STARTS_FILE = "starts.json"
# How the reason begins why a method has no value on a task that it does not do.
REFUSED = "refused: "
# One split for all seeds and for the tuning: nobody who is tested has a part in the choice.
SPLIT_SEED = 0
TUNING_SEED = 100
_CALLS_A_PROCESS = 10
# What a run needs, of the methods that keep a model for each client.
_BYTES_A_RUN = {QUICK: BYTES_A_RUN, FULL: 6e9}
# By task and method.
Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Board:
    """What is asked.

    Attributes:
        entries: The tasks.
        names: The methods; none for all that fit any model, and each task's own.
        size: `quick` or `full`.
        seeds: Seeds of a cell, which share a split.
        output_dir: Receives the runs, the settings found and the pages.
        settings: The file of settings that were found before.
        data: The flags that say where data are, and what they say.
        given: Options that all runs share, such as where they compute.
        at_once: How many runs at once; None for as many as fit.
        tune: How many settings are tried for each method and task; None for no tuning.
        tuning_seeds: How many seeds try them, others than `seeds`, on the same split.
    """

    entries: Sequence[Entry]
    names: Sequence[str]
    size: str
    seeds: Sequence[int]
    output_dir: pathlib.Path
    settings: pathlib.Path
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    at_once: int | None = None
    tune: int | None = None
    tuning_seeds: int = 1

    def methods(self, entry: Entry) -> list[type[Method]]:
        """Returns the methods that a task is run with, the baseline among them."""
        fitting = entry.library.methods
        names = {*self.names, BASELINE} if self.names else {*methods(), *entry.own}
        return [method for name, method in fitting.items() if name in names]

    @functools.cached_property
    def found(self) -> dict[Key, Found]:
        """The settings that are used, by task and method; where there is none, the first one is."""
        kept = read_found(self.settings, self.size)
        return {**kept, **read_found(self.output_dir / SETTINGS, self.size)}

    def setting(self, entry: Entry, method: type[Method]) -> Found | None:
        """Returns the setting found for a method, or for the one as which it is tuned."""
        return self.found.get((entry.name, self._tuned_as(entry, method).name))

    @functools.cached_property
    def trials(self) -> dict[Key, list[Trial]]:
        """The runs of each cell, one a seed."""
        return {
            (entry.name, method.name): [self._trial(entry, method, seed) for seed in self.seeds]
            for entry in self.entries
            for method in self.methods(entry)
        }

    def check(self) -> None:
        """Reads the data of each task, and checks its folders, before anything is run.

        Raises:
            UserError: If data are missing or damaged, or a folder has another run.
        """
        for entry in self.entries:
            flag = entry.sizes[self.size].data
            if flag and flag not in self.data:
                raise UserError(
                    f"--size={self.size}: the task {entry.name} needs --{flag}, the folder of its "
                    "data; give it, or leave the task out by --tasks."
                )
        for entry in self.entries:
            values = self._values(entry, entry.library.methods[BASELINE])
            options = entry.library.settle(entry.library.options(**values))
            try:
                print(f"{entry.name}: {entry.library.read(options).summary()}", flush=True)
            except UserError as error:
                raise UserError(f"--tasks={entry.name}: {error}") from None
        check_folders(trial.run for own in self.trials.values() for trial in own)

    def run(self) -> dict[Key, str]:
        """Does what is missing.

        Returns:
            Why a cell has no value, by task and method, where it has none.
        """
        try:
            if self.tune:
                self._tune(self.tune)
            return self._test()
        except (KeyboardInterrupt, SystemExit):
            print("Stopped; the same command goes on from there.", file=sys.stderr, flush=True)
            raise

    def _values(self, entry: Entry, method: type[Method]) -> dict[str, Value]:
        # How many runs share the machine must not change what comes of them.
        shards = {} if self.given.get("runtime") == "ray" else {"shards": 1}
        shared = {**shards, "split_seed": SPLIT_SEED}
        return {**shared, **entry.values(self.size, method, self.data), **self.given}

    def _tuned_as(self, entry: Entry, method: type[Method]) -> type[Method]:
        """Returns the method whose settings a method has: the same without idle fine-tuning."""
        plain = next((m for m in self.methods(entry) if m.name == method.trains_as), method)
        options = entry.library.options(**self._values(entry, method))
        return plain if entry.library.is_finetuning_idle(options) else method

    def _trial(self, entry: Entry, method: type[Method], seed: int) -> Trial:
        found, values = self.setting(entry, method), self._values(entry, method)
        first = entry.first_options(self._tuned_as(entry, method), values)
        setting = found.setting if found else first
        unknown = setting.keys() - entry.library.options.declarations().keys()
        if unknown:
            raise UserError(
                f"the settings found for {method.name} on {entry.name} name {sorted(unknown)[0]}, "
                "which is no option any more; find them again by --tune."
            )
        name = folder_name(setting) if setting else "preset"
        path = self.output_dir / "runs" / entry.name / method.name / name / f"seed_{seed}"
        values = {**values, **setting, "seed": seed}
        title = f"{entry.name}, {method.name}, seed {seed}"
        return Trial(setting, seed, Job(title, path, entry.library, values))

    def _tune(self, number: int) -> None:
        """Tries settings on validation clients of other seeds, and writes what was found."""
        pairs = [(e, m) for e, m in self._pairs() if self._tuned_as(e, m) is m]
        sweeps = {(e.name, m.name): self._sweep(e, m, number) for e, m in pairs}
        every = {t.run.path: key for key, sweep in sweeps.items() for t in sweep.trials}
        check_folders(trial.run for sweep in sweeps.values() for trial in sweep.trials)
        missing = [t for sweep in sweeps.values() for t in sweep.trials if not t.is_validated]

        def ended(trial: Trial, error: UserError | None) -> str:
            if error:  # The method does not do this task; its cell says why.
                write_validation(trial.run, Validation({}, diverged=str(error)))
            key = every[trial.run.path]
            return f"{' by '.join(key)}: {_outcome(trial, sweeps[key].metric or '')}"

        self._call("tune", tune, missing, len(every), ended)
        found = {}
        for key, sweep in sweeps.items():
            try:
                ranked = sweep.ranked()
            except UserError:  # All settings diverge, as the first one will.
                continue
            first = next(one for one in ranked if one.setting == sweep.settings[0])
            found[key] = Found(
                dict(ranked[0].setting),
                sweep.chosen_by,
                ranked[0].mean,
                None if first.diverged else first.mean,
                len(sweep.settings),
                sum(bool(one.diverged) for one in ranked),
                list(sweep.seeds),
                SPLIT_SEED,
            )
        write_found(self.output_dir / SETTINGS, self.size, {**self.found, **found})
        del self.__dict__["found"]
        self.__dict__.pop("trials", None)

    def _call(
        self,
        verb: str,
        function: Callable[[Job], None],
        trials: Sequence[Trial],
        total: int,
        ended: Callable[[Trial, UserError | None], str],
    ) -> None:
        at_once = self.at_once or fitting(len(trials), _BYTES_A_RUN[self.size])
        call_trials(verb, function, trials, total, at_once, ended, _CALLS_A_PROCESS)

    def _pairs(self) -> Iterable[tuple[Entry, type[Method]]]:
        return ((entry, method) for entry in self.entries for method in self.methods(entry))

    def _sweep(self, entry: Entry, method: type[Method], number: int) -> Sweep:
        values = self._values(entry, method)
        return Sweep(
            entry.library,
            values,
            settings_of(entry, values, method, number),
            range(TUNING_SEED, TUNING_SEED + self.tuning_seeds),
            self.output_dir / "tuning" / entry.name / method.name,
            entry.chosen_by or entry.metric,
        )

    def _test(self) -> dict[Key, str]:
        """Trains and tests what is missing; returns why cells have no value."""
        every = [trial for own in self.trials.values() for trial in own]
        refused: dict[pathlib.Path, str] = {}
        metrics = {entry.library.name: entry.metric for entry in self.entries}

        def ended(trial: Trial, error: UserError | None) -> str:
            if error:
                refused[trial.run.path] = str(error)
                return f"{REFUSED}{error}"
            if trial.is_validated:
                return _outcome(trial, "")
            told, name = trial.run.summary["test"], metrics[trial.run.task.name]
            known = find_metric(name, told)
            return f"{name} {told[known]:.4f}" if known else "done"

        missing = [trial for trial in every if not _is_done(trial)]
        self._call("test", test, missing, len(every), ended)
        why = {}
        for key, own in self.trials.items():
            told = [_reason(trial, refused) for trial in own]
            if any(told):
                why[key] = next(filter(None, told))
        return why


def tune(run: Job) -> None:
    """Trains a run and evaluates validation clients."""
    trials.train(run)
    _forget(run)


def test(run: Job) -> None:
    """Trains and tests a run, or says that it diverges; then tests other starts of seen clients."""
    from fedpersonal.runs.saved import load_run
    from fedpersonal.runs.tested import summarize
    from fedpersonal.tasks.running import run_experiment

    experiment, opened = open_job(run)
    starts: dict[str, Any] = {}
    try:
        with opened as folder:
            run_experiment(experiment, folder, progress=False)
        # To train copies of whole models again, one a client, takes longer than the rounds.
        if experiment.has_kept(experiment.data.test) and not experiment.algorithm.personal:
            with load_run(run.path).trained as trained:
                for start in STARTS[1:]:  # The first is what the summary has.
                    options = experiment.options.replace(local_start=start)
                    own = dataclasses.replace(experiment, options=options)
                    starts[start] = summarize(run.task.test(own, trained))
    except TrainingError as error:
        write_validation(run, Validation({}, diverged=str(error)))
    else:  # Its presence says that all is done.
        write_json(run.path / STARTS_FILE, starts, checked=True)
    _forget(run)


def _forget(run: Job) -> None:
    """Deletes what a finished run's clients have kept: gigabytes, where it is a model each."""
    from fedpersonal.runs.store import LOCAL_STATE

    for path in run.path.glob(f"{LOCAL_STATE}*"):
        path.unlink()


def _is_done(trial: Trial) -> bool:
    return trial.is_validated or (trial.run.path / STARTS_FILE).exists()


def _reason(trial: Trial, refused: Mapping[pathlib.Path, str]) -> str:
    """Returns why a run has no results; nothing where it has."""
    if trial.is_validated:
        return f"diverged: {trial.validation.diverged}"
    why = refused.get(trial.run.path, "")
    return f"{REFUSED}{why}" if why else ""


def _outcome(trial: Trial, metric: str) -> str:
    """Returns in words what a validation has come to."""
    told = trial.validation
    if told.diverged:
        return f"diverged: {told.diverged}"
    known = find_metric(metric, told.metrics)
    return f"validation {known} {told.metrics[known]:.4f}" if known else "done"
