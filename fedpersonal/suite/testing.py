"""A test of user-supplied methods against the contract of methods: `check_method(SlowBody)`."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.methods.method import Method, methods, register

if TYPE_CHECKING:
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.suite.tasks.task import Task
    from fedpersonal.training.loop import LoopResult

# With these options, two rounds of any task take seconds and change variables.
SMALL: Mapping[str, Any] = {
    "total_rounds": 2,
    "clients_per_round": 5,
    "client_batch_size": 4,
    "local_epochs": 1,
    "finetuning_epochs": 1,
    "reconstruction_epochs": 1,
    "rounds_per_eval": 2,
    "rounds_per_checkpoint": 1,
}
SMALL_DIGITS: Mapping[str, Any] = {"num_clients": 20, "hidden_dim": 8}


def check_method(
    method: type[Method], *, task: Task[Any, Any, Any] | None = None, **options: Any
) -> None:
    """Runs a method on few data, and checks the contract of methods.

    Two rounds must change variables, and give finite metrics and a run folder. The reopened run
    must have the same bits and the same test figures. A run that is stopped between the rounds must
    resume to the same bits. Shards of one client must give equal results up to rounding. Each
    client's update must equal a plain computation by Keras and NumPy, as `Trainer.audit` checks.

    Args:
        method: The method, which is registered if necessary.
        task: A task with the layers that the method needs; None for the handwritten digits, whose
            model has all kinds of layers except tables of items.
        **options: Options of the task that differ from the small ones.

    Raises:
        AssertionError: If the method violates the contract; the message says how.
        UserError: If the task does not offer the method, or an option is wrong.

    Examples:
        >>> from fedpersonal.suite.testing import check_method
        >>> class InTurn(fp.Method, name="in_turn", local_variables="kept", local_part="head"):
        ...     def phases(self):
        ...         return self.phase("local"), self.phase("global")
        >>> check_method(InTurn)
    """
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.find import all_tasks
    from fedpersonal.suite.tasks.running import run_experiment
    from fedpersonal.training.loaded import load_run

    if not isinstance(method, type) or methods().get(method.name) is not method:
        register(method)
    small = {**SMALL, **(SMALL_DIGITS if task is None else {})}
    task = task or all_tasks()["digits"]
    if method.name not in task.methods:
        raise UserError(
            f"{method.name} needs layers that the task {task.name} lacks: give another, task=..."
        )
    chosen = task.options(**{**small, **options, "method": method.name})
    source = task.read(chosen)
    experiment = build_experiment(task, source, chosen)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_folder = open_folder(folder / "run", experiment)
        summary = run_experiment(experiment, run_folder, progress=False)
        loss = summary["test"]["loss"]
        _require(math.isfinite(loss), f"the test loss is {loss}")
        if not method.trains:
            return
        expected = train(experiment, folder / "run")
        initial = experiment.trainer.untrained().weights
        has_changed = any((expected.weights[n] != value).any() for n, value in initial.items())
        _require(
            has_changed or bool(expected.kept),
            "two rounds change neither global variables nor kept local variables",
        )
        with load_run(folder / "run").trained as loaded:
            check_equal("the run, opened again", dict(loaded.weights), expected.weights)
            part = experiment.data.test
            support, query = task.for_evaluation(experiment.evaluator.model, part)
            metrics = loaded.overall(query, support=support)
            figures = {name: np.asarray(summary["test"][name]) for name in metrics}
            again = {name: np.asarray(value) for name, value in metrics.items()}
            check_equal("its test, in a program", again, figures, rounding=1e-5)
        train(experiment, folder / "stopped", rounds=1)
        resumed = train(experiment, folder / "stopped")
        check_equal("a run that was stopped", resumed.arrays(), expected.arrays())
        sharded_experiment = build_experiment(task, source, chosen, shards=100)
        sharded = train(sharded_experiment, folder / "sharded").arrays()
        check_equal("clients in separate shards", sharded, expected.arrays(), rounding=1e-4)
    if method.is_federated:
        audit = experiment.trainer.audit(rounds=2)
        _require(audit.holds, "; ".join(audit.leaks))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def check_equal(
    title: str,
    actual: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    *,
    rounding: float = 0.0,
) -> None:
    """Raises an AssertionError unless arrays are equal, to the bit or up to rounding."""
    names = f"{title}: {sorted(actual)}, not {sorted(expected)}"
    _require(actual.keys() == expected.keys(), names)
    for name, value in expected.items():
        message = f"{title}: {name}"
        np.testing.assert_allclose(actual[name], value, rounding, rounding, err_msg=message)


def open_folder(path: pathlib.Path, experiment: Experiment[Any, Any]) -> RunFolder:
    """Opens the folder of an experiment's run."""
    from fedpersonal.runs.folder import RunFolder

    task = experiment.task.module
    return RunFolder.open(path, {"task": task, **experiment.options.values()})


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of rounds: the last weights, and the kept values of training clients."""

    loop: LoopResult | None
    weights: dict[str, np.ndarray]
    has_kept: np.ndarray | None = None
    kept: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays by name; kept values only of clients that have them."""
        kept = {f"kept {name}": value[self.has_kept] for name, value in self.kept.items()}
        return {**self.weights, **kept}


def train(
    experiment: Experiment[Any, Any], path: pathlib.Path, *, rounds: int | None = None
) -> TrainingResult:
    """Runs the missing rounds, without evaluation."""
    options = experiment.options
    if not experiment.method.trains:
        return TrainingResult(None, dict(experiment.trainer.untrained().weights))
    with experiment.trainer.fit(
        rounds=rounds or options.total_rounds,
        folder=open_folder(path, experiment),
        rounds_per_checkpoint=options.rounds_per_checkpoint,
        progress=False,
    ) as trained:
        weights = {name: np.array(value) for name, value in trained.weights.items()}
        if not trained.kept_by:
            return TrainingResult(trained.loop, weights)
        has_kept, kept = trained.kept_by(experiment.data.train.client_ids)
        return TrainingResult(trained.loop, weights, has_kept, dict(kept))
