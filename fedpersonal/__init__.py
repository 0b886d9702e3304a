"""Partially local federated learning on TensorFlow Federated: `import fedpersonal as fp`.

Names are loaded when they are used, and TensorFlow with the first that needs it.
"""

from __future__ import annotations

import importlib

from fedpersonal import runtime

__version__ = "0.2.0"

_MODULES = {
    "algorithm": ("Algorithm", "GradientPhase", "LookAhead", "PersonalCopies", "RidgePhase"),
    "algorithms.apfl": ("apfl",),
    "algorithms.ditto": ("ditto",),
    "algorithms.fed_avg": ("fed_avg",),
    "algorithms.fed_per": ("fed_per",),
    "algorithms.fed_recon": ("fed_recon",),
    "algorithms.fed_rep": ("fed_rep",),
    "algorithms.fedperc": ("fedperc",),
    "algorithms.furl": ("furl",),
    "algorithms.lg_fed_avg": ("lg_fed_avg",),
    "algorithms.mr_mtl": ("mr_mtl",),
    "algorithms.per_fed_avg": ("per_fed_avg",),
    "algorithms.pfedme": ("pfedme",),
    "algorithms.method": ("ClientOptions", "KeepingOptions", "Layers", "Method", "register"),
    "data.client_dataset": ("ClientDataset",),
    "data.client_table": ("clients_from_table",),
    "data.splits": ("split_clients", "split_examples", "split_support_query"),
    "errors": ("UserError",),
    "evaluation.evaluate": ("ClientResults", "build_evaluation", "evaluate_clients"),
    "loaded_run": ("LoadedRun", "load_run"),
    "local_state.rounds": ("Rounds", "read_kept"),
    "local_state.store": ("LocalStateStore",),
    "model.metrics": ("Metric",),
    "model.partition": ("PartitionedModel",),
    "process.boundary": ("LocalVariableError", "check_boundary"),
    "process.execution": ("Execution",),
    "process.privacy": ("DifferentialPrivacy",),
    "process.process": ("build_process",),
    "process.shards": ("Cohort", "make_cohort"),
    "runtime": ("use_runtime",),
    "simulation.callbacks.callback": ("Callback",),
    "simulation.callbacks.watched_metric": ("BestModel", "EarlyStopping"),
    "simulation.clock": ("ClientClock",),
    "simulation.loop": ("run_rounds",),
    "simulation.participation": ("Participation",),
    "simulation.privacy_budget": ("PrivacyBudget",),
    "simulation.run_folder": ("RunFolder",),
    "simulation.sampling": ("ClientSampler",),
    "simulation.store_checkpoints": ("StoreCheckpoints",),
    "tasks.task": ("EvaluationSet", "Task", "TestReport"),
    "trained": ("TrainedModel",),
    "trainer": ("Trainer",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604

# TensorFlow speaks up when it is imported, which a program may do before it uses a name.
runtime.quiet_logs()
runtime.spare_home()
runtime.ensure_runtime()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    runtime.start()
    with runtime.quick_imports():
        module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
