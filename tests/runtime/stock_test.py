"""TFF's own runtime is told of, and ends with the program."""

from __future__ import annotations

import psutil

_PROGRAM = """
import os, sys
import numpy as np
import psutil
from fedpersonal import runtime

runtime.use_runtime("tff")
import tensorflow_federated as tff

double = tff.tensorflow.computation(lambda x: x * 2, np.int32)
assert double(4) == 8 and runtime.describe_runtime() == "tff"
(child,) = psutil.Process().children()
print(child.name(), child.pid, flush=True)
"""


def test_its_child_ends_with_the_program_and_a_line_tells_what_it_opens(run_program, tmp_path):
    output, errors, status = run_program("-c", _PROGRAM, cwd=tmp_path)
    name, pid = output.split()
    assert (name, status) == ("worker_binary", 0), errors
    assert not psutil.pid_exists(int(pid))
    (line,) = errors.splitlines()
    assert "listens on every network interface" in line and "run code as you" in line
