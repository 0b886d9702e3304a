"""Wall time of a sweep, beside the same runs one after another.

    python -m benchmarks.sweep_wall_time
    python -m benchmarks.sweep_wall_time --settings=8 --seeds=3 --kill

Runs of `movielens_quick`, on all processors: each in a process of the program with its own flags,
one after another; then as a sweep, which also tests two settings and compares them. Prints one line
of JSON.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_integer("settings", 4, "Settings of the sweep.", lower_bound=2, upper_bound=50)
flags.DEFINE_integer("seeds", 2, "Seeds of each.", lower_bound=1)
flags.DEFINE_integer("rounds", 100, "Rounds of a run.", lower_bound=1)
flags.DEFINE_bool("kill", False, "Kill the sweep when half of its runs are done; go on after that.")

PRESET = "experiments/presets/movielens_quick.flags"
SECONDS_BETWEEN_LOOKS = 0.1


def main() -> None:
    """Times both, and prints."""
    import json
    import pathlib
    import subprocess
    import sys
    import tempfile
    import time

    from fedpersonal.runtime.processors import count_processors

    rates = [round(0.02 * (1 + n), 2) for n in range(FLAGS.settings)]
    shared = [f"--flagfile={PRESET}", f"--total_rounds={FLAGS.rounds}"]
    no = subprocess.DEVNULL
    number = len(rates) * FLAGS.seeds

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        for rate in rates:
            for seed in range(FLAGS.seeds):
                own = [f"--client_learning_rate={rate}", f"--seed={seed}"]
                output = f"--output_dir={folder}/alone_{rate}_{seed}"
                command = [sys.executable, "-m", "experiments.movielens", *shared, *own, output]
                subprocess.run(command, check=True, stdout=no, stderr=no)
        alone = time.perf_counter() - began

        grid = f"--grid=client_learning_rate={','.join(map(str, rates))}"
        out = pathlib.Path(folder, "sweep")
        own = [grid, f"--seeds={FLAGS.seeds}", f"--output_dir={out}"]
        command = [sys.executable, "-m", "experiments.sweep", "movielens", *shared, *own]
        began = time.perf_counter()
        if FLAGS.kill:
            with subprocess.Popen(command, stdout=no, stderr=no) as sweep:
                while len(list(out.rglob("validation.json"))) < number // 2:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                sweep.kill()
        subprocess.run(command, check=True, stdout=no, stderr=no)
        together = time.perf_counter() - began
    told = {
        "runs": number,
        "processors": count_processors(),
        "one_after_another_seconds": round(alone, 1),
        "sweep_seconds": round(together, 1),
        "ratio": round(together / alone, 2),
        "killed_half_way": FLAGS.kill,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    launch.run(main)
