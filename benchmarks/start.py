"""Seconds from the command to the first round of a run, and to its end, part by part.

    python -m benchmarks.start --task=movielens --preset=movielens_quick

Prints one line of JSON: medians of the seconds that went by and of those that processors were busy
until data were read, all was built, the first round was done, and the end after two rounds and the
test; and what importing TensorFlow Federated alone takes.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("task", "movielens", "The binary.")
flags.DEFINE_string("preset", "movielens_quick", "A preset of it.")
flags.DEFINE_multi_string("flag", [], "A further flag of it, as name=value; repeatable.")
flags.DEFINE_integer("repeats", 3, "Runs.", lower_bound=1)


def main() -> None:
    """Runs the binary and prints when its parts were done."""
    import json
    import statistics

    with_tff = "with runtime.quick_imports(): import tensorflow_federated"
    command = ["-m", f"experiments.{FLAGS.task}"]
    command += [f"--flagfile=experiments/presets/{FLAGS.preset}.flags"]
    command += [f"--{flag}" for flag in FLAGS.flag]
    command += ["--total_rounds=2", "--rounds_per_eval=2", "--decay_rounds=0"]
    found = []
    for _ in range(FLAGS.repeats):
        alone = _time(["-c", f"from fedpersonal import runtime\n{with_tff}"])["end"]
        found.append({"tff alone": alone, **_time(command)})
    medians = {
        part: [round(statistics.median(run[part][i] for run in found), 2) for i in (0, 1)]
        for part in found[0]
    }
    print(json.dumps({"preset": FLAGS.preset, "seconds, and those busy": medians}))


def _time(command: list[str]) -> dict[str, tuple[float, float]]:
    """Returns seconds until each part was done: those that went by, and those busy."""
    import pathlib
    import sys
    import tempfile
    import time

    import psutil

    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w") as said:
        run, busy, times = pathlib.Path(folder, "run"), 0.0, {}
        metrics = run / "metrics.csv"
        is_done = {
            "data": lambda: pathlib.Path(said.name).stat().st_size > 0,
            "built": (run / "config.json").exists,
            "first round": lambda: metrics.exists() and metrics.read_text().count("\n") > 1,
        }
        own = [f"--output_dir={run}"] if command[0] == "-m" else []
        begin = time.perf_counter()
        process = psutil.Popen([sys.executable, *command, *own], stdout=said, stderr=said)
        while process.poll() is None:
            busy = sum(process.cpu_times()[:2])
            for part in [p for p in is_done if p not in times and is_done[p]()]:
                times[part] = (time.perf_counter() - begin, busy)
            time.sleep(0.01)
        times["end"] = (time.perf_counter() - begin, busy)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}.")
    return times


if __name__ == "__main__":
    launch.run(main)
