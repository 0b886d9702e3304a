"""Results of an evaluation, for each client and over all clients."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.errors import with_count
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import lower_is_better, meaning
from fedpersonal.former import FormerAttribute, renamed_arguments

if TYPE_CHECKING:  # Tasks read their flags before TensorFlow is imported.
    from fedpersonal.model.metrics import Metric


@dataclasses.dataclass(frozen=True, eq=False)
class ClientResults:
    """Sums over each client's query set; clients in the order of the data set evaluated.

    Attributes:
        client_ids: (num_clients,) names.
        num_examples: float64 (num_clients,): examples predicted.
        before: Metric name, and `loss`, to float64 (num_clients, 2), the sums of values and of
            weights before personalisation; None where that was not evaluated.
        after: The same after personalisation.
        predictions: (num_clients, longest query set, ...) after personalisation, padded; None with
            `pooled` packing, which returns them only on request.
        metrics: The metrics, for their finalizers.
        baseline: Metric's name to float64 (num_clients,), the values of a baseline on the same
            examples; empty without a baseline.
    """

    client_ids: np.ndarray
    num_examples: np.ndarray
    before: Mapping[str, np.ndarray] | None
    after: Mapping[str, np.ndarray]
    predictions: np.ndarray | None
    metrics: tuple[Metric, ...]
    baseline: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    guess = FormerAttribute("baseline")
    some = FormerAttribute("select_clients")

    def __repr__(self) -> str:
        has_examples, references = self.num_examples > 0, {"before": self.overall_before()}
        references["baseline, mean over clients"] = {
            name: values[has_examples].mean() for name, values in self.baseline.items()
        }
        figures = []
        for name, value in self.overall().items():
            notes = [f"{what}: {v[name]:.4g}" for what, v in references.items() if name in v]
            figures.append(f"{name} {value:.4g}" + (f" ({'; '.join(notes)})" if notes else ""))
        clients = with_count(len(self.client_ids), "clients")
        examples = f"{self.num_examples.sum():,.0f} examples"
        return f"<ClientResults: {clients}, {examples}: {', '.join(figures) or 'nothing'}>"

    def select_clients(self, chosen: np.ndarray) -> ClientResults:
        """Returns the results of the clients that a mask, bool (num_clients,), selects."""

        def part(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: pairs[chosen] for name, pairs in sums.items()}

        return dataclasses.replace(
            self,
            client_ids=self.client_ids[chosen],
            num_examples=self.num_examples[chosen],
            before=None if self.before is None else part(self.before),
            after=part(self.after),
            predictions=None if self.predictions is None else self.predictions[chosen],
            baseline={name: values[chosen] for name, values in self.baseline.items()},
        )

    def _repr_html_(self) -> str:
        """Returns a table of metrics, means over clients, and of the baseline for notebooks."""
        columns, has_examples = self.per_client(), self.num_examples > 0
        stages = {"before": self.before, "after": self.after, "baseline": self.baseline}
        rows = []
        for name in self.after:
            by_stage = {
                stage: self.baseline[name] if stage == "baseline" else columns[f"{name}_{stage}"]
                for stage, values in stages.items()
                if name in (values or {})
            }
            is_finite = np.all([np.isfinite(values) for values in by_stage.values()], axis=0)
            finite = has_examples & is_finite
            means = {n: f"{v[finite].mean():.4g}" for n, v in by_stage.items() if finite.any()}
            better = {True: " ↓", False: " ↑", None: ""}[lower_is_better(name)]
            cells = "".join(f"<td>{means.get(stage, '–')}</td>" for stage in stages)
            title = html.escape(meaning(name) or "")
            rows.append(f'<tr><th title="{title}">{html.escape(name)}{better}</th>{cells}</tr>')
        head = "".join(f"<th>{stage}</th>" for stage in stages)
        num_clients = f"{has_examples.sum():,}"
        caption = f"Mean over {num_clients} clients, before and after personalisation"
        return (
            f"<table><caption>{caption}; ↓: lower is better</caption>"
            f"<thead><tr><th>metric</th>{head}</tr>"
            f"</thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def replace(self, places: np.ndarray, others: ClientResults) -> ClientResults:
        """Returns these results with `others` after personalisation for the clients at `places`."""
        after = {name: sums.copy() for name, sums in self.after.items()}
        for name, sums in others.after.items():
            after[name][places] = sums
        predictions = self.predictions
        if predictions is not None and others.predictions is not None:
            # Both are at least as wide as their longest query sets.
            width = min(predictions.shape[1], others.predictions.shape[1])
            predictions = predictions.copy()
            predictions[places, :width] = others.predictions[:, :width]
        return dataclasses.replace(self, after=after, predictions=predictions)

    def overall(self) -> dict[str, float]:
        """Returns the metrics pooled over the examples of all clients, after personalisation.

        A metric without weight in any client is left out: it has no value, while NaN is divergence.
        """
        return self._overall(self.after)

    def overall_before(self) -> dict[str, float]:
        """Returns `overall` before personalisation; empty where that was not evaluated."""
        return {} if self.before is None else self._overall(self.before)

    def _overall(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        from fedpersonal.model.metrics import finalize

        totals = {name: pairs.sum(0) for name, pairs in sums.items()}
        weighted = {name: pair for name, pair in totals.items() if pair[1]}
        values = finalize(self.metrics, weighted)
        return {name: float(value) for name, value in sorted(values.items())}

    def per_client(self) -> dict[str, np.ndarray]:
        """Returns columns with a row for each client: id, examples, metrics before and after."""
        from fedpersonal.model.metrics import finalize

        columns = {"client": self.client_ids, "num_examples": self.num_examples.astype(np.int64)}
        for stage, sums in (("before", self.before or {}), ("after", self.after)):
            for name, values in finalize(self.metrics, sums).items():
                columns[f"{name}_{stage}"] = values
        return columns

    def num_clients_of(self) -> dict[str, int]:
        """Returns the number of clients with weight in each metric."""
        return {name: int((pairs[:, 1] > 0).sum()) for name, pairs in self.after.items()}

    def distribution(self) -> dict[str, Any]:
        """Returns each metric's percentiles over clients, and the share of worse clients.

        Percentiles are over clients with weight in a metric, and left out if there are none. A
        client is worse if its mean loss is higher after personalisation than before, or no longer
        finite. The share is None without predictions before, or without examples.
        """
        columns = self.per_client()
        has_examples = self.num_examples > 0
        spread: dict[str, dict[str, float]] = {}
        for name in self.after:
            values = columns[f"{name}_after"][has_examples]
            values = values[~np.isnan(values)]
            if not values.size:
                continue
            values = np.percentile(values, PERCENTILES)
            spread[name] = {f"p{p}": float(value) for p, value in zip(PERCENTILES, values)}
        if self.before is not None:
            has_examples &= np.isfinite(columns["loss_before"])
        if self.before is None or not has_examples.any():
            return {"percentiles": spread, "share_hurt": None}
        is_worse = ~(columns["loss_after"][has_examples] <= columns["loss_before"][has_examples])
        return {"percentiles": spread, "share_hurt": float(is_worse.mean())}


# Callers of the former version name the argument `guess`.
ClientResults.__init__ = renamed_arguments(guess="baseline")(  # type: ignore[method-assign]
    ClientResults.__init__
)


def spread_over_samples(
    results: ClientResults, samples: Iterable[np.ndarray]
) -> dict[str, dict[str, float]]:
    """Returns each metric's mean and standard deviation over samples of clients.

    Args:
        results: Results of all clients.
        samples: The places of each sample's clients, int64, each place once.

    Returns:
        Metric name to `mean` and `sd`, after personalisation. A sample's metric is pooled over the
        examples of its clients. A sample without weight in a metric is left out of that metric.
    """
    sample_metrics = []
    for clients in samples:
        chosen = np.zeros(len(results.num_examples), bool)
        chosen[clients] = True
        sample_metrics.append(results.select_clients(chosen).overall())
    values: dict[str, list[float]] = {}
    for metrics in sample_metrics:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {n: {"mean": float(np.mean(v)), "sd": float(np.std(v))} for n, v in values.items()}
