"""A run's clients before and after personalisation: a verdict, a scatter plot and percentiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.baselines import BASELINE_SUFFIX
from fedpersonal.evaluation.client_metrics import lower_is_better
from fedpersonal.evaluation.statistics import (
    MIN_INTERVAL_CLIENTS,
    PairedDifference,
    client_sums,
    paired_bootstrap,
)
from fedpersonal.randomness import Purpose, generator
from fedpersonal.report.run import (
    RunData,
    format_number,
    format_percent,
    format_signed,
    label,
    round_numbers,
    shorten,
)
from fedpersonal.runs.record import ROUND

MOST_DOTS = 6_000
# Most values that a bootstrap resamples: clients times resamples.
_MOST_RESAMPLED = 2 * 10**7


def judge(run: RunData) -> str:
    """Returns the verdict on a run: a sentence on its main metric, mean over clients.

    It compares the metric after personalisation with the stronger of two references: the metric
    before personalisation, and the strongest baseline. Untrained local variables are no reference:
    without a baseline, the sentence then only reports the figures.
    """
    if run.failure is not None:
        return f"The run failed. {run.failure}"
    metric = run.main_metric
    if metric is None:
        return _describe_rounds(run)
    after, before, baseline = run.after(metric), run.before(metric), run.baseline(metric)
    finite = np.ones(len(after), bool)
    for values in (before, baseline and baseline[1]):
        finite &= True if values is None else np.isfinite(values)
    if before is None and baseline is None:
        finite = np.isfinite(after)
    if not (finite & np.isfinite(after)).any():
        return f"No client has a finite {label(metric)}."
    after, before = after[finite], None if before is None else before[finite]
    if baseline is not None:
        return _compare(metric, before, (baseline[0], baseline[1][finite]), after)
    if before is not None and not run.starts_untrained:
        return _compare(metric, before, None, after)
    return _describe_values(metric, before, after)


def share_worse(metric: str, before: np.ndarray, after: np.ndarray) -> float | None:
    """Returns the share of clients whose metric is worse, or not finite, after personalisation.

    Clients without a finite metric before do not count. None if no client counts, or the metric's
    direction is unknown.
    """
    lower, finite = lower_is_better(metric), np.isfinite(before)
    if lower is None or not finite.any():
        return None
    is_not_worse = (after <= before) if lower else (after >= before)
    return float((~is_not_worse | ~np.isfinite(after))[finite].mean())


def _compare(
    metric: str,
    before: np.ndarray | None,
    baseline: tuple[str, np.ndarray] | None,
    after: np.ndarray,
) -> str:
    """Compares a metric after personalisation with that before or a baseline's, the stronger."""
    name, lower, whole = label(metric), lower_is_better(metric), np.isfinite(after)
    averaged = f"{name} (mean over clients)"
    means = {"after": after[whole].mean()}
    if before is not None:
        means["before"] = before[whole].mean()
    by_baseline = False
    if baseline is not None:
        means["baseline"] = baseline[1][whole].mean()
        lead = means["baseline"] - means.get("before", np.nan)
        by_baseline = before is None or lead * (1 if lower else -1) < 0
    reference = baseline[1] if baseline and by_baseline else before
    assert reference is not None
    worse, broken = share_worse(metric, reference, after), int((~whole).sum())
    figures = {stage: format_number(mean) for stage, mean in means.items()}
    adapts = before is not None and not np.array_equal(before, after)
    if baseline and by_baseline:
        stage = f" ({figures['before']} before)" if adapts else ""
        sentence = f"is {figures['after']}{stage}, against {figures['baseline']} for {baseline[0]}"
    else:
        sentence = f"from {figures['before']} to {figures['after']}"
        sentence += f" ({baseline[0]}: {figures['baseline']})" if baseline else ""
    number = f"{len(after):,} test clients"
    if whole.sum() < MIN_INTERVAL_CLIENTS and not broken:
        if len(after) == 1:
            return f"A single test client, too few to judge by: {name} {sentence}."
        return f"{number}, too few to judge by: {averaged} {sentence}."
    result = _bootstrap(after[whole], reference[whole])
    end = ""
    if worse is not None:
        share = format_percent(worse) if worse else "none"
        end = f"; {share} of them are worse after personalisation"
        end = f"; the baseline is better for {share} of them" if by_baseline else end
    interval = _interval(result, format_signed)
    change = f"({format_signed(result.difference)}, {interval}, {number}){end}"
    if broken:
        verb = "" if by_baseline else "changes "
        return (
            f"Personalisation leaves {broken:,} of {number} without a finite {name}; "
            f"for the others, {averaged} {verb}{sentence} {change}."
        )
    is_better = not result.is_within_noise and (result.difference < 0) == lower
    subject = "Personalisation" if adapts else "The model"
    start = f"{subject} changes {averaged} {sentence}"
    if by_baseline:
        verb = "beats" if is_better else "does not beat"
        start = f"{subject} {verb} the baseline: {averaged} {sentence}"
    elif lower is not None and not result.is_within_noise:
        start = f"{subject} {'improves' if is_better else 'worsens'} {averaged} {sentence}"
    noise = ", which is within noise" if result.is_within_noise else ""
    return f"{start}{noise} {change}."


