"""What a run came to, in one sentence."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedpersonal.evaluation.direction import lower_is_better
from fedpersonal.evaluation.paired_bootstrap import (
    PairedDifference,
    client_sums,
    paired_bootstrap,
)
from fedpersonal.report.numbers import label, percent, plain, signed
from fedpersonal.report.run_data import RunData

_MOST_DRAWN = 2 * 10**7


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A run, judged.

    Attributes:
        text: The sentence.
        metric: What is judged by; None where no client was evaluated.
        interval: Of the mean over clients: of after minus before, or of the metric where there is
            nothing before; None for fewer than two clients.
        share_hurt: The share of clients that personalisation hurt by this metric, or None.
    """

    text: str
    metric: str | None = None
    interval: PairedDifference | None = None
    share_hurt: float | None = None


def judge(run: RunData) -> Verdict:
    """Says what personalisation did to the mean client, with its 95 % interval."""
    if run.failure is not None:
        return Verdict(f"The run failed. {run.failure}")
    metric = run.main_metric
    if metric is None:
        return Verdict(_of_rounds(run))
    after, before = run.after(metric), run.before(metric)
    known = np.isfinite(after) & (True if before is None else np.isfinite(before))
    if not known.any():
        return Verdict(f"No client has a finite {label(metric)}.", metric)
    after = after[known]
    if before is None:
        return _of_values(metric, after)
    return _of_pairs(metric, before[known], after)


def share_hurt(metric: str, before: np.ndarray, after: np.ndarray) -> float | None:
    """Returns the share of clients who are worse off after personalisation; NaN does not count."""
    lower = lower_is_better(metric)
    known = np.isfinite(before) & np.isfinite(after)
    if lower is None or not known.any():
        return None
    worse = (after > before) if lower else (after < before)
    return float(worse[known].mean())


def _of_pairs(metric: str, before: np.ndarray, after: np.ndarray) -> Verdict:
    name, lower, hurt = label(metric), lower_is_better(metric), share_hurt(metric, before, after)
    told = f"{name} from {plain(before.mean())} to {plain(after.mean())}"
    end = "" if hurt is None else f"; {percent(hurt) if hurt else 'none'} of them are hurt"
    if len(after) == 1:
        return Verdict(
            f"One test client, which tells nothing of others: {told}.", metric, None, hurt
        )
    found = _bootstrap(after, before)
    interval = f"95 % interval {signed(found.low)} to {signed(found.high)}"
    change = f"{signed(found.difference)}, {interval}, {len(after):,} test clients"
    if found.is_within_noise:
        start = f"Personalisation takes the mean client's {told}, which is within noise"
    elif lower is None:
        start = f"Personalisation takes the mean client's {told}"
    else:
        does = "helps" if (found.difference < 0) == lower else "hurts"
        start = f"Personalisation {does}: it takes the mean client's {told}"
    return Verdict(f"{start} ({change}){end}.", metric, found, hurt)


def _of_values(metric: str, values: np.ndarray) -> Verdict:
    name = label(metric)
    if len(values) == 1:
        text = f"One test client, which tells nothing of others: {name} {plain(values[0])}."
        return Verdict(text, metric)
    found = _bootstrap(values, np.zeros_like(values))
    return Verdict(
        f"The mean client's {name} is {plain(found.difference)} (95 % interval {plain(found.low)} "
        f"to {plain(found.high)}, {len(values):,} test clients); clients were not evaluated before "
        "personalisation.",
        metric,
        found,
    )


def _bootstrap(first: np.ndarray, second: np.ndarray) -> PairedDifference:
    # Of very many clients, fewer draws: a page must not take long.
    draws = min(2_000, max(200, _MOST_DRAWN // len(first)))
    return paired_bootstrap(client_sums(first), client_sums(second), draws=draws)


def _of_rounds(run: RunData) -> str:
    """Says how the curves went where no client was evaluated one by one."""
    names = [n for source in ("eval/", "train/") for n in run.round_metrics if n.startswith(source)]
    if not names:
        return "Nothing was trained, and no client was evaluated."
    source = names[0].partition("/")[0]
    mine = [n for n in names if n.startswith(source)]
    name = f"{source}/loss" if f"{source}/loss" in mine else mine[0]
    values = run.rounds.set_index("round")[name].dropna()
    kind = {"eval": "validation", "train": "training"}[source]
    first, last = values.index[0], values.index[-1]
    end = "" if source == "eval" else "; no client was evaluated"
    metric = label(name.rpartition("/")[2])
    if first == last:
        return f"The {kind} {metric} is {plain(values.iloc[0])} in round {first:,}{end}."
    return (
        f"The {kind} {metric} goes from {plain(values.iloc[0])} in round {first:,} to "
        f"{plain(values.iloc[-1])} in round {last:,}{end}."
    )
