"""Partially local federated learning on TensorFlow Federated: `import fedpersonal as fp`.

Names are loaded at their first use, and TensorFlow with the first name that needs it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from fedpersonal import errors, former, runtime

__version__ = "0.2.0"

# TensorFlow reads it when it is imported. A level of the caller takes precedence.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
quiets_tensorflow = "tensorflow" not in sys.modules and _LOG_LEVEL not in os.environ
if quiets_tensorflow:
    os.environ[_LOG_LEVEL] = "3"

if importlib.util.find_spec("tf_keras"):  # Installed with TensorFlow 2.21.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Otherwise tf.keras would be Keras 3.
    # With oneDNN of this version, a loss of GPT-2 was wrong in the fifth digit.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

if TYPE_CHECKING:
    # The public names. Nothing is imported here: `_HOMES` is parsed from these lines.
    from fedpersonal.data.clients import ClientDataset, clients_from_datasets, clients_from_table
    from fedpersonal.data.splits import split_clients, split_examples, split_support_query
    from fedpersonal.errors import UserError
    from fedpersonal.evaluation.evaluate import build_evaluation, evaluate_clients
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.federated.boundary import LocalVariableError, check_boundary
    from fedpersonal.federated.cohort import Cohort, Execution, make_cohort
    from fedpersonal.federated.privacy import DifferentialPrivacy
    from fedpersonal.federated.process import build_process
    from fedpersonal.methods.algorithm import Algorithm, Assignment, PersonalCopies, Rebuilding
    from fedpersonal.methods.constructor import constructor
    from fedpersonal.methods.method import ClientOptions, KeepingOptions, Layers, Method, register
    from fedpersonal.methods.phases import (
        BlendPhase,
        ChoicePhase,
        GradientPhase,
        LookAhead,
        NeighboursPhase,
        RidgePhase,
    )
    from fedpersonal.methods.signatures import (
        apfl,
        ditto,
        fed_avg,
        fed_dyn,
        fed_em,
        fed_per,
        fed_recon,
        fed_rep,
        fedperc,
        furl,
        ifca,
        lg_fed_avg,
        local_only,
        mr_mtl,
        per_fed_avg,
        pfedme,
        pfedrec,
        reptile,
        scaffold,
    )
    from fedpersonal.model.metrics import Metric
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.optimizers import LinearDecay, ScheduledOptimizer, optimizer
    from fedpersonal.options import Options, option
    from fedpersonal.report.comparison import compare
    from fedpersonal.report.page import write_report
    from fedpersonal.runs.checkpoints import StoreCheckpoints
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.runs.kept import Rounds, read_kept
    from fedpersonal.runs.state import Callback, RunState
    from fedpersonal.runs.store import LocalStateStore
    from fedpersonal.runtime import use_runtime
    from fedpersonal.training.budget import PrivacyBudget
    from fedpersonal.training.callbacks import BestModel, EarlyStopping
    from fedpersonal.training.clients import ClientSampler
    from fedpersonal.training.loaded import LoadedRun, load_run
    from fedpersonal.training.loop import run_rounds
    from fedpersonal.training.participation import ClientClock, Participation
    from fedpersonal.training.tested import EvaluationReport
    from fedpersonal.training.trained import TrainedModel
    from fedpersonal.training.trainer import Trainer

_HOMES = {
    # `signatures` has the types of methods' functions; each function is in a separate module.
    name.name: str(node.module).replace(".signatures", f".{name.name}")
    for node in ast.walk(ast.parse(pathlib.Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__name__}.")
    for name in node.names
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def _load(name: str) -> object:
    if name in former.PUBLIC:
        new = former.PUBLIC[name]
        former.warn("name", name, new)
        if new.startswith("suite."):  # The only name of the suite that is known here.
            return getattr(importlib.import_module(f"{__name__}.suite"), new.partition(".")[2])
        return _load(new)
    if name not in _HOMES:
        nearest = errors.did_you_mean(name, _HOMES)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest}")
    with runtime.quick_imports():
        module = importlib.import_module(_HOMES[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # Otherwise type checkers would accept any name.
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
