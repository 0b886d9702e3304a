"""Installs a lock into this Python's environment, and shows how far it is.

python scripts/install_lock.py LOCK [OPTION...]

uv does it where it is on the PATH (UV=<path> names another, UV= none), else pip; options are those
that both know. Either checks the lock's hashes. On a terminal one line moves; elsewhere there is a
line every ten seconds.
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

ON_TERMINAL, ELSEWHERE = 1.0, 10.0  # Seconds between two lines.
WHEEL = re.compile(r"(.+?)-\d.*\.(?:whl|tar\.gz|zip|dist-info)")


def main() -> None:
    """Installs the lock that is named."""
    lock, *options = sys.argv[1:]
    named = os.environ.get("UV", "uv")
    uv = shutil.which(named)
    if not uv and named not in ("", "uv"):
        sys.exit(f"UV={named}: there is no such program")
    settings = ["--disable-pip-version-check", "--no-cache-dir", "--no-input"]
    command = [uv, "pip", "--no-cache"] if uv else [sys.executable, "-m", "pip", *settings]
    command += ["--quiet", "install", "--no-deps", "--require-hashes", *options, "-r", lock]
    # What is fetched lies beside the packages: the folder of temporary files may be too small.
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        # The same setting, by the names that older and newer versions of uv give it.
        certificates = {"UV_NATIVE_TLS": "true", "UV_SYSTEM_CERTS": "true"}
        by = "uv" if uv else "pip"
        environment = {**certificates, **os.environ, "TMPDIR": folder}
        if uv:
            command += ["--python", sys.executable]
            environment.pop("UV_SYSTEM_PYTHON", None)
        status = _run(command, environment, folder, _packages(lock), by)
    if status and uv:
        sys.exit(f"uv could not install {lock}; `make install UV=` takes pip")
    sys.exit(status)


def _packages(lock: str) -> set[str]:
    """Returns the names of a lock's packages for this Python."""
    lines = re.findall(r"^[^\s#].*?(?=\s*\\?$)", pathlib.Path(lock).read_text(), re.MULTILINE)
    pins = map(Requirement, lines)
    return {_normal(pin.name) for pin in pins if not pin.marker or pin.marker.evaluate()}


def _run(command: list, environment: dict, folder: str, wanted: set, by: str) -> int:
    """Runs a command, shows how many packages it has fetched; returns its status."""
    moves = sys.stderr.isatty()
    start, most = time.monotonic(), 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        while True:
            try:
                status = process.wait(ON_TERMINAL if moves else ELSEWHERE)
                break
            except subprocess.TimeoutExpired:
                names, size = _fetched(folder)
                most = max(most, size)
                installed = wanted & _names(os.listdir(sysconfig.get_path("purelib")))
                fetched = f"{len(wanted & names | installed)} of {len(wanted)} packages fetched"
                seconds = time.monotonic() - start
                _show(
                    f"{fetched}, {most / 1e6:,.0f} MB; {len(installed)} installed; {seconds:.0f} s",
                    moves,
                )
            except KeyboardInterrupt:  # The command was interrupted, too.
                process.wait()
                sys.exit(130)
        seconds = time.monotonic() - start
        output.seek(0)
        said = output.read().decode(errors="replace")
    if moves:
        _show("", moves)
    if status:
        sys.stderr.write(said)
    else:  # Warnings, as of an index that lacks a package, matter to nobody then.
        _show(f"{len(wanted)} packages in {seconds:.0f} s, by {by}", False)
    return status


def _fetched(folder: str) -> tuple:
    """Returns the names of the packages in a folder, and the bytes there."""
    names, sizes = set(), {}  # By file, as one may have several names.
    for path, folders, files in os.walk(folder):
        names |= _names([*folders, *files])
        for file in files:
            try:
                status = os.lstat(os.path.join(path, file))
            except OSError:  # It has just been moved.
                continue
            sizes[status.st_ino] = status.st_size
    return names, sum(sizes.values())


def _names(files: list) -> set:
    found = map(WHEEL.fullmatch, files)
    return {_normal(match[1]) for match in found if match}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _show(line: str, moves: bool) -> None:
    """Prints a line, which the next one replaces where it moves."""
    print(f"  {line}".ljust(72 * moves), end="\r" if moves else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
