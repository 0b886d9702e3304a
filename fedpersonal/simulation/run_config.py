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
from fedpersonal.atomic_files import to_json
from fedpersonal.errors import UserError

_PACKAGES = ("tensorflow", "tensorflow-federated", "numpy")
_ABOUT_SESSION = ("runtime", "num_shards")


def settle(
    path: pathlib.Path,
    options: Mapping[str, Any],
    *,
    ignore: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of `config.json` for a run that starts or goes on.

    Args:
        path: The file; if it exists, it is that of the run's former sessions.
        options: The options of this session by name.
        ignore: The options that may differ from session to session.
        about: See `RunFolder.open`.

    Returns:
        `options`, `seed`, `data` if given, and `versions`, `runtime`, `num_shards` of the first
        session; those of later ones, where they differ, in the list `later_sessions`.

    Raises:
        UserError: Options or data differ from those of former sessions.
    """
    about = to_json(about or {})
    unknown = about.keys() - {"data", *_ABOUT_SESSION}
    if unknown:
        raise ValueError(f"about may have data, runtime and num_shards, not {sorted(unknown)}.")
    options = to_json(options)
    config = {"options": options, "seed": options.get("seed")}
    if "data" in about:
        config["data"] = about["data"]
    session = {"versions": _versions(), **{k: about[k] for k in _ABOUT_SESSION if k in about}}
    if not path.exists():
        return {**config, **session}

    old = read_config(path)
    folder = path.parent
    _check_same("options", old["options"], options, folder, ignore)
    if "data" in old and "data" in config:
        _check_same("data", _named(old["data"]), _named(config["data"]), folder)
    elif "data" in old:
        config["data"] = old["data"]
    first = {name: old[name] for name in ("versions", *_ABOUT_SESSION) if name in old}
    sessions = [first, *old.get("later_sessions", [])]
    if session not in sessions:
        logging.warning("%s was started with %s, and goes on with %s.", folder, first, session)
        sessions.append(session)
    return {**config, **first, **({"later_sessions": sessions[1:]} if sessions[1:] else {})}


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of a `config.json`.

    Raises:
        UserError: It is missing, is something else, or is that of version 0.1.
    """
    if not path.is_file():
        raise UserError(f"{path.parent} is not the folder of a run: it has no {path.name}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        version = config["versions"]["fedpersonal"]
        is_former = "flags" in config and version.startswith("0.1.")
        options = None if is_former else config["options"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not the config.json of a run ({error!r}).") from error
    if options is None:
        raise UserError(
            f"{path.parent} holds a run of fedpersonal {version}, which version "
            f"{fedpersonal.__version__} cannot open; give another folder."
        )
    return config


def _check_same(
    what: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    folder: pathlib.Path,
    ignore: Collection[str] = (),
) -> None:
    changes = [
        f"{name} was {_show(old, name)} and is now {_show(new, name)}"
        for name in {**old, **new}
        if name not in ignore and _show(old, name) != _show(new, name)
    ]
    if changes:
        raise UserError(
            f"{folder} holds a run with other {what}: {'; '.join(changes)}. "
            "Restore them or give another folder."
        )


def _named(fingerprint: Any) -> Mapping[str, Any]:
    """Returns the parts of a fingerprint by name; one without parts is called the fingerprint."""
    return fingerprint if isinstance(fingerprint, Mapping) else {"the fingerprint": fingerprint}


def _show(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "absent"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "fedpersonal": fedpersonal.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "absent"
    return versions
