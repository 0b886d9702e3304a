"""The flags that every binary shares."""

from __future__ import annotations

import math
import pathlib
import sys
from typing import Any

from absl import flags

FLAGS = flags.FLAGS

SERVER_OPTIMIZERS = ("sgd", "momentum", "adam", "yogi", "adagrad")
EXECUTIONS = ("packed", "per_client")

_DEFAULTS = {
    "data_dir": None,
    "output_dir": None,
    "experiment_name": None,
    "total_rounds": 500,
    "clients_per_round": 100,
    "client_batch_size": 5,
    "client_learning_rate": 0.5,
    "server_optimizer": "sgd",
    "server_learning_rate": 1.0,
    "reconstruction_learning_rate": 0.1,
    "rounds_per_eval": 50,
    "rounds_per_checkpoint": 50,
    "execution": "packed",
    "seed": 0,
}


def define_common_flags(**defaults: Any) -> None:
    """Defines the shared flags; they then belong to the calling module.

    Args:
        **defaults: Defaults by flag name where a task's differ from the usual.

    Raises:
        TypeError: There is no such flag.
    """
    unknown = sorted(set(defaults) - set(_DEFAULTS))
    if unknown:
        raise TypeError(f"{unknown[0]} is not a shared flag; these are: {', '.join(_DEFAULTS)}.")
    default = {**_DEFAULTS, **defaults}

    flags.disclaim_key_flags()
    _text("data_dir", default, "The folder with the data.")
    _text("output_dir", default, "The run folder. [default: results/<experiment_name>]")
    _text("experiment_name", default, "The run's name. [default: the program's name]")
    _whole("total_rounds", default, "How many rounds to train.")
    _whole("clients_per_round", default, "How many clients are drawn for a round.")
    _whole("client_batch_size", default, "How many examples a client's batch has.")
    _rate("client_learning_rate", default, "Learning rate of the client's global variables.")
    _choice("server_optimizer", default, SERVER_OPTIMIZERS, "Applies the averaged update.")
    _rate("server_learning_rate", default, "Learning rate of the server optimizer.")
    _rate("reconstruction_learning_rate", default, "Learning rate of the local variables.")
    _whole("rounds_per_eval", default, "Rounds from one evaluation to the next.")
    _whole("rounds_per_checkpoint", default, "Rounds from one checkpoint to the next.")
    _choice("execution", default, EXECUTIONS, "Many clients a TFF member (fast), or one (general).")
    _whole("seed", default, "Fixes every random choice of the run.", lower_bound=0)


def flag_values() -> dict[str, Any]:
    """Returns the value of each flag that the experiment modules define, by name.

    Flags of absl itself and of other libraries are left out.
    """
    home = FLAGS.find_module_defining_flag("seed")
    return {
        flag.name: flag.value
        for module, defined in FLAGS.flags_by_module_dict().items()
        if module == home or module.split(".")[0] == "experiments"
        for flag in defined
    }


def run_folder_path() -> str:
    """Returns `--output_dir`, or its default, results/<experiment_name>."""
    name = FLAGS.experiment_name or pathlib.Path(sys.argv[0]).stem
    return FLAGS.output_dir or f"results/{name}"


def _text(name: str, default: dict[str, Any], meaning: str) -> None:
    flags.DEFINE_string(name, default[name], meaning)


def _choice(name: str, default: dict[str, Any], choices: tuple[str, ...], meaning: str) -> None:
    flags.DEFINE_enum(name, default[name], choices, meaning)


def _whole(name: str, default: dict[str, Any], meaning: str, lower_bound: int = 1) -> None:
    flags.DEFINE_integer(name, default[name], meaning, lower_bound=lower_bound)


def _rate(name: str, default: dict[str, Any], meaning: str) -> None:
    flags.DEFINE_float(name, default[name], meaning)
    flags.register_validator(
        name,
        lambda value: value is None or (value > 0 and math.isfinite(value)),
        message="a finite number above 0 is needed",
    )
