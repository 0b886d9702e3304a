"""Runs the command `fedpersonal`, whose programs are outside the library, by `python -m`."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("experiments.command", run_name="__main__", alter_sys=True)
