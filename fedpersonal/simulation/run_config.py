"""What a run was asked for, and whether it is asked for the same again."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import platform
from collections.abc import Collection, Mapping
from typing import Any

from absl import logging

import fedpersonal
from fedpersonal.errors import UserError
from fedpersonal.simulation import json_values

_PACKAGES = ("tensorflow", "tensorflow-federated", "numpy")


def settle(path: pathlib.Path, flags: Mapping[str, Any], ignore: Collection[str]) -> dict[str, Any]:
    """Returns the content of `config.json` for a run that starts or goes on.

    Args:
        path: The file; if it exists, it is that of the run's former sessions.
        flags: The flags of this session by name.
        ignore: The flags that may differ from session to session.

    Returns:
        The flags, the seed, the versions with which the run was started, and, if others have joined
        since, these.

    Raises:
        UserError: Flags differ from those of former sessions.
    """
    flags = json_values.to_json(flags)
    versions = _versions()
    config = {"flags": flags, "seed": flags.get("seed"), "versions": versions}
    if not path.exists():
        return config
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        old_flags, known_versions = old["flags"], [old["versions"], *old.get("later_versions", [])]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not the config.json of a run ({error!r}).") from error
    _check_same(old_flags, flags, ignore, path.parent)
    if versions not in known_versions:
        logging.warning("%s was started with other versions: %s.", path.parent, old["versions"])
        known_versions.append(versions)
    config["versions"] = known_versions[0]
    if known_versions[1:]:
        config["later_versions"] = known_versions[1:]
    return config


def _check_same(
    old: Mapping[str, Any], new: Mapping[str, Any], ignore: Collection[str], folder: pathlib.Path
) -> None:
    changes = [
        f"{name} was {_show(old, name)} and is now {_show(new, name)}"
        for name in {**old, **new}
        if name not in ignore and _show(old, name) != _show(new, name)
    ]
    if changes:
        raise UserError(
            f"{folder} holds a run with other flags: {'; '.join(changes)}. "
            "Restore them or give another --output_dir."
        )


def _show(flags: Mapping[str, Any], name: str) -> str:
    return json.dumps(flags[name]) if name in flags else "absent"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "fedpersonal": fedpersonal.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions
