"""Makes each layer local in turn: metrics of seen and unseen clients, and bytes to send.

All layers move together, as in FedSim (Pillutla et al., "Federated Learning with Partial Model
Personalization", ICML 2022); local ones are kept from round to round, or rebuilt in each.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import find_metrics
from fedpersonal.options import Value
from fedpersonal.suite.papers.jobs import Job, complete
from fedpersonal.suite.papers.table import Cell, Column, Line, Report, Table, figure
from fedpersonal.suite.tasks.task import Task, TaskBuild

KEPT, REBUILT = "kept", "rebuilt"
DOWN, UP, LOCAL = "kB down", "kB up", "local kB"
_ABOUT = (
    "Without local layers, the method is federated averaging. Otherwise all layers are trained "
    "together, and local ones are kept or rebuilt. Seen clients have trained; unseen clients "
    "rebuild their local variables. Bytes are per client and round."
)

_SHARED: Mapping[str, Value] = {"method": "fed_avg"}


@dataclasses.dataclass(frozen=True)
class Ablation:
    """An ablation over sets of local layers.

    Attributes:
        task: The task.
        options: Options of the task that all runs share.
        sets: The sets of layers to make local in turn; None for each single layer.
        seeds: The seeds.
        output_dir: The folder of the runs.
    """

    task: Task
    options: Mapping[str, Value]
    sets: Sequence[tuple[str, ...]] | None
    seeds: Sequence[int]
    output_dir: pathlib.Path

    def run(self) -> Report:
        """Runs the missing runs, and returns the table."""
        task, source = self.task, self.task.read(self.task.options(**self.options))
        print(source.summary(), flush=True)
        data = task.split(source, task.options(**self.options).for_split)
        rows, local_bytes, refused = self._rows(task.sizes(data))
        every = [job for by_kind in rows.values() for jobs in by_kind.values() for job in jobs]
        # With num_users, each seed samples other users.
        complete(every, None if self.options.get("num_users") else source.describe())
        metric = find_metrics(task.metrics, every[0].summary["test"])[0]
        tested = "seen" if data.test.seen else "unseen"
        table = Table.of("ablation", *_blocks(metric, tested, rows, local_bytes), caption=_ABOUT)
        heading = f"# Which layers are local? {task.name}, {source.name}"
        notes = [f"Left out: {line}" for line in refused]
        facts = {"data": source.describe(), "options": dict(self.options)}
        return Report("ablation", self.seeds, [heading, table, *notes], facts=facts)

    def _rows(
        self, sizes: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, list[Job]]], dict[str, int], list[str]]:
        """Returns jobs by row and kind of test clients; local bytes by row; refused rows."""
        task = self.task
        declared = task.options.declarations()
        evaluated = declared["evaluate_on"].rule.choices if "evaluate_on" in declared else ("",)
        everything = task.build(sizes, self._options(_SHARED)).layers.everything
        rows: dict[str, dict[str, list[Job]]] = {}
        local_bytes: dict[str, int] = {}
        refused = []
        options: dict[str, Mapping[str, Value]] = {"nothing": _SHARED}
        for layers in self.sets or [(layer,) for layer in everything]:
            for state in (KEPT, REBUILT):
                options[f"{', '.join(layers)}: {state}"] = _local(layers, state)
        for name, values in options.items():
            try:
                model = _checked(task.build(sizes, self._options(values))).model
            except (UserError, ValueError) as error:
                refused.append(f"{name} ({error})")
                continue
            local_bytes[name] = sum(4 * variable.size for variable in model.local_variables)
            rows[name] = {kind: self._jobs(name, values, kind) for kind in evaluated}
        return rows, local_bytes, refused

    def _options(self, values: Mapping[str, Value]) -> Any:
        return self.task.with_defaults(self.task.options(**{**self.options, **values}))

    def _jobs(self, name: str, values: Mapping[str, Value], kind: str) -> list[Job]:
        """Returns the jobs of a row on a kind of test clients, one per seed."""
        folder = self.output_dir / "_".join(
            word for word in [*name.replace(":", ",").replace("/", ".").split(", "), kind] if word
        )
        options = {**self.options, **values, **({"evaluate_on": kind} if kind else {})}
        return [
            Job(
                f"{name}{f', {kind} clients' if kind else ''}, seed {seed}",
                folder / f"seed_{seed}",
                self.task,
                {**options, "seed": seed},
            )
            for seed in self.seeds
        ]


def _blocks(
    metric: str,
    tested: str,
    rows: Mapping[str, Mapping[str, Sequence[Job]]],
    local_bytes: Mapping[str, int],
) -> Iterator[tuple[list[Line], list[Column]]]:
    """Yields the metrics of each row and its bytes; then the metrics of baselines.

    A task without the option `evaluate_on` tests the clients `tested`: `seen` or `unseen`.
    """
    for name, by_kind in rows.items():
        for kind, jobs in by_kind.items():
            yield [Line(name, jobs)], _figures(metric, kind or tested, jobs[0])
        sizes = [
            figure(DOWN, "broadcast_bytes_per_client", scale=1e-3),
            figure(UP, "aggregated_bytes_per_client", scale=1e-3),
            Column(LOCAL, lambda line: Cell((local_bytes[line.name] / 1000,))),
        ]
        yield [Line(name, next(iter(by_kind.values())))], sizes
    for kind, jobs in next(iter(rows.values())).items():
        for baseline, metrics in jobs[0].summary["test"].get("guesses", {}).items():
            if metric in metrics:
                line = Line(f"Baseline: {baseline}", jobs)
                yield [line], _figures(metric, kind or tested, jobs[0], "guesses", baseline)


def _figures(metric: str, tested: str, job: Job, *path: str) -> list[Column]:
    """Returns the columns of a metric for the tested clients and, if evaluated, unseen clients."""
    columns = [figure(f"{metric}, {tested}", "test", *path, metric, digits=4)]
    if "unseen" in job.summary:
        columns.append(figure(f"{metric}, unseen", "unseen", *path, metric, digits=4))
    return columns


def _checked(built: TaskBuild) -> TaskBuild:
    """Returns a task's model and algorithm after checking that the model allows ridge phases."""
    from fedpersonal.client.ridge import check_linear
    from fedpersonal.methods.phases import RidgePhase

    evaluator = built.evaluator
    if any(isinstance(phase, RidgePhase) for phase in evaluator.rebuilding):
        check_linear(evaluator.model.base)
    return built


def _local(layers: tuple[str, ...], state: str) -> dict[str, Value]:
    return {"method": "fed_sim", "local_layers": layers, "local_state": state}


def layer_sets(text: str | None) -> list[tuple[str, ...]] | None:
    """Returns the sets of layers in a text such as `a,b;c`; None for None.

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
