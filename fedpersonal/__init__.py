"""Partially local federated learning on TensorFlow Federated: `import fedpersonal as fp`.

Names are loaded when they are used, and TensorFlow with the first that needs it.
"""

from __future__ import annotations

import ast
import importlib
import pathlib
from typing import TYPE_CHECKING

from fedpersonal import runtime

__version__ = "0.2.0"

if TYPE_CHECKING:
    # These are the public names. Nothing is imported here: `__getattr__` reads where they are.
    from fedpersonal.algorithm import (
        Algorithm,
        GradientPhase,
        LookAhead,
        PersonalCopies,
        RidgePhase,
    )
    from fedpersonal.algorithms.apfl import apfl
    from fedpersonal.algorithms.constructor import constructor
    from fedpersonal.algorithms.ditto import ditto
    from fedpersonal.algorithms.fed_avg import fed_avg
    from fedpersonal.algorithms.fed_per import fed_per
    from fedpersonal.algorithms.fed_recon import fed_recon
    from fedpersonal.algorithms.fed_rep import fed_rep
    from fedpersonal.algorithms.fedperc import fedperc
    from fedpersonal.algorithms.furl import furl
    from fedpersonal.algorithms.lg_fed_avg import lg_fed_avg
    from fedpersonal.algorithms.method import (
        ClientOptions,
        KeepingOptions,
        Layers,
        Method,
        register,
    )
    from fedpersonal.algorithms.mr_mtl import mr_mtl
    from fedpersonal.algorithms.per_fed_avg import per_fed_avg
    from fedpersonal.algorithms.pfedme import pfedme
    from fedpersonal.algorithms.pfedrec import pfedrec
    from fedpersonal.data.client_dataset import ClientDataset
    from fedpersonal.data.client_table import clients_from_datasets, clients_from_table
    from fedpersonal.data.splits import split_clients, split_examples, split_support_query
    from fedpersonal.errors import UserError
    from fedpersonal.evaluation.client_results import ClientResults
    from fedpersonal.evaluation.evaluate import build_evaluation, evaluate_clients
    from fedpersonal.loaded_run import LoadedRun, load_run
    from fedpersonal.local_state.rounds import Rounds, read_kept
    from fedpersonal.local_state.store import LocalStateStore
    from fedpersonal.model.metrics import Metric
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.optimizers.named import optimizer
    from fedpersonal.options import option
    from fedpersonal.process.boundary import LocalVariableError, check_boundary
    from fedpersonal.process.privacy import DifferentialPrivacy
    from fedpersonal.process.process import build_process
    from fedpersonal.process.shards import Cohort, Execution, make_cohort
    from fedpersonal.report.comparison import compare
    from fedpersonal.report.write import write_report
    from fedpersonal.runtime import use_runtime
    from fedpersonal.simulation.callbacks.callback import Callback
    from fedpersonal.simulation.callbacks.watched_metric import BestModel, EarlyStopping
    from fedpersonal.simulation.checkpoints import StoreCheckpoints
    from fedpersonal.simulation.clock import ClientClock
    from fedpersonal.simulation.loop import run_rounds
    from fedpersonal.simulation.participation import Participation
    from fedpersonal.simulation.privacy_budget import PrivacyBudget
    from fedpersonal.simulation.run_folder import RunFolder
    from fedpersonal.simulation.sampling import ClientSampler
    from fedpersonal.tasks.task import EvaluationSet, Task, TestReport
    from fedpersonal.trained import TrainedModel
    from fedpersonal.trainer import Trainer

_HOMES = {
    name.name: str(node.module)
    for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__name__}.")
    for name in node.names
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def _load(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with runtime.quick_imports():
        module = importlib.import_module(_HOMES[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # Else any name would do.
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
