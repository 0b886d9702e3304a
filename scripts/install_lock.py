"""Installs a lock into this Python's environment, and shows its progress.

python scripts/install_lock.py LOCK [OPTION...]

It uses uv if it is on the PATH (UV=<path> names another, UV= none), else pip; options are those of
both. Both check the lock's hashes. A terminal shows one changing line; other outputs get a line
every ten seconds.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

from pip._vendor.packaging.requirements import Requirement

TERMINAL_INTERVAL, OTHER_INTERVAL = 1.0, 10.0  # Seconds between two lines.
WHEEL = re.compile(r"(.+?)-\d.*\.(?:whl|tar\.gz|zip|dist-info)")


def main() -> None:
    """Installs the lock of the arguments."""
    lock, *options = sys.argv[1:]
    uv_name = os.environ.get("UV", "uv")
    uv = shutil.which(uv_name)
    if not uv and uv_name not in ("", "uv"):
        sys.exit(f"UV={uv_name}: there is no such program")
    settings = ["--disable-pip-version-check", "--no-cache-dir", "--no-input"]
    command = [uv, "pip", "--no-cache"] if uv else [sys.executable, "-m", "pip", *settings]
    command += ["--quiet", "install", "--no-deps", "--require-hashes", *options, "-r", lock]
    # Fetched files go into the environment, because the folder of temporary files may be too small.
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        # One setting, by its names in older and newer versions of uv.
        certificates = {"UV_NATIVE_TLS": "true", "UV_SYSTEM_CERTS": "true"}
        installer = "uv" if uv else "pip"
        environment = {**certificates, **os.environ, "TMPDIR": folder}
        if uv:
            command += ["--python", sys.executable]
            environment.pop("UV_SYSTEM_PYTHON", None)
        status = _run(command, environment, folder, _packages(lock), installer)
    if status and uv:
        sys.exit(f"uv could not install {lock}; `make install UV=` takes pip")
    sys.exit(status)


def _packages(lock: str) -> set[str]:
    """Returns the names of a lock's packages for this Python."""
    lines = re.findall(r"^[^\s#].*?(?=\s*\\?$)", pathlib.Path(lock).read_text(), re.MULTILINE)
    pins = map(Requirement, lines)
    return {_normal(pin.name) for pin in pins if not pin.marker or pin.marker.evaluate()}


def _run(command: list, environment: dict, folder: str, packages: set, installer: str) -> int:
    """Runs a command, shows the number of fetched packages, and returns the status."""
    is_terminal = sys.stderr.isatty()
    start, most = time.monotonic(), 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        while True:
            try:
                status = process.wait(TERMINAL_INTERVAL if is_terminal else OTHER_INTERVAL)
                break
            except subprocess.TimeoutExpired:
                names, size = _find_packages(folder)
                most = max(most, size)
                installed = packages & _names(os.listdir(sysconfig.get_path("purelib")))
                fetched = f"{len(packages & names | installed)} of {len(packages)} packages fetched"
                seconds = time.monotonic() - start
                _show(
                    f"{fetched}, {most / 1e6:,.0f} MB; {len(installed)} installed; {seconds:.0f} s",
                    is_terminal,
                )
            except KeyboardInterrupt:  # The command was interrupted, too.
                process.wait()
                sys.exit(130)
        seconds = time.monotonic() - start
        output.seek(0)
        messages = output.read().decode(errors="replace")
    if is_terminal:
        _show("", is_terminal)
    if status:
        sys.stderr.write(messages)
    else:  # Warnings, as of an index that lacks a package, are irrelevant now.
        _show(f"{len(packages)} packages in {seconds:.0f} s, by {installer}", False)
    return status


def _find_packages(folder: str) -> tuple:
    """Returns the names of the packages in a folder, and its size in bytes."""
    names, sizes = set(), {}  # Sizes by file, because a file may have several names.
    for path, folders, files in os.walk(folder):
        names |= _names([*folders, *files])
        for file in files:
            try:
                status = os.lstat(os.path.join(path, file))
            except OSError:  # The file has just been moved.
                continue
            sizes[status.st_ino] = status.st_size
    return names, sum(sizes.values())


def _names(files: list) -> set:
    matches = map(WHEEL.fullmatch, files)
    return {_normal(match[1]) for match in matches if match}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _show(line: str, replaces: bool) -> None:
    """Prints a line; the next line overwrites it if `replaces`."""
    print(
        f"  {line}".ljust(72 * replaces),
        end="\r" if replaces else "\n",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
