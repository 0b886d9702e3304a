"""A run's clients before and after personalisation: a sentence, dots and percentiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpersonal.draws import Purpose, generator
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.direction import lower_is_better
from fedpersonal.evaluation.guess import GUESS
from fedpersonal.evaluation.paired_bootstrap import (
    FEWEST,
    PairedDifference,
    client_sums,
    paired_bootstrap,
)
from fedpersonal.report.numbers import label, percent, plain, rounded, shown, signed
from fedpersonal.report.run_data import RunData
from fedpersonal.simulation.rounds_of_files import ROUND

MOST_DOTS = 6_000
_MOST_DRAWN = 2 * 10**7


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A run, judged.

    Attributes:
        text: The sentence.
        metric: What is judged by; None where no client was evaluated.
        interval: Of the mean over clients: of after minus what it is compared with, or of the
            metric where that is nothing; None for too few clients.
        share_hurt: The share of clients that are worse off by this metric than with what it is
            compared with, or None.
    """

    text: str
    metric: str | None = None
    interval: PairedDifference | None = None
    share_hurt: float | None = None


def judge(run: RunData) -> Verdict:
    """Says whether personalisation beats the stronger of nothing and a guess, for the mean client.

    Local variables that nobody has trained are nothing to compare with: of them alone, without a
    guess, it says no more than the figures.
    """
    if run.failure is not None:
        return Verdict(f"The run failed. {run.failure}")
    metric = run.main_metric
    if metric is None:
        return Verdict(_of_rounds(run))
    after, before, guess = run.after(metric), run.before(metric), run.guess(metric)
    known = np.ones(len(after), bool)
    for values in (before, guess and guess[1]):
        known &= True if values is None else np.isfinite(values)
    if before is None and guess is None:
        known = np.isfinite(after)
    if not (known & np.isfinite(after)).any():
        return Verdict(f"No client has a finite {label(metric)}.", metric)
    after, before = after[known], None if before is None else before[known]
    if guess is not None:
        guess = guess[0], guess[1][known]
    if before is not None and guess is None and run.starts_untrained:
        return _of_values(metric, after, untrained=before)
    if before is None and guess is None:
        return _of_values(metric, after)
    return _of_pairs(metric, before, guess, after)


def share_hurt(metric: str, before: np.ndarray, after: np.ndarray) -> float | None:
    """Returns the share of clients who are worse off after personalisation, or have no number.

    Clients without a number before do not count.
    """
    lower, known = lower_is_better(metric), np.isfinite(before)
    if lower is None or not known.any():
        return None
    is_fine = (after <= before) if lower else (after >= before)
    return float((~is_fine | ~np.isfinite(after))[known].mean())


def _of_pairs(
    metric: str, before: np.ndarray | None, guess: tuple[str, np.ndarray] | None, after: np.ndarray
) -> Verdict:
    """Compares clients with what they had before or with the guess, whichever is stronger."""
    name, lower, whole = label(metric), lower_is_better(metric), np.isfinite(after)

    def is_stronger(values: np.ndarray, than: np.ndarray) -> bool:
        return (values[whole].mean() - than[whole].mean()) * (1 if lower else -1) < 0

    by_guess = guess is not None and (before is None or is_stronger(guess[1], before))
    reference = guess[1] if guess and by_guess else before
    assert reference is not None
    hurt, broken = share_hurt(metric, reference, after), int((~whole).sum())
    means = plain(reference[whole].mean()), plain(after[whole].mean())
    moves = before is not None and not np.array_equal(before, after)
    verb, told = "it takes the mean client's ", f"{name} from {means[0]} to {means[1]}"
    if guess and by_guess:
        stage = f" ({plain(before[whole].mean())} before)" if before is not None and moves else ""
        verb = "the mean client's "
        told = f"{name} is {means[1]}{stage}, against {means[0]} for {guess[0]}"
    elif guess:
        told += f" ({guess[0]}: {plain(guess[1][whole].mean())})"
    number = f"{len(after):,} test clients"
    if whole.sum() < FEWEST and not broken:
        few = "One test client" if len(after) == 1 else f"{number}, too few to judge by"
        few += ", which tells nothing of others" if len(after) == 1 else ""
        return Verdict(f"{few}: {told}.", metric, None, hurt)
    found = _bootstrap(after[whole], reference[whole])
    change = f"{_interval(found, signed)}, {number}"
    end = "" if hurt is None else f"; {percent(hurt) if hurt else 'none'} of them are hurt"
    if by_guess and hurt is not None:
        end = f"; for {percent(hurt) if hurt else 'none'} of them the guess is better"
    if broken:
        return Verdict(
            f"Personalisation leaves {broken:,} of {number} without a finite {name}; "
            f"{verb.replace('the mean client', 'the mean other client')}{told} ({change}){end}.",
            metric,
            found,
            hurt,
        )
    helps = not found.is_within_noise and (found.difference < 0) == lower
    subject = "Personalisation" if moves else "The model"
    start = f"{subject} takes the mean client's {told}"
    if by_guess:
        does = ("helps" if moves else "beats the guess") if helps else "does not beat the guess"
        start = f"{subject} {does}: {verb}{told}"
    elif lower is not None and not found.is_within_noise:
        start = f"{subject} {'helps' if helps else 'hurts'}: {verb}{told}"
    if found.is_within_noise:
        start += ", which is within noise"
    return Verdict(f"{start} ({change}){end}.", metric, found, hurt)


