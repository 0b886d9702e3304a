"""Hurts runs of every task at random and compares them with runs that nobody disturbed.

    python -m tests.soak --faults=200

A run is begun, hurt, gone on with, and hurt again: by signals, killed and stopped processes, a
full disk, a second process, damaged files; where Ray is installed, on its nodes, too. In the end
each must have the results of an undisturbed run: to the last bit, and in TFF's worker, where bits
differ from run to run, nearly. On the way it may not show a traceback, leave a process or a file
behind, or change anything in a folder that it refuses.

Prints a line a run, and a JSON object of all. Exits with status 1 if a run fails; its folder is
kept.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import json
import pathlib
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent import futures

from absl import flags

from examples.ray_nodes import Nodes, ray_nodes
from experiments import command
from fedpersonal.runtime.processors import count_processors
from tests.soak.runs import CASES, ON_RAY, Case, Fault, Session, end_all, outcome
from tests.soak.trials import Trial, draw_trials

FLAGS = flags.FLAGS

flags.DEFINE_integer("faults", 200, "Faults in all.", lower_bound=1)
flags.DEFINE_integer("ray_faults", 12, "How many of them on Ray's nodes.", lower_bound=0)
flags.DEFINE_integer("seed", 0, "Draws runs and faults.")
flags.DEFINE_integer("at_once", None, "Runs at the same time. [default: one a processor]")
flags.DEFINE_integer("only", None, "Makes the trial of this number only.")
flags.DEFINE_string("folder", None, "Where runs are kept. [default: one that is deleted]")


def main() -> int:
    """Makes all trials; returns the exit status."""
    command.start()  # SIGTERM becomes an exit.
    begun = time.monotonic()
    has_ray = importlib.util.find_spec("ray") is not None
    on_ray = min(FLAGS.ray_faults, FLAGS.faults) if has_ray else 0
    trials = draw_trials(FLAGS.seed, FLAGS.faults - on_ray, CASES)
    ray_trials = draw_trials(FLAGS.seed, on_ray, [ON_RAY], first=len(trials))
    if FLAGS.only is not None:
        trials, ray_trials = (
            [trial for trial in some if trial.number == FLAGS.only] for some in (trials, ray_trials)
        )
    with (
        _folder() as folder,
        futures.ThreadPoolExecutor(FLAGS.at_once or count_processors()) as pool,
    ):
        needed = {_undisturbed(trial.case) for trial in [*trials, *ray_trials]}
        expected = dict(zip(needed, pool.map(lambda case: _run(case, folder), needed)))

        def make(trial: Trial, nodes: Nodes | None = None) -> Trial:
            place = folder / f"trial{trial.number}"
            try:
                trial.make(place, expected[_undisturbed(trial.case)], FLAGS.seed, nodes)
                shutil.rmtree(place)
            except Fault as fault:
                trial.complaint = f"{fault}\n(kept in {place})"
            except Exception:
                trial.complaint = f"{traceback.format_exc()}\n(kept in {place})"
            print(trial.line(), flush=True)
            return trial

        try:
            waiting = [pool.submit(make, trial) for trial in trials]
            if ray_trials:
                # They share nodes, so one at a time.
                with ray_nodes(0, 1, 1) as nodes:
                    for trial in ray_trials:
                        make(trial, nodes)
            futures.wait(waiting)
        except BaseException:  # Such as Ctrl-C.
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
        trials += ray_trials
        has_failed = any(trial.complaint for trial in trials)
    kinds = collections.Counter(_kind(done) for trial in trials for done in trial.done)
    report = {
        "faults": sum(count for kind, count in kinds.items() if not kind.startswith("nothing")),
        "runs": len(trials),
        "failed": [trial.number for trial in trials if trial.complaint],
        "seconds": round(time.monotonic() - begun),
        "cases": dict(collections.Counter(trial.case.name for trial in trials).most_common()),
        "kinds": dict(kinds.most_common()),
        "ray": has_ray,
    }
    print(json.dumps(report))
    return int(has_failed)


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    """A folder for runs; what has failed stays there."""
    folder = pathlib.Path(FLAGS.folder or tempfile.mkdtemp(prefix="soak_")).absolute()
    folder.mkdir(exist_ok=True, parents=True)
    try:
        yield folder
    finally:
        if not FLAGS.folder and not any(folder.glob("trial*")):
            shutil.rmtree(folder)


def _undisturbed(case: Case) -> Case:
    """Returns the case whose outcome it must have: on Ray, that of one process."""
    return next(one for one in CASES if one.name == case.name.replace(", ray", ""))


def _run(case: Case, folder: pathlib.Path) -> dict[str, object]:
    run = folder / "undisturbed" / case.name.replace(", ", "_")
    status, errors = Session(case, run / "run").end()
    if status != 0:
        raise RuntimeError(f"{case.name}: undisturbed, and ends with status {status}:\n{errors}")
    return outcome(run / "run")


def _kind(done: str) -> str:
    """Returns what was done without when and where."""
    what = done.partition(" after ")[0].partition(", refused")[0]
    return re.sub(r"round_\d+", "round", what)


if __name__ == "__main__":
    FLAGS(sys.argv)
    sys.exit(main())
