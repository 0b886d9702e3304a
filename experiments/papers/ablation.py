"""Each layer local in turn: what seen and unseen clients gain, and what it saves to send.

All layers move together, as in FedSim (Pillutla et al., "Federated Learning with Partial Model
Personalization", ICML 2022); local ones are kept from round to round, or rebuilt in each.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete
from fedpersonal.errors import UserError
from fedpersonal.evaluation.direction import find_metric
from fedpersonal.options import Value
from fedpersonal.tasks.task import Built, Source, Task

KEPT, REBUILT = "kept", "rebuilt"
DOWN, UP, OWN = "kB down", "kB up", "local kB"
_ABOUT = (
    "Nothing local is federated averaging. Otherwise all layers move together, and local ones are "
    "kept or rebuilt. Seen clients have trained; unseen ones rebuild what they lack. Bytes are of "
    "a client in a round."
)

_SHARED: Mapping[str, Value] = {"algorithm": "fed_avg"}


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What is asked.

    Attributes:
        task: The task.
        given: Its options that all runs share.
        sets: What is local in turn; None for each layer by itself.
        seeds: The seeds.
        output_dir: Receives the runs.
        isolated: Whether each run has a process of its own.
    """

    task: Task
    given: Mapping[str, Value]
    sets: Sequence[tuple[str, ...]] | None
    seeds: Sequence[int]
    output_dir: pathlib.Path
    isolated: bool = True

    def run(self) -> Report:
        """Runs what is missing, and returns the table."""
        task, source = self.task, self.task.read(self.task.options(**self.given))
        print(source.summary(), flush=True)
        rows, own, refused = self._rows(source)
        every = [run for runs in rows.values() for of_seed in runs.values() for run in of_seed]
        complete(every, source.describe(), isolated=self.isolated)
        cells: Cells = {name: self._cells(runs, own[name]) for name, runs in rows.items()}
        digits = {
            column: 1 if "kB" in str(column) else 4 for row in cells.values() for column in row
        }
        table = ResultTable("ablation", cells, _ABOUT, digits)
        heading = f"# Which layers are local? {task.name}, {source.name}"
        notes = [f"Left out: {line}" for line in refused]
        facts = {"data": source.describe(), "options": dict(self.given)}
        return Report("ablation", self.seeds, [heading, table, *notes], facts=facts)

    def _rows(
        self, source: Source
    ) -> tuple[dict[str, dict[str, list[Run]]], dict[str, int], list[str]]:
        """Returns runs by row and whom they evaluate; rows' local bytes; what is refused."""
        task = self.task
        declared = task.options.declarations()
        evaluated = declared["evaluate_on"].rule.choices if "evaluate_on" in declared else ("",)
        sizes = task.sizes(task.split(source, task.options(**self.given)))
        everything = task.build(sizes, self._options(_SHARED)).layers.everything
        rows: dict[str, dict[str, list[Run]]] = {}
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
            rows[name] = {whom: self._runs(name, values, whom) for whom in evaluated}
        return rows, own, refused

    def _options(self, values: Mapping[str, Value]) -> Any:
        return self.task.settle(self.task.options(**{**self.given, **values}))

    def _runs(self, name: str, values: Mapping[str, Value], whom: str) -> list[Run]:
        """Returns a run a seed."""
        folder = self.output_dir / "_".join(
            word for word in [*name.replace(":", ",").replace("/", ".").split(", "), whom] if word
        )
        asked = {**self.given, **values, **({"evaluate_on": whom} if whom else {})}
        return [
            Run(
                f"{name}{f', {whom} clients' if whom else ''}, seed {seed}",
                folder / f"seed_{seed}",
                self.task,
                {**asked, "seed": seed},
            )
            for seed in self.seeds
        ]

    def _cells(self, runs: Mapping[str, Sequence[Run]], own: int) -> dict[Column, Cell]:
        """Returns a row's figures: of the clients it tests, and bytes."""
        test = next(iter(runs.values()))[0].summary["test"]
        metric = next(filter(None, (find_metric(name, test) for name in self.task.metrics)))
        cells: dict[Column, Cell] = {}
        for whom, of_whom in runs.items():
            tells_both = "unseen" in of_whom[0].summary
            tested = whom or ("seen" if tells_both else "unseen")
            cells[f"{metric}, {tested}"] = over_seeds(of_whom, "test", metric)
            if tells_both:
                cells[f"{metric}, unseen"] = over_seeds(of_whom, "unseen", metric)
        first = next(iter(runs.values()))
        cells[DOWN] = over_seeds(first, "broadcast_bytes_per_client", scale=1e-3)
        cells[UP] = over_seeds(first, "aggregated_bytes_per_client", scale=1e-3)
        cells[OWN] = Cell((own / 1000,))
        return cells


def _checked(built: Built) -> Built:
    """Returns what a task has built, if its exact reconstruction, where it has one, can be."""
    from fedpersonal.algorithm import RidgePhase
    from fedpersonal.client.ridge import check_linear

    evaluator = built.evaluator
    if any(isinstance(phase, RidgePhase) for phase in evaluator.rebuilding):
        check_linear(evaluator.model.base)
    return built


def _local(layers: tuple[str, ...], state: str) -> dict[str, Value]:
    return {"algorithm": "fed_sim", "local_layers": layers, "local_state": state}


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
