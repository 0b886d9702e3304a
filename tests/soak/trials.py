"""A run, what is done to it, and how it is compared with an undisturbed one."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import shutil
from collections.abc import Collection, Mapping, Sequence

from examples.ray_nodes import Nodes
from tests.soak import faults
from tests.soak.runs import Case, Fault, Session, differences, outcome

_MOST_FAULTS = 4


@dataclasses.dataclass
class Trial:
    """A run, and what is done to it.

    Attributes:
        number: Its number, which seeds it.
        case: The run.
        faults: How many faults there are.
        done: What has been done.
        complaint: How it failed, or None.
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
        options = [f"--ray_address={nodes.address}"] if nodes else []
        folder.mkdir()
        for number in range(self.faults):
            if number and run.exists() and draw.random() < 0.45:
                copied = folder / "copied"
                shutil.copytree(run, copied)
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
                try:
                    what, statuses = faults.strike(session, draw, more)
                    self.done.append(what)
                    self._end(session, statuses)
                finally:
                    session.kill()
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
        """Returns all of it in a line, or more if it failed."""
        end = f"FAILED: {self.complaint}" if self.complaint else "as undisturbed"
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
