"""Commands that are killed in the middle of their work, and all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}


def kill_when(is_due, command, folder, log):
    """Runs Python with arguments in a folder, and kills it as soon as it is due."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=ENVIRONMENT, stdout=file, stderr=file
        )
        deadline = time.monotonic() + 600
        while not is_due():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]