def _describe_values(metric: str, before: np.ndarray | None, after: np.ndarray) -> str:
    """Returns a sentence on the mean of a metric that has no reference."""
    name, whole = label(metric), np.isfinite(after)
    result = _bootstrap(after[whole], np.zeros(whole.sum()))
    number = "one test client" if len(after) == 1 else f"{len(after):,} test clients"
    mean = format_number(result.difference)
    interval = _interval(result, format_number)
    sentence = f"{name} (mean over clients) is {mean} ({interval}, {number})"
    if before is None:
        return f"{sentence}; clients were not evaluated before personalisation."
    if not whole.all():
        sentence += f"; {(~whole).sum():,} of them have none"
    return (
        f"{sentence}. Before personalisation, with untrained local variables, it is "
        f"{format_number(before.mean())}, which is no fair comparison: pass a baseline to "
        "`evaluate`."
    )


def _interval(result: PairedDifference, text: Callable[[float], str]) -> str:
    if not result.has_interval:
        return "too few clients for an interval"
    return f"95 % interval {text(result.low)} to {text(result.high)}"


def _bootstrap(first: np.ndarray, second: np.ndarray) -> PairedDifference:
    # Fewer resamples of a great number of clients, so that pages are written in a short time.
    resamples = min(2_000, max(200, _MOST_RESAMPLED // len(first)))
    return paired_bootstrap(client_sums(first), client_sums(second), resamples=resamples)


def _describe_rounds(run: RunData) -> str:
    """Returns a sentence on the curves of a run that evaluated no clients."""
    names = [n for source in ("eval/", "train/") for n in run.round_metrics if n.startswith(source)]
    if not names:
        return "Nothing was trained, and no client was evaluated."
    source = names[0].partition("/")[0]
    candidates = [n for n in names if n.startswith(source)]
    name = f"{source}/loss" if f"{source}/loss" in candidates else candidates[0]
    values = run.rounds.set_index("round")[name].dropna()
    kind = {"eval": "validation", "train": "training"}[source]
    first, last = values.index[0], values.index[-1]
    end = "" if source == "eval" else "; no client was evaluated"
    metric = label(name.rpartition("/")[2])
    if first == last:
        return f"The {kind} {metric} is {format_number(values.iloc[0])} in round {first:,}{end}."
    return (
        f"The {kind} {metric} goes from {format_number(values.iloc[0])} in round {first:,} to "
        f"{format_number(values.iloc[-1])} in round {last:,}{end}."
    )


def rank_order(run: RunData) -> np.ndarray:
    """Returns the clients' row numbers, ordered by the gain in the main metric, largest first."""
    metric = run.main_metric
    if metric is None:
        return np.arange(len(run.clients))
    after, before = run.after(metric), run.before(metric)
    gain = after if before is None else after - before
    return np.argsort(gain if lower_is_better(metric) else -gain, kind="stable")


def client_names(run: RunData, *, show_clients: bool) -> dict[str, str]:
    """Returns each client's name on a page by its name in the data, ordered by gain.

    Args:
        run: The run.
        show_clients: Whether the page names clients; otherwise it numbers them by rank.
    """
    if "client" not in run.clients:
        return {}
    names = run.clients["client"].iloc[rank_order(run)]
    return {n: shorten(n) if show_clients else f"client {i}" for i, n in enumerate(names, 1)}


def dots(run: RunData, *, show_clients: bool) -> dict[str, Any] | None:
    """Returns the data of the scatter plot of clients (`points.js`); None without test clients.

    Args:
        run: The run.
        show_clients: Whether the page names clients; otherwise it numbers them by rank.

    Returns:
        `names`; `size`, a column; `num_clients`, of which the plot shows at most `MOST_DOTS`,
        chosen at random; `choices`, each with `label`, the columns `x` and `y`, `lower` (whether
        lower is better, or None) and `diagonal`; and `columns`, further columns. A column has
        `label` and `values`, a number or None for each client.
    """
    if not len(run.clients) or run.main_metric is None:
        return None
    order = rank_order(run)
    ranks = np.arange(len(order))
    if len(ranks) > MOST_DOTS:
        ranks = np.sort(generator(Purpose.DOTS, 0).choice(ranks, MOST_DOTS, replace=False))
        order = order[ranks]
    names = [f"client {rank}" for rank in ranks + 1]
    if show_clients and "client" in run.clients:
        names = [shorten(name) for name in run.clients["client"].iloc[order]]

    def column(name: str, values: np.ndarray, digits: int = 4) -> dict[str, Any]:
        return {"label": name, "values": round_numbers(values[order], digits)}

    size = column("examples", run.num_examples, 7)
    choices = []
    for metric in sorted(run.client_metrics, key=lambda name: name != run.main_metric):
        name, after, before = label(metric), run.after(metric), run.before(metric)
        if not np.isfinite(after).any():
            continue
        choices.append(
            {
                "label": name,
                "x": size if before is None else column(f"{name} before", before),
                "y": column(name if before is None else f"{name} after", after),
                "lower": lower_is_better(metric),
                "diagonal": before is not None,
            }
        )
    if not choices:
        return None
    suffixes = ("", "_before", "_after", BASELINE_SUFFIX)
    shown = {f"{metric}{suffix}" for metric in run.client_metrics for suffix in suffixes}
    shown |= {"num_examples", "client", ROUND}
    columns = [
        column(label(name.removeprefix("num_")), run.clients[name].to_numpy(np.float64), 5)
        for name in map(str, run.clients.select_dtypes("number").columns)
        if name not in shown
    ]
    return {
        "names": names,
        "num_clients": len(run.clients),
        "size": size,
        "choices": choices,
        "columns": columns,
        "worse": "worse after personalisation",
        "better": "not worse",
    }


def percentile_rows(run: RunData) -> list[dict[str, Any]]:
    """Returns the rows of the table of percentiles.

    Returns:
        Rows with `metric`, a label; `stage`, such as `before`; `values`, the percentiles and the
        mean as texts; and `worse`, the share of clients that are worse after personalisation, in
        the row of the stage `change`.
    """
    rows = []
    for metric in sorted(run.client_metrics, key=lambda name: name != run.main_metric):
        after, before, baseline = run.after(metric), run.before(metric), run.baseline(metric)
        by_baseline = {} if baseline is None else {"baseline": baseline[1]}
        stages, worse = {"": after, **by_baseline}, ""
        if before is not None:
            stages = {"before": before, **by_baseline, "after": after, "change": after - before}
            share = share_worse(metric, before, after)
            worse = "" if share is None else format_percent(share)
        for stage, values in stages.items():
            values = values[np.isfinite(values)]
            if len(values):
                figures = [*np.percentile(values, PERCENTILES), values.mean()]
                rows.append(
                    {
                        "metric": label(metric),
                        "stage": stage,
                        "values": [format_number(value) for value in figures],
                        "worse": worse if stage == "change" else "",
                    }
                )
    return rows
