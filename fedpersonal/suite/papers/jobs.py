"""The jobs of a table or figure, each in its own folder; finished jobs are not run again."""

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
from fedpersonal.suite.tasks.options import RunOptions
from fedpersonal.suite.tasks.task import Task

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

RowT = TypeVar("RowT")
# Returns a summary; receives the job, the experiment that trained, and its trained model.
Measure = Callable[["Job", "Experiment", "TrainedModel"], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of an experiment, or a measurement on another job's trained model.

    Attributes:
        title: The title in printed lines.
        path: The folder.
        task: The task.
        values: The options that differ from the task's defaults.
        trained_by: The job whose training this one shares; None if it trains.
        measure: A function of a module, or a `functools.partial` of one with keywords, for a job
            that does not train; None for the test by its method.
    """

    title: str
    path: pathlib.Path
    task: Task
    values: Mapping[str, Value]
    trained_by: Job | None = None
    measure: Measure | None = None

    @property
    def options(self) -> RunOptions:
        """Its options, with all defaults."""
        return self.task.with_defaults(self.task.options(**self.values))

    @property
    def trainer(self) -> Job:
        """The job that trains."""
        return self.trained_by or self

    @property
    def record(self) -> RunRecord:
        """The files of its folder."""
        return RunFolder.read(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of its `summary.json`."""
        return self.record.summary

    def followed_by(self, path: pathlib.Path, name: str, measure: Measure) -> Job:
        """Returns a job that measures the trained model of this one.

        Args:
            path: The parent of its folder, which has the name of this job's folder.
            name: The beginning of its title.
            measure: The attribute `measure`.
        """
        title = f"{name}, {self.path.name.replace('_', ' ')}"
        path = path / self.path.name
        return Job(title, path, self.task, self.trainer.values, self.trainer, measure)

    def is_done(self) -> bool:
        """Returns whether the job has finished."""
        return (self.path / "summary.json").exists()

    def config(self) -> dict[str, Any]:
        """Returns the options that identify the job, in the format of `load_run`."""
        keywords = getattr(self.measure, "keywords", {})
        return {"task": self.task.module, **self.options.values(), **keywords}

    def may_differ(self) -> set[str]:
        """Returns the options that do not identify the job."""
        declared = self.options.declarations().items()
        names = {
            n for n, d in declared if d.rule.may_differ and n not in ("total_rounds", "local_start")
        }
        if not issubclass(self.task.method(self.options).options, FinetuningOptions):
            names |= FinetuningOptions.declarations().keys()
        return names

    def training(self) -> tuple:
        """Returns all values on which its training depends."""
        options, method = self.options, self.task.method(self.options)
        local_layers = method.local_layers(options, self.task.layers)
        ignored = {"method", *FinetuningOptions.declarations()}
        if not local_layers:
            ignored |= RebuildingOptions.declarations().keys()
        used = tuple((n, v) for n, v in options.values().items() if n not in ignored)
        traits = (method.same_rounds_as, local_layers, method.is_federated, method.has_table)
        return (self.task.name, *traits, used)


def share_trainings(jobs: Mapping[RowT, Sequence[Job]]) -> dict[RowT, list[Job]]:
    """Makes jobs whose methods differ only by fine-tuning share the training of the first of them.

    Args:
        jobs: The jobs by row, each with its own training.
    """
    first: dict[tuple, Job] = {}

    def shared(job: Job) -> Job:
        trainer = first.setdefault(job.training(), job)
        return job if job is trainer else dataclasses.replace(job, trained_by=trainer)

    return {row: [shared(job) for job in row_jobs] for row, row_jobs in jobs.items()}


def complete(jobs: Iterable[Job], about: Mapping[str, Any] | None) -> None:
    """Runs the missing jobs in order; a shared training runs before the jobs that share it.

    Args:
        jobs: The jobs.
        about: The description of their data, `describe()` of the source; None to read the data of
            each job.

    Raises:
        UserError: Before the first job if a folder has another job; or if training diverges.
    """
    every = {one.path: one for job in jobs for one in (job.trainer, job)}.values()
    check_folders(every, about)
    for number, job in enumerate(every, start=1):
        line = f"run {number} of {len(every)}: {job.title}"
        print(f"{line}: done before" if job.is_done() else line, flush=True)
        try:
            if not job.is_done():
                _run(job, about)
                _return_memory()
        except UserError as error:
            raise UserError(f"{job.title}: {error}") from error


def check_folders(jobs: Iterable[Job], about: Mapping[str, Any] | None = None) -> None:
    """Checks that the folders of jobs have no other jobs; `about` as for `complete`.

    Raises:
        UserError: If a folder has another job.
    """
    for job in jobs:
        config = job.path / "config.json"
        entries = {"data": about, "runtime": job.options.runtime}
        run_config.merge_config(config, job.config(), ignore=job.may_differ(), about=entries)


def check_splits(jobs: Sequence[Job]) -> None:
    """Splits the data of jobs, which takes seconds, so that no job is refused hours later.

    Args:
        jobs: The jobs; finished ones are left out.

    Raises:
        UserError: If data cannot be split.
    """
    for job in jobs:
        if not job.is_done():
            job.task.split(job.task.read(job.options), job.options.for_split)


def _return_memory() -> None:
    """Returns free memory to the system; otherwise each job would add 20 MB."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # Only glibc has this function.
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def open_job(
    job: Job, about: Mapping[str, Any] | None = None
) -> tuple[Experiment[Any, Any], RunFolder]:
    """Builds the experiment of a job and opens its folder; `about` as for `complete`."""
    from fedpersonal.suite.tasks.running import open_experiment

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


def _run(job: Job, about: Mapping[str, Any] | None) -> None:
    from fedpersonal.report.page import write_report
    from fedpersonal.suite.tasks.running import run_experiment
    from fedpersonal.training.loaded import load_run

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
    """Tests another method's trained model by the method of a job; returns the summary."""
    from fedpersonal.suite.tasks.running import with_client_facts
    from fedpersonal.training.tested import write_test

    task, options, trainer = job.task, job.options, job.trainer
    built = task.build(task.sizes(experiment.data), options)
    trained_variables, variables = (
        [(v.name, v.shape) for v in e.model.variables] for e in (experiment, built)
    )
    if trained_variables != variables:
        pair = f"{options.method} and {trainer.options.method}"
        raise ValueError(f"{pair} have different variables, so they cannot share a training.")
    method = task.method(options)
    tested = dataclasses.replace(experiment, method=method, options=options, **vars(built))
    report = with_client_facts(tested, trained, task.test(tested, trained))
    test = tested.data.test
    return {
        **trainer.summary,
        "method": options.method,
        "trained_by": trainer.options.method,
        "is_personalised": tested.is_personalised(test),
        **task.describe(tested),
        **report.description,
        "test": write_test(
            folder, report, task.baselines(tested, test), rounds=trained.round_number
        ),
    }
