"""The runs of a table or figure, each in a folder of its own; what has ended is not done again."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.papers.child_process import run_in_child
from fedpersonal.algorithms.method import FinetuningOptions, RebuildingOptions
from fedpersonal.errors import UserError
from fedpersonal.options import Value
from fedpersonal.simulation import run_config
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.run_record import RunRecord
from fedpersonal.tasks.options import RunOptions
from fedpersonal.tasks.task import Task

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import TrainedModel

RowT = TypeVar("RowT")
# Returns a summary, given the run, the experiment that has trained, and what it has trained.
Measure = Callable[["Run", "Experiment", "TrainedModel"], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One experiment, or what is measured of another one after its training.

    Attributes:
        title: For people.
        path: Its folder.
        task: Its task.
        values: The options that differ from the task's defaults.
        trained_by: The run whose training this one shares, or None if it trains.
        measure: A function of a module, or a `functools.partial` of one with keywords, for a run
            that does not train; None for the test of its own method.
    """

    title: str
    path: pathlib.Path
    task: Task
    values: Mapping[str, Value]
    trained_by: Run | None = None
    measure: Measure | None = None

    @property
    def options(self) -> RunOptions:
        """Its options, settled."""
        return self.task.settle(self.task.options(**self.values))

    @property
    def trainer(self) -> Run:
        """The run that trains."""
        return self.trained_by or self

    @property
    def record(self) -> RunRecord:
        """Its folder, to be read."""
        return RunFolder.read(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """What it came to."""
        return self.record.summary

    def is_done(self) -> bool:
        """Tells whether it has ended."""
        return (self.path / "summary.json").exists()

    def config(self) -> dict[str, Any]:
        """Returns what tells it from other runs, as `load_run` reads it."""
        keywords = getattr(self.measure, "keywords", {})
        return {"task": type(self.task).__module__, **self.options.values(), **keywords}

    def may_differ(self) -> set[str]:
        """Returns the options that do not tell it from other runs."""
        declared = self.options.declarations().items()
        names = {n for n, d in declared if d.rule.may_differ and n not in ("total_rounds", "start")}
        read = self.task.method(self.options).options
        if not issubclass(read, FinetuningOptions):
            names |= FinetuningOptions.declarations().keys()
        return names

    def training(self) -> tuple:
        """Returns what its training depends on."""
        options, method = self.options, self.task.method(self.options)
        local_layers = method.local_layers(options, self.task.layers)
        unread = {"algorithm", *FinetuningOptions.declarations()}
        if not local_layers:
            unread |= RebuildingOptions.declarations().keys()
        read = tuple((n, v) for n, v in options.values().items() if n not in unread)
        traits = (method.trains_as, local_layers, method.is_federated, method.has_table)
        return (self.task.name, *traits, read)


def share_training(runs: Sequence[Run]) -> list[Run]:
    """Lets runs whose methods differ only by fine-tuning share the training of the first of them.

    Args:
        runs: The runs, each with its own training.
    """
    first: dict[tuple, Run] = {}
    trainers = [first.setdefault(run.training(), run) for run in runs]
    return [
        run if run is trainer else dataclasses.replace(run, trained_by=trainer)
        for run, trainer in zip(runs, trainers)
    ]


def share_trainings(runs: Mapping[RowT, Sequence[Run]]) -> dict[RowT, list[Run]]:
    """Does so for the runs of rows, one a seed, seed by seed."""
    sharing = zip(*(share_training(of_seed) for of_seed in zip(*runs.values())))
    return {row: list(own) for row, own in zip(runs, sharing)}


def complete(runs: Iterable[Run], about: Mapping[str, Any], *, isolated: bool = True) -> None:
    """Does what is missing, one run after another; a training that others share comes before them.

    Args:
        runs: The runs.
        about: What tells their data from others, `describe()` of the source.
        isolated: Whether each run has a process of its own, so that its memory comes back.

    Raises:
        UserError: Before the first run if a folder holds another one; or if training diverges.
    """
    every = {own.path: own for run in runs for own in (run.trainer, run)}.values()
    check_folders(every, about)
    for number, run in enumerate(every, start=1):
        line = f"run {number} of {len(every)}: {run.title}"
        print(f"{line}: done before" if run.is_done() else line, flush=True)
        try:
            if not run.is_done():
                _call(_work, run, about, isolated=isolated)
        except UserError as error:
            raise UserError(f"{run.title}: {error}") from error


def check_folders(runs: Iterable[Run], about: Mapping[str, Any] | None = None) -> None:
    """Raises a `UserError` if the folder of a run holds another one; `about` as of `complete`."""
    for run in runs:
        config = run.path / "config.json"
        told = {"data": about, "runtime": run.options.runtime}
        run_config.settle(config, run.config(), ignore=run.may_differ(), about=told)


def check_splits(runs: Sequence[Run], *, isolated: bool = True) -> None:
    """Splits the data of runs: seconds, where a refusal after the first runs would cost hours.

    Args:
        runs: The runs; those that are done are left out.
        isolated: Whether to do so in a process of its own.

    Raises:
        UserError: If data cannot be split.
    """
    missing = [run for run in runs if not run.is_done()]
    if missing:
        _call(_split, missing, isolated=isolated)


def _call(function: Callable[..., None], *arguments: Any, isolated: bool) -> None:
    if isolated:
        run_in_child(function, *arguments)
    else:
        function(*arguments)


def _split(runs: Sequence[Run]) -> None:
    for run in runs:
        run.task.split(run.task.read(run.options), run.options)


def open_run(
    run: Run, about: Mapping[str, Any] | None = None
) -> tuple[Experiment[Any, Any], RunFolder]:
    """Builds the experiment of a run and opens its folder; `about` None asks the data."""
    from fedpersonal.tasks.experiment_run import open_experiment

    options = run.trainer.options
    source = run.task.read(options)
    return open_experiment(
        run.task,
        source,
        options,
        run.path,
        config=run.config(),
        may_differ=run.may_differ(),
        data=source.describe() if about is None else about,
    )


def _work(run: Run, about: Mapping[str, Any]) -> None:
    from fedpersonal.loaded_run import load_run
    from fedpersonal.report.write import write_report
    from fedpersonal.tasks.experiment_run import run_experiment

    experiment, opened = open_run(run, about)
    with opened as folder:
        if run.trained_by is None:
            run_experiment(experiment, folder)
            return
        with load_run(run.trained_by.path).trained as trained:
            if run.measure:
                summary = run.measure(run, experiment, trained)
            else:
                summary = _test(run, experiment, trained, folder)
            folder.write_summary(summary)
            write_report(run.path)


def _test(
    run: Run, experiment: Experiment, trained: TrainedModel, folder: RunFolder
) -> dict[str, Any]:
    """Tests what another method has trained by the method of a run; returns the summary."""
    from fedpersonal.tasks.experiment_run import with_findings
    from fedpersonal.tasks.report import write_test

    task, options, trainer = run.task, run.options, run.trainer
    built = task.build(task.sizes(experiment.data), options)
    theirs, ours = ([(v.name, v.shape) for v in e.model.variables] for e in (experiment, built))
    if theirs != ours:
        pair = f"{options.algorithm} and {trainer.options.algorithm}"
        raise ValueError(f"{pair} have other variables, so they cannot share a training.")
    method = task.method(options)
    own = dataclasses.replace(experiment, method=method, options=options, **vars(built))
    report, test = with_findings(own, trained, task.test(own, trained)), own.data.test
    return {
        **trainer.summary,
        "algorithm": options.algorithm,
        "trained_by": trainer.options.algorithm,
        "is_personalised": own.is_personalised(test),
        **task.describe(own),
        **report.description,
        "test": write_test(folder, report, task.guesses(own, test), rounds=trained.round_number),
    }
