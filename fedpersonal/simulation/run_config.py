"""What a run was asked for, and whether it is asked for the same again."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import pathlib
import platform
from collections.abc import Collection, Mapping
from typing import Any

import fedpersonal
from fedpersonal.errors import UserError, escaped, one_line
from fedpersonal.files import damaged, read_json, to_json

_LOG = logging.getLogger(__name__)
# What a run writes is read by the versions that write the same.
_FORMAT = 3
_PACKAGES = ("tensorflow", "tensorflow-federated", "numpy")
# The entry of `config.json` with the clients that train.
TRAINING_DATA = "training_data"
# That with what a program trains, and how.
TRAINING = "training"
# So much of a value, and of all that differs, is said.
_LONGEST_VALUE, _LONGEST = 300, 1200
# What may differ from session to session.
_SESSION = ("versions", "runtime")


def settle(
    path: pathlib.Path,
    options: Mapping[str, Any],
    *,
    ignore: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of `config.json` for a run that starts or, if the file exists, goes on.

    Arguments are those of `RunFolder.open`.

    Returns:
        `options`, `seed`, `data` and `num_shards` if given, and `versions` and `runtime` of the
        first session; those of later ones, where they differ, in the list `later_sessions`.

    Raises:
        UserError: Options, data or the number of shards differ from those of former sessions.
    """
    about = {name: value for name, value in (about or {}).items() if value is not None}
    unknown = about.keys() - {"data", "runtime", "num_shards"}
    if unknown:
        raise ValueError(f"about may have data, runtime and num_shards, not {sorted(unknown)}.")
    seed = options.get("seed")
    config = to_json({"options": options, "seed": seed, **about, "versions": _versions()})
    config["format"] = _FORMAT
    if not os.path.lexists(path):
        return config
    old, folder = read_config(path), path.parent
    check_same("options", old["options"], config["options"], folder, ignore)
    if "data" in old:
        check_same("data", old["data"], config.setdefault("data", old["data"]), folder)
    config.update({name: old[name] for name in (TRAINING_DATA, TRAINING) if name in old})
    if "num_shards" in old:
        shards = old["num_shards"]
        check_same("shards", shards, config.setdefault("num_shards", shards), folder)
    session, first = ({k: c[k] for k in _SESSION if k in c} for c in (config, old))
    later = old.get("later_sessions", [])
    if session not in (first, *later):
        _LOG.warning("%s was started with %s, and goes on with %s.", folder, first, session)
        later = [*later, session]
    common = {name: value for name, value in config.items() if name not in _SESSION}
    return {**common, **first, **({"later_sessions": later} if later else {})}


def read_num_shards(folder: str | os.PathLike) -> int | None:
    """Returns into how many shards the run in a folder divides its cohorts; None without a run."""
    path = pathlib.Path(folder) / "config.json"
    return read_config(path).get("num_shards") if os.path.lexists(path) else None


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a `config.json`.

    Raises:
        UserError: It is missing, is damaged or changed, or is that of another version.
    """
    if not os.path.lexists(path):
        raise UserError(f"{path.parent} is not the folder of a run: it has no {path.name}.")
    config = read_json(path, {"versions": dict})
    if config.get("format") != _FORMAT:
        version = one_line(config["versions"].get("fedpersonal"))
        raise UserError(
            f"{path.parent} holds a run of fedpersonal {version}, which version "
            f"{fedpersonal.__version__} cannot open; give another folder."
        )
    config = read_json(path, {"options": dict, "versions": dict}, checked=True)
    later, shards = config.get("later_sessions", []), config.get("num_shards", 1)
    if not isinstance(later, list) or type(shards) is not int or shards < 1:
        raise damaged(path)
    return config


def check_same(
    what: str, old: Any, new: Any, folder: pathlib.Path, ignore: Collection[str] = ()
) -> None:
    """Raises a UserError that names the parts that differ; a value may have no parts."""
    old, new = (v if isinstance(v, Mapping) else {f"the {what}": v} for v in (old, new))
    changes = []
    for name in {**old, **new}:
        then, now = (json.dumps(v[name]) if name in v else "absent" for v in (old, new))
        if name not in ignore and then != now:
            changes.append(f"{escaped(name)} was {_cut(then)} and is now {_cut(now)}")
    if changes:
        raise UserError(
            f"{folder} holds a run with other {what}: {_cut('; '.join(changes), _LONGEST)}. "
            "Restore them or give another folder."
        )


def _cut(text: str, longest: int = _LONGEST_VALUE) -> str:
    return text[:longest] + "..." * (len(text) > longest)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "fedpersonal": fedpersonal.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions
