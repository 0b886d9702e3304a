"""Resident memory of a reproduction, run after run.

    python -m benchmarks.reproduction_memory

Regenerates a part of table 1 with short runs, one after another in one process. Prints one line of
JSON: the megabytes of the process after each run, and the growth from the first run to the last.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_integer("runs", 9, "Runs of a row, each with a seed of its own.", lower_bound=2)

SECONDS_BETWEEN_LOOKS = 0.2


def main() -> None:
    """Starts the reproduction and looks at its memory whenever a run has ended."""
    import json
    import pathlib
    import subprocess
    import sys
    import tempfile
    import time

    import psutil

    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "experiments.reproduce", "--target=table1"),
            *("--rows=FedRecon", f"--seeds={FLAGS.runs}", "--scale_rounds=0.01"),
            f"--output_dir={folder}",
        ]
        megabytes: list[float] = []
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as reproduction:
            while reproduction.poll() is None and len(megabytes) < FLAGS.runs:
                ended = len(list(pathlib.Path(folder).rglob("summary.json")))
                if ended > len(megabytes):
                    rss = psutil.Process(reproduction.pid).memory_info().rss
                    megabytes.append(round(rss / 2**20, 1))
                time.sleep(SECONDS_BETWEEN_LOOKS)
        if reproduction.returncode:
            raise SystemExit(reproduction.returncode)
    growth = round(100 * (megabytes[-1] / megabytes[0] - 1), 2)
    print(json.dumps({"resident_mb": megabytes, "growth_percent": growth}))


if __name__ == "__main__":
    launch.run(main)
