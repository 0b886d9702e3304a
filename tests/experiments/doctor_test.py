"""The doctor, once for real, and where nothing is installed."""

from __future__ import annotations

import json
import os
import signal
import time

import psutil

NAMES = """
platform, Python, environment, packages, processors, memory, output folder, temporary folder,
ratings, texts of stackoverflow, texts of reddit, texts of tv_shows,
import, local plain, local compiled, ray
"""


def test_all_checks_of_this_machine(run_program, tmp_path):
    output, errors, status = run_program("-m", "experiments.doctor", "--json", cwd=tmp_path)
    found = json.loads(output)
    entries = {entry["check"]: entry for entry in found["checks"]}
    assert ", ".join(entries) == " ".join(NAMES.split())
    assert all(e["status"] in ("ok", "warning", "failed") and e["what"] for e in entries.values())
    count = sum(entry["status"] == "failed" for entry in entries.values())
    assert (found["failed"], status, errors) == (count, int(count > 0), "")
    # What any machine that runs the tests has.
    for name in ("platform", "Python", "ratings", "import", "local plain", "local compiled"):
        assert entries[name]["status"] == "ok", entries[name]
    assert list(tmp_path.iterdir()) == []


def test_without_packages_there_are_lines_and_no_traceback(run_program, tmp_path):
    # `-S`: without site-packages.
    program = (
        f"import runpy, sys; sys.path[:0] = [{os.getcwd()!r}]; sys.argv = ['doctor']; "
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        "runpy.run_module('experiments.doctor', run_name='__main__')"
    )
    output, errors, status = run_program("-S", "-c", program, cwd=tmp_path)
    *lines, last = output.splitlines()
    assert (len(lines), errors, status) == (17, "", 1)
    assert all(line.split()[0] in ("ok", "warning", "failed") for line in lines)
    assert "failed   import: ModuleNotFoundError" in output and "type: make install" in output
    assert "failed   local plain: not tried, as the check of import failed" in lines
    assert last.startswith("17 checks: ")


def test_ctrl_c_ends_all_of_it_at_once(start_program, tmp_path):
    with start_program("-m", "experiments.doctor", cwd=tmp_path) as process:
        while not process.stdout.readline().startswith("ok       texts of tv_shows"):
            pass
        (examiner,) = psutil.Process(process.pid).children()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert time.monotonic() - began < 10
        assert not examiner.is_running() and process.stderr.read() == ""


def test_a_mistake_is_one_line(run_program, tmp_path):
    output, errors, status = run_program("-m", "experiments.doctor", "--jsno", cwd=tmp_path)
    assert (output, errors, status) == ("", "error: unrecognized arguments: --jsno\n", 2)
