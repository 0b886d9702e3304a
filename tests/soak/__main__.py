"""Hurts runs of every task at random and compares them with runs that nobody disturbed.

    python -m tests.soak --faults=200

A run is begun, hurt, gone on with, and hurt again: by signals, killed and stopped processes, a
full disk, a second process, damaged files; where Ray is installed, on its nodes, too. In the end
each must have the results of an undisturbed run: to the last bit, and in TFF's worker, where bits
differ from run to run, nearly. On the way it may not show a
traceback, leave a process or a file behind, or change anything in a folder that it refuses.

Prints a line a run, and a JSON object of all. Exits with status 1 if a run did not bear it; its
folder is kept.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures

from absl import flags

from examples.ray_nodes import Nodes, ray_nodes
from fedpersonal import runtime
from tests.soak import faults
from tests.soak.runs import CASES, ON_RAY, Case, Fault, Session, differences, end_all, outcome

FLAGS = flags.FLAGS

flags.DEFINE_integer("faults", 200, "Faults in all.", lower_bound=1)
flags.DEFINE_integer("ray_faults", 12, "How many of them on Ray's nodes.", lower_bound=0)
flags.DEFINE_integer("seed", 0, "Draws runs and faults.")
flags.DEFINE_integer("at_once", None, "Runs at the same time. [default: one a processor]")
flags.DEFINE_integer("only", None, "Makes the trial of this number only.")
flags.DEFINE_string("folder", None, "Where runs are kept. [default: one that is deleted]")

_MOST_FAULTS = 4


@dataclasses.dataclass
class Trial:
    """A run, and what is done to it.

    Attributes:
        number: Its number, which seeds it.
        case: The run.
        faults: How many faults there are.
        done: What has been done.
        complaint: What it did not bear.
    """

    number: int
    case: Case
    faults: int
    done: list[str] = dataclasses.field(default_factory=list)
    complaint: str | None = None

    def make(
        self,
        folder: pathlib.Path,
        expected: Mapping[str, object],
        seed: int,
        nodes: Nodes | None = None,
    ) -> None:
        """Hurts the run as often as is due, lets it end, and compares.

        Args:
            folder: For the run, and what belongs to it.
            expected: The undisturbed outcome.
            seed: Draws the faults, together with the trial's number.
            nodes: Ray's nodes, if it runs there.
        """
        draw, run = random.Random(f"{seed} {self.number}"), folder / "run"
        environment = nodes.environment if nodes else None
        more = faults.on_ray(nodes) if nodes else []
        options = [f"--ray_address={nodes.address}", "--ray_node_seconds=60"] if nodes else []
        folder.mkdir()
        for number in range(self.faults):
            if number and run.exists() and draw.random() < 0.45:
                copied = folder / "copied"
                faults.copy(run, copied)
                self.done.append(faults.damage(run, draw))
                before = faults.files_of(run)
                session = Session(self.case, run, *options, environment=environment)
                status, errors = self._end(session, [0, 2])
                if status == 2:
                    if str(run) not in errors:
                        raise Fault(f"{self.done[-1]}: no file is named: {errors}")
                    if faults.files_of(run) != before:
                        raise Fault(f"{self.done[-1]}: refused, but files have changed")
                    self.done[-1] += ", refused"
                    faults.put_back(copied, run)
                else:
                    shutil.rmtree(copied)
            else:
                session = Session(self.case, run, *options, environment=environment)
                with contextlib.ExitStack() as stack:
                    stack.callback(session.kill)
                    what, statuses = faults.strike(session, draw, more)
                    self.done.append(what)
                    self._end(session, statuses)
        session = Session(self.case, run, *options, environment=environment)
        self._end(session, [0])
        is_exact = self.case.runtime != "worker"
        if differ := differences(outcome(run), expected, is_exact=is_exact):
            raise Fault(f"{', '.join(differ)}: not as in the undisturbed run")

    def _end(self, session: Session, statuses: Collection[int]) -> tuple[int, str]:
        status, errors = session.end()
        if status not in statuses:
            raise Fault(f"ends with status {status}, not one of {[*statuses]}:\n{errors[-3000:]}")
        return status, errors

    def line(self) -> str:
        """Returns all of it in a line, or more if it did not bear it."""
        end = f"NOT BORNE: {self.complaint}" if self.complaint else "as undisturbed"
        return f"{self.number} {self.case.name}: {'; '.join(self.done)}: {end}"


def draw_trials(seed: int, count: int, cases: Sequence[Case], first: int = 0) -> list[Trial]:
    """Returns runs with so many faults in all."""
    draw = random.Random(f"{seed} {first}")
    trials: list[Trial] = []
    weights = [case.weight for case in cases]
    while count > 0:
        (case,) = draw.choices(cases, weights)
        some = min(count, draw.randint(1, _MOST_FAULTS))
        trials.append(Trial(first + len(trials), case, some))
        count -= some
    return trials


def main() -> int:
    """Makes all trials; returns the exit status."""
    runtime.start()  # SIGTERM becomes an exit.
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
        futures.ThreadPoolExecutor(FLAGS.at_once or len(os.sched_getaffinity(0))) as pool,
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
        is_borne = not any(trial.complaint for trial in trials)
    kinds = collections.Counter(_kind(done) for trial in trials for done in trial.done)
    report = {
        "faults": sum(kinds.values()),
        "runs": len(trials),
        "not_borne": [trial.number for trial in trials if trial.complaint],
        "seconds": round(time.monotonic() - begun),
        "cases": dict(collections.Counter(trial.case.name for trial in trials).most_common()),
        "kinds": dict(kinds.most_common()),
        "ray": has_ray,
    }
    print(json.dumps(report))
    return int(not is_borne)


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    """A folder for runs; what was not borne stays there."""
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