def _of_values(metric: str, values: np.ndarray, untrained: np.ndarray | None = None) -> Verdict:
    name, whole = label(metric), np.isfinite(values)
    found = _bootstrap(values[whole], np.zeros(whole.sum()))
    number = "one test client" if len(values) == 1 else f"{len(values):,} test clients"
    said = f"The mean client's {name} is {_interval(found, plain, number)}"
    if untrained is None:
        return Verdict(
            f"{said}; clients were not evaluated before personalisation.", metric, _known(found)
        )
    hurt = share_hurt(metric, untrained, values)
    if not whole.all():
        said += f"; {(~whole).sum():,} of them have none"
    return Verdict(
        f"{said}. Before, with local variables that nobody has trained, it is "
        f"{plain(untrained.mean())}, which is nothing to compare with: give `evaluate` a guess.",
        metric,
        _known(found),
        hurt,
    )


def _interval(found: PairedDifference, shown: Callable[[float], str], number: str = "") -> str:
    """Returns a figure with its interval in words."""
    value, ends = shown(found.difference), f"{shown(found.low)} to {shown(found.high)}"
    interval = f"95 % interval {ends}" if found.has_interval else "too few clients for an interval"
    return f"{value} ({interval}, {number})" if number else f"{value}, {interval}"


def _known(found: PairedDifference) -> PairedDifference | None:
    return found if found.has_interval else None


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


def rank_order(run: RunData) -> np.ndarray:
    """Returns the clients' places, those first who gained most by the main metric."""
    metric = run.main_metric
    if metric is None:
        return np.arange(len(run.clients))
    after, before = run.after(metric), run.before(metric)
    gain = after if before is None else after - before
    return np.argsort(gain if lower_is_better(metric) else -gain, kind="stable")


def dots(run: RunData, *, show_clients: bool) -> dict[str, Any] | None:
    """Returns what `dots.js` draws of a run's clients; None where nobody was evaluated.

    Args:
        run: The run.
        show_clients: Whether clients have their names; else their rank.

    Returns:
        `names`; `size`, a column; `num_clients`, of which at most `MOST_DOTS` are drawn, chosen at
        random; and `choices`, each with `label` and the columns `x` and `y`,
        `lower` (whether less is better, or None) and `diagonal`. Columns have `label` and `values`,
        a number or None for each client; further ones are `columns`.
    """
    if not len(run.clients) or run.main_metric is None:
        return None
    order = rank_order(run)
    ranks = np.arange(len(order))
    if len(ranks) > MOST_DOTS:
        ranks = np.sort(generator(Purpose.DOTS, 0).choice(ranks, MOST_DOTS, replace=False))
        order = order[ranks]
    numbers = run.clients.select_dtypes("number").columns
    names = [f"client {rank}" for rank in ranks + 1]
    if show_clients:
        names = [shown(name) for name in run.clients["client"].iloc[order]]
    size = {"label": "examples", "values": rounded(run.num_examples[order], 7)}
    choices = []
    for metric in sorted(run.client_metrics, key=lambda name: name != run.main_metric):
        after, before = run.after(metric), run.before(metric)
        if not np.isfinite(after).any():
            continue
        name = label(metric)
        y = {"label": f"{name} after", "values": rounded(after[order], 4)}
        x = size if before is None else {"label": f"{name} before"}
        if before is not None:
            x["values"] = rounded(before[order], 4)
        else:
            y["label"] = name
        choices.append(
            {
                "label": name,
                "x": x,
                "y": y,
                "lower": lower_is_better(metric),
                "diagonal": before is not None,
            }
        )
    known = {f"{m}{s}" for m in run.client_metrics for s in ("", "_before", "_after", GUESS)}
    further = [n for n in map(str, numbers) if n not in {*known, "num_examples", "client", ROUND}]
    columns = [
        {
            "label": label(name.removeprefix("num_")),
            "values": rounded(run.clients[name].to_numpy(np.float64)[order]),
        }
        for name in further
    ]
    if not choices:
        return None
    return {
        "names": names,
        "num_clients": len(run.clients),
        "size": size,
        "choices": choices,
        "columns": columns,
        "worse": "hurt",
        "better": "not hurt",
    }


def percentile_rows(run: RunData) -> list[dict[str, Any]]:
    """Returns the rows of the table of percentiles: metric, stage, texts of numbers, share hurt."""
    rows = []
    for metric in sorted(run.client_metrics, key=lambda name: name != run.main_metric):
        after, before, guess = run.after(metric), run.before(metric), run.guess(metric)
        guessed = {} if guess is None else {"guess": guess[1]}
        stages, hurt = {"": after, **guessed}, ""
        if before is not None:
            stages = {"before": before, **guessed, "after": after, "change": after - before}
            share = share_hurt(metric, before, after)
            hurt = "" if share is None else percent(share)
        for stage, values in stages.items():
            values = values[np.isfinite(values)]
            if not len(values):
                continue
            rows.append(
                {
                    "metric": label(metric),
                    "stage": stage,
                    "values": [plain(v) for v in np.percentile(values, PERCENTILES)],
                    "mean": plain(values.mean()),
                    "hurt": hurt if stage == "change" else "",
                }
            )
    return rows
