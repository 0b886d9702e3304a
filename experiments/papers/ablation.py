"""Each layer local in turn: what seen and unseen clients gain, and what it saves to send.

All layers move together, as in FedSim (Pillutla et al., "Federated Learning with Partial Model
Personalization", ICML 2022); local ones are kept from round to round, or rebuilt in each.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.papers.jobs import Job, complete
from experiments.papers.table import Cell, Column, Line, Report, Table, figure
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import find_metrics
from fedpersonal.options import Value
from fedpersonal.tasks.task import Built, Task

KEPT, REBUILT = "kept", "rebuilt"
DOWN, UP, OWN = "kB down", "kB up", "local kB"
_ABOUT = (
    "Nothing local is federated averaging. Otherwise all layers move together, and local ones are "
    "kept or rebuilt. Seen clients have trained; unseen ones rebuild what they lack. Bytes are of "
    "a client in a round."
)

_SHARED: Mapping[str, Value] = {"method": "fed_avg"}


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What is asked.

    Attributes:
        task: The task.
        given: Its options that all runs share.
        sets: What is local in turn; None for each layer by itself.
        seeds: The seeds.
        output_dir: Receives the runs.
    """

    task: Task
    given: Mapping[str, Value]
    sets: Sequence[tuple[str, ...]] | None
    seeds: Sequence[int]
    output_dir: pathlib.Path

    def run(self) -> Report:
        """Runs what is missing, and returns the table."""
        task, source = self.task, self.task.read(self.task.options(**self.given))
        print(source.summary(), flush=True)
        data = task.split(source, task.options(**self.given).for_split)
        rows, own, refused = self._rows(task.sizes(data))
        every = [job for jobs in rows.values() for of_whom in jobs.values() for job in of_whom]
        # Each seed draws users of its own.
        complete(every, None if self.given.get("num_users") else source.describe())
        metric = find_metrics(task.metrics, every[0].summary["test"])[0]
        tested = "seen" if data.test.seen else "unseen"
        table = Table.of("ablation", *_blocks(metric, tested, rows, own), caption=_ABOUT)
        heading = f"# Which layers are local? {task.name}, {source.name}"
        notes = [f"Left out: {line}" for line in refused]
        facts = {"data": source.describe(), "options": dict(self.given)}
        return Report("ablation", self.seeds, [heading, table, *notes], facts=facts)

    def _rows(
        self, sizes: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, list[Job]]], dict[str, int], list[str]]:
        """Returns jobs by row and whom they evaluate; rows' local bytes; what is refused."""
        task = self.task
        declared = task.options.declarations()
        evaluated = declared["evaluate_on"].rule.choices if "evaluate_on" in declared else ("",)
        everything = task.build(sizes, self._options(_SHARED)).layers.everything
        rows: dict[str, dict[str, list[Job]]] = {}
        own: dict[str, int] = {}
        refused = []
        asked: dict[str, Mapping[str, Value]] = {"nothing": _SHARED}
        for layers in self.sets or [(layer,) for layer in everything]:
            for state in (KEPT, REBUILT):
                asked[f"{', '.join(layers)}: {state}"] = _local(layers, state)
        for name, values in asked.items():
            try:
                model = _checked(task.build(sizes, self._options(values))).model
            except (UserError, ValueError) as error:
                refused.append(f"{name} ({error})")
                continue
            own[name] = sum(4 * variable.size for variable in model.local_variables)
            rows[name] = {whom: self._jobs(name, values, whom) for whom in evaluated}
        return rows, own, refused

    def _options(self, values: Mapping[str, Value]) -> Any:
        return self.task.settle(self.task.options(**{**self.given, **values}))

    def _jobs(self, name: str, values: Mapping[str, Value], whom: str) -> list[Job]:
        """Returns a job a seed."""
        folder = self.output_dir / "_".join(
            word for word in [*name.replace(":", ",").replace("/", ".").split(", "), whom] if word
        )
        asked = {**self.given, **values, **({"evaluate_on": whom} if whom else {})}
        return [
            Job(
                f"{name}{f', {whom} clients' if whom else ''}, seed {seed}",
                folder / f"seed_{seed}",
                self.task,
                {**asked, "seed": seed},
            )
            for seed in self.seeds
        ]


def _blocks(
    metric: str,
    tested: str,
    rows: Mapping[str, Mapping[str, Sequence[Job]]],
    own: Mapping[str, int],
) -> Iterator[tuple[list[Line], list[Column]]]:
    """Yields each row's figures, of the clients it tests, and bytes; then what is a guess.

    A task that has no option for whom it tests tests the clients `tested`: `seen` or `unseen`.
    """
    for name, by_whom in rows.items():
        for whom, jobs in by_whom.items():
            yield [Line(name, jobs)], _figures(metric, whom or tested, jobs[0])
        sizes = [
            figure(DOWN, "broadcast_bytes_per_client", scale=1e-3),
            figure(UP, "aggregated_bytes_per_client", scale=1e-3),
            Column(OWN, lambda line: Cell((own[line.name] / 1000,))),
        ]
        yield [Line(name, next(iter(by_whom.values())))], sizes
    for whom, jobs in next(iter(rows.values())).items():
        for guess, found in jobs[0].summary["test"].get("guesses", {}).items():
            if metric in found:
                line = Line(f"Guess: {guess}", jobs)
                yield [line], _figures(metric, whom or tested, jobs[0], "guesses", guess)


def _figures(metric: str, tested: str, job: Job, *path: str) -> list[Column]:
    """Returns a metric's columns: for the clients tested, and for unseen ones if they are, too."""
    columns = [figure(f"{metric}, {tested}", "test", *path, metric, digits=4)]
    if "unseen" in job.summary:
        columns.append(figure(f"{metric}, unseen", "unseen", *path, metric, digits=4))
    return columns


def _checked(built: Built) -> Built:
    """Returns what a task has built, if its exact reconstruction, where it has one, can be."""
    from fedpersonal.client.ridge import check_linear
    from fedpersonal.methods.phases import RidgePhase

    evaluator = built.evaluator
    if any(isinstance(phase, RidgePhase) for phase in evaluator.rebuilding):
        check_linear(evaluator.model.base)
    return built


def _local(layers: tuple[str, ...], state: str) -> dict[str, Value]:
    return {"method": "fed_sim", "local_layers": layers, "local_state": state}


def layer_sets(text: str | None) -> list[tuple[str, ...]] | None:
    """Returns the sets of layers that a text like `a,b;c` names, or None for None.

    Raises:
        UserError: If a set has no layer.
    """
    if text is None:
        return None
    sets = [
        tuple(name.strip() for name in one.split(",") if name.strip()) for one in text.split(";")
    ]
    if not all(sets):
        raise UserError(f"--layer_sets={text}: a set has no layer; write it as a,b;c.")
    return list(dict.fromkeys(sets))
