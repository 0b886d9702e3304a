"""What an evaluation has found of each client, and of them all."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.errors import counted
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import lower_is_better, meaning

if TYPE_CHECKING:  # Tasks read their flags before TensorFlow is imported.
    from fedpersonal.model.metrics import Metric


@dataclasses.dataclass(frozen=True, eq=False)
class ClientResults:
    """Sums over each client's query set; clients in the order of the data set evaluated.

    Attributes:
        client_ids: (num_clients,) names.
        num_examples: float64 (num_clients,): examples predicted.
        before: Metric name, and `loss`, to float64 (num_clients, 2), the sums of values and of
            weights, before personalisation; None where that was not asked for.
        after: The same after it.
        predictions: (num_clients, longest query set, ...) after it, padded; None where packing is
            `pooled`, which sums them up at once unless asked for them.
        metrics: The metrics, for their finalizers.
        guess: What the model must beat: metric's name to float64 (num_clients,) of a guess on the
            same examples; none where none was given.
    """

    client_ids: np.ndarray
    num_examples: np.ndarray
    before: Mapping[str, np.ndarray] | None
    after: Mapping[str, np.ndarray]
    predictions: np.ndarray | None
    metrics: tuple[Metric, ...]
    guess: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        known, beside = self.num_examples > 0, {"before": self.overall_before()}
        beside["mean client's guess"] = {n: v[known].mean() for n, v in self.guess.items()}
        figures = []
        for name, value in self.overall().items():
            others = [f"{what}: {of[name]:.4g}" for what, of in beside.items() if name in of]
            figures.append(f"{name} {value:.4g}" + (f" ({'; '.join(others)})" if others else ""))
        clients = counted(len(self.client_ids), "clients")
        examples = f"{self.num_examples.sum():,.0f} examples"
        return f"<ClientResults: {clients}, {examples}: {', '.join(figures) or 'nothing'}>"

    def some(self, chosen: np.ndarray) -> ClientResults:
        """Returns the results of some clients, bool (num_clients,)."""

        def part(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: pairs[chosen] for name, pairs in sums.items()}

        return dataclasses.replace(
            self,
            client_ids=self.client_ids[chosen],
            num_examples=self.num_examples[chosen],
            before=None if self.before is None else part(self.before),
            after=part(self.after),
            predictions=None if self.predictions is None else self.predictions[chosen],
            guess={name: values[chosen] for name, values in self.guess.items()},
        )

    def _repr_html_(self) -> str:
        """Returns the mean client's metrics as a table, with the guess, as notebooks show it."""
        columns, known = self.per_client(), self.num_examples > 0
        stages = {"before": self.before, "after": self.after, "guess": self.guess}
        rows = []
        for name in self.after:
            of = {
                stage: self.guess[name] if stage == "guess" else columns[f"{name}_{stage}"]
                for stage, values in stages.items()
                if name in (values or {})
            }
            finite = known & np.all([np.isfinite(values) for values in of.values()], axis=0)
            means = {n: f"{v[finite].mean():.4g}" for n, v in of.items() if finite.any()}
            better = {True: " ↓", False: " ↑", None: ""}[lower_is_better(name)]
            cells = "".join(f"<td>{means.get(stage, '–')}</td>" for stage in stages)
            title = html.escape(meaning(name) or "")
            rows.append(f'<tr><th title="{title}">{html.escape(name)}{better}</th>{cells}</tr>')
        head = "".join(f"<th>{stage}</th>" for stage in stages)
        told = f"The mean of {known.sum():,} clients, before and after personalisation"
        return (
            f"<table><caption>{told}; ↓: lower is better</caption><thead><tr><th></th>{head}</tr>"
            f"</thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def replace(self, places: np.ndarray, others: ClientResults) -> ClientResults:
        """Returns these results with others after personalisation, of the clients at `places`."""
        after = {name: sums.copy() for name, sums in self.after.items()}
        for name, sums in others.after.items():
            after[name][places] = sums
        predictions = self.predictions
        if predictions is not None and others.predictions is not None:
            # Each is as wide as its longest query set, or wider.
            width = min(predictions.shape[1], others.predictions.shape[1])
            predictions = predictions.copy()
            predictions[places, :width] = others.predictions[:, :width]
        return dataclasses.replace(self, after=after, predictions=predictions)

    def overall(self) -> dict[str, float]:
        """Returns the metrics over all examples of all clients, after personalisation.

        A metric in which nobody counts is left out: it has no value, while NaN is divergence.
        """
        return self._overall(self.after)

    def overall_before(self) -> dict[str, float]:
        """Returns the same before personalisation; nothing where that was not asked for."""
        return {} if self.before is None else self._overall(self.before)

    def _overall(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        from fedpersonal.model.metrics import finalize

        totals = {name: pairs.sum(0) for name, pairs in sums.items()}
        counting = {name: pair for name, pair in totals.items() if pair[1]}
        values = finalize(self.metrics, counting)
        return {name: float(value) for name, value in sorted(values.items())}

    def per_client(self) -> dict[str, np.ndarray]:
        """Returns columns, a row a client: id, examples, each metric before and after."""
        from fedpersonal.model.metrics import finalize

        columns = {"client": self.client_ids, "num_examples": self.num_examples.astype(np.int64)}
        for stage, sums in (("before", self.before or {}), ("after", self.after)):
            for name, values in finalize(self.metrics, sums).items():
                columns[f"{name}_{stage}"] = values
        return columns

    def num_clients_of(self) -> dict[str, int]:
        """Returns how many clients count in each metric: those with weight in it."""
        return {name: int((pairs[:, 1] > 0).sum()) for name, pairs in self.after.items()}

    def distribution(self) -> dict[str, Any]:
        """Returns percentiles over clients of each metric, and the share of clients hurt.

        Percentiles are of those who count in a metric; there are none where nobody does. A client
        is hurt when its mean loss is higher after personalisation than before, or is no number any
        more. Where nothing was predicted before, or nobody has examples, that share is None.
        """
        columns = self.per_client()
        known = self.num_examples > 0
        spread: dict[str, dict[str, float]] = {}
        for name in self.after:
            values = columns[f"{name}_after"][known]
            values = values[~np.isnan(values)]
            if not values.size:
                continue
            values = np.percentile(values, PERCENTILES)
            spread[name] = {f"p{p}": float(value) for p, value in zip(PERCENTILES, values)}
        if self.before is not None:
            known &= np.isfinite(columns["loss_before"])
        if self.before is None or not known.any():
            return {"percentiles": spread, "share_hurt": None}
        hurt = ~(columns["loss_after"][known] <= columns["loss_before"][known])
        return {"percentiles": spread, "share_hurt": float(hurt.mean())}


def over_draws(results: ClientResults, draws: Iterable[np.ndarray]) -> dict[str, dict[str, float]]:
    """Returns each metric's mean and standard deviation over draws of clients.

    Args:
        results: Of all clients.
        draws: Each draw's clients by their places, int64, each once.

    Returns:
        Metric name to `mean` and `sd`, after personalisation; a draw's metric is over all examples
        of its clients. A draw in which nobody counts in a metric is none of that metric's.
    """
    of_draws = []
    for clients in draws:
        chosen = np.zeros(len(results.num_examples), bool)
        chosen[clients] = True
        of_draws.append(results.some(chosen).overall())
    values: dict[str, list[float]] = {}
    for metrics in of_draws:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {n: {"mean": float(np.mean(v)), "sd": float(np.std(v))} for n, v in values.items()}
