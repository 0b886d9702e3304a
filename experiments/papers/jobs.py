"""The jobs of a table or figure, each in a folder of its own; what has ended is not done again."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fedpersonal.errors import UserError
from fedpersonal.methods.method import FinetuningOptions, RebuildingOptions
from fedpersonal.options import Value
from fedpersonal.runs import record as run_config
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.record import RunRecord
from fedpersonal.tasks.options import RunOptions
from fedpersonal.tasks.task import Task

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

RowT = TypeVar("RowT")
# Returns a summary, given the job, the experiment that has trained, and what it has trained.
Measure = Callable[["Job", "Experiment", "TrainedModel"], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of an experiment, or what is measured of another one after its training.

    Attributes:
        title: For people.
        path: Its folder.
        task: Its task.
        values: The options that differ from the task's defaults.
        trained_by: The job whose training this one shares, or None if it trains.
        measure: A function of a module, or a `functools.partial` of one with keywords, for a job
            that does not train; None for the test of its own method.
    """

    title: str
    path: pathlib.Path
    task: Task
    values: Mapping[str, Value]
    trained_by: Job | None = None
    measure: Measure | None = None

    @property
    def options(self) -> RunOptions:
        """Its options, settled."""
        return self.task.settle(self.task.options(**self.values))

    @property
    def trainer(self) -> Job:
        """The job that trains."""
        return self.trained_by or self

    @property
    def record(self) -> RunRecord:
        """Its folder, to be read."""
        return RunFolder.read(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """What it came to."""
        return self.record.summary

    def then(self, path: pathlib.Path, what: str, measure: Measure) -> Job:
        """Returns the job that measures this one after its training.

        Args:
            path: The folder above its own, which has this one's name.
            what: Stands in its title.
            measure: As of the attributes.
        """
        title = f"{what}, {self.path.name.replace('_', ' ')}"
        path = path / self.path.name
        return Job(title, path, self.task, self.trainer.values, self.trainer, measure)

    def is_done(self) -> bool:
        """Tells whether it has ended."""
        return (self.path / "summary.json").exists()

    def config(self) -> dict[str, Any]:
        """Returns what tells it from other jobs, as `load_run` reads it."""
        keywords = getattr(self.measure, "keywords", {})
        return {"task": self.task.module, **self.options.values(), **keywords}

    def may_differ(self) -> set[str]:
        """Returns the options that do not tell it from other jobs."""
        declared = self.options.declarations().items()
        names = {
            n for n, d in declared if d.rule.may_differ and n not in ("total_rounds", "local_start")
        }
        read = self.task.method(self.options).options
        if not issubclass(read, FinetuningOptions):
            names |= FinetuningOptions.declarations().keys()
        return names

    def training(self) -> tuple:
        """Returns what its training depends on."""
        options, method = self.options, self.task.method(self.options)
        local_layers = method.local_layers(options, self.task.layers)
        unread = {"method", *FinetuningOptions.declarations()}
        if not local_layers:
            unread |= RebuildingOptions.declarations().keys()
        read = tuple((n, v) for n, v in options.values().items() if n not in unread)
        traits = (method.trains_as, local_layers, method.is_federated, method.has_table)
        return (self.task.name, *traits, read)


def share_trainings(jobs: Mapping[RowT, Sequence[Job]]) -> dict[RowT, list[Job]]:
    """Lets jobs whose methods differ only by fine-tuning share the training of the first of them.

    Args:
        jobs: The jobs by row, each with its own training.
    """
    first: dict[tuple, Job] = {}

    def shared(job: Job) -> Job:
        trainer = first.setdefault(job.training(), job)
        return job if job is trainer else dataclasses.replace(job, trained_by=trainer)

    return {row: [shared(job) for job in own] for row, own in jobs.items()}


def complete(jobs: Iterable[Job], about: Mapping[str, Any] | None) -> None:
    """Does what is missing, one job after another; a training that others share comes before them.

    Args:
        jobs: The jobs.
        about: What tells their data from others, `describe()` of the source; None asks each job's.

    Raises:
        UserError: Before the first job if a folder holds another one; or if training diverges.
    """
    every = {own.path: own for job in jobs for own in (job.trainer, job)}.values()
    check_folders(every, about)
    for number, job in enumerate(every, start=1):
        line = f"run {number} of {len(every)}: {job.title}"
        print(f"{line}: done before" if job.is_done() else line, flush=True)
        try:
            if not job.is_done():
                _work(job, about)
                _give_memory_back()
        except UserError as error:
            raise UserError(f"{job.title}: {error}") from error


def check_folders(jobs: Iterable[Job], about: Mapping[str, Any] | None = None) -> None:
    """Raises a `UserError` if the folder of a job holds another one; `about` as of `complete`."""
    for job in jobs:
        config = job.path / "config.json"
        told = {"data": about, "runtime": job.options.runtime}
        run_config.settle(config, job.config(), ignore=job.may_differ(), about=told)


def check_splits(jobs: Sequence[Job]) -> None:
    """Splits the data of jobs: seconds, where a refusal after the first ones would cost hours.

    Args:
        jobs: The jobs; those that are done are left out.

    Raises:
        UserError: If data cannot be split.
    """
    for job in jobs:
        if not job.is_done():
            job.task.split(job.task.read(job.options), job.options.for_split)


def _give_memory_back() -> None:
    """Gives what a job has left free back to the system; else each would leave 20 MB more."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # Other C libraries have no such call.
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def open_job(
    job: Job, about: Mapping[str, Any] | None = None
) -> tuple[Experiment[Any, Any], RunFolder]:
    """Builds the experiment of a job and opens its folder; `about` None asks the data."""
    from fedpersonal.tasks.running import open_experiment

    options = job.trainer.options
    source = job.task.read(options)
    return open_experiment(
        job.task,
        source,
        options,
        job.path,
        config=job.config(),
        may_differ=job.may_differ(),
        data=source.describe() if about is None else about,
    )


def _work(job: Job, about: Mapping[str, Any] | None) -> None:
    from fedpersonal.report.page import write_report
    from fedpersonal.runs.saved import load_run
    from fedpersonal.tasks.running import run_experiment

    experiment, opened = open_job(job, about)
    with opened as folder:
        if job.trained_by is None:
            run_experiment(experiment, folder)
            return
        with load_run(job.trained_by.path).trained as trained:
            if job.measure:
                summary = job.measure(job, experiment, trained)
            else:
                summary = _test(job, experiment, trained, folder)
            folder.write_summary(summary)
            write_report(job.path)


def _test(
    job: Job, experiment: Experiment, trained: TrainedModel, folder: RunFolder
) -> dict[str, Any]:
    """Tests what another method has trained by the method of a job; returns the summary."""
    from fedpersonal.runs.tested import write_test
    from fedpersonal.tasks.running import with_findings

    task, options, trainer = job.task, job.options, job.trainer
    built = task.build(task.sizes(experiment.data), options)
    theirs, ours = ([(v.name, v.shape) for v in e.model.variables] for e in (experiment, built))
    if theirs != ours:
        pair = f"{options.method} and {trainer.options.method}"
        raise ValueError(f"{pair} have other variables, so they cannot share a training.")
    method = task.method(options)
    own = dataclasses.replace(experiment, method=method, options=options, **vars(built))
    report, test = with_findings(own, trained, task.test(own, trained)), own.data.test
    return {
        **trainer.summary,
        "method": options.method,
        "trained_by": trainer.options.method,
        "is_personalised": own.is_personalised(test),
        **task.describe(own),
        **report.description,
        "test": write_test(folder, report, task.guesses(own, test), rounds=trained.round_number),
    }
