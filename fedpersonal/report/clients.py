"""A run's clients before and after personalisation: a sentence, dots and percentiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpersonal.draws import Purpose, generator
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import lower_is_better
from fedpersonal.evaluation.guess import GUESS
from fedpersonal.evaluation.statistics import (
    FEWEST,
    PairedDifference,
    client_sums,
    paired_bootstrap,
)
from fedpersonal.report.run import RunData, label, percent, plain, rounded, shown, signed
from fedpersonal.runs.record import ROUND

MOST_DOTS = 6_000
_MOST_DRAWN = 2 * 10**7


def judge(run: RunData) -> str:
    """Says whether personalisation beats the stronger of nothing and a guess, for the mean client.

    Local variables that nobody has trained are nothing to compare with: of them alone, without a
    guess, it says no more than the figures.
    """
    if run.failure is not None:
        return f"The run failed. {run.failure}"
    metric = run.main_metric
    if metric is None:
        return _of_rounds(run)
    after, before, guess = run.after(metric), run.before(metric), run.guess(metric)
    finite = np.ones(len(after), bool)
    for values in (before, guess and guess[1]):
        finite &= True if values is None else np.isfinite(values)
    if before is None and guess is None:
        finite = np.isfinite(after)
    if not (finite & np.isfinite(after)).any():
        return f"No client has a finite {label(metric)}."
    after, before = after[finite], None if before is None else before[finite]
    if guess is not None:
        return _of_pairs(metric, before, (guess[0], guess[1][finite]), after)
    if before is not None and not run.starts_untrained:
        return _of_pairs(metric, before, None, after)
    return _of_values(metric, before, after)


def share_hurt(metric: str, before: np.ndarray, after: np.ndarray) -> float | None:
    """Returns the share of clients who are worse off after personalisation, or have no number.

    Clients without a number before do not count.
    """
    lower, finite = lower_is_better(metric), np.isfinite(before)
    if lower is None or not finite.any():
        return None
    is_fine = (after <= before) if lower else (after >= before)
    return float((~is_fine | ~np.isfinite(after))[finite].mean())


def _of_pairs(
    metric: str, before: np.ndarray | None, guess: tuple[str, np.ndarray] | None, after: np.ndarray
) -> str:
    """Compares clients with what they had before or with the guess, whichever is stronger."""
    name, lower, whole = label(metric), lower_is_better(metric), np.isfinite(after)
    means = {"after": after[whole].mean()}
    if before is not None:
        means["before"] = before[whole].mean()
    by_guess = False
    if guess is not None:
        means["guess"] = guess[1][whole].mean()
        by_guess = before is None or (means["guess"] - means["before"]) * (1 if lower else -1) < 0
    reference = guess[1] if guess and by_guess else before
    assert reference is not None
    hurt, broken = share_hurt(metric, reference, after), int((~whole).sum())
    figures = {stage: plain(mean) for stage, mean in means.items()}
    moves = before is not None and not np.array_equal(before, after)
    verb = "the mean client's " if by_guess else "it takes the mean client's "
    if guess and by_guess:
        stage = f" ({figures['before']} before)" if moves else ""
        sentence = f"{name} is {figures['after']}{stage}, against {figures['guess']} for {guess[0]}"
    else:
        sentence = f"{name} from {figures['before']} to {figures['after']}"
        sentence += f" ({guess[0]}: {figures['guess']})" if guess else ""
    number = f"{len(after):,} test clients"
    if whole.sum() < FEWEST and not broken:
        if len(after) == 1:
            return f"One test client, which tells nothing of others: {sentence}."
        return f"{number}, too few to judge by: {sentence}."
    result = _bootstrap(after[whole], reference[whole])
    end = ""
    if hurt is not None:
        share = percent(hurt) if hurt else "none"
        end = f"; for {share} of them the guess is better" if by_guess else ""
        end = end or f"; {share} of them are hurt"
    change = f"({signed(result.difference)}, {_interval(result, signed)}, {number}){end}"
    if broken:
        mean_other = verb.replace("the mean client", "the mean other client")
        return (
            f"Personalisation leaves {broken:,} of {number} without a finite {name}; "
            f"{mean_other}{sentence} {change}."
        )
    helps = not result.is_within_noise and (result.difference < 0) == lower
    subject = "Personalisation" if moves else "The model"
    start = f"{subject} takes the mean client's {sentence}"
    if by_guess:
        does = ("helps" if moves else "beats the guess") if helps else "does not beat the guess"
        start = f"{subject} {does}: {verb}{sentence}"
    elif lower is not None and not result.is_within_noise:
        start = f"{subject} {'helps' if helps else 'hurts'}: {verb}{sentence}"
    noise = ", which is within noise" if result.is_within_noise else ""
    return f"{start}{noise} {change}."


def _of_values(metric: str, before: np.ndarray | None, after: np.ndarray) -> str:
    """Says the mean of a metric where there is nothing to compare it with."""
    name, whole = label(metric), np.isfinite(after)
    result = _bootstrap(after[whole], np.zeros(whole.sum()))
    number = "one test client" if len(after) == 1 else f"{len(after):,} test clients"
    mean = plain(result.difference)
    sentence = f"The mean client's {name} is {mean} ({_interval(result, plain)}, {number})"
    if before is None:
        return f"{sentence}; clients were not evaluated before personalisation."
    if not whole.all():
        sentence += f"; {(~whole).sum():,} of them have none"
    return (
        f"{sentence}. Before, with local variables that nobody has trained, it is "
        f"{plain(before.mean())}, which is nothing to compare with: give `evaluate` a guess."
    )


def _interval(result: PairedDifference, text: Callable[[float], str]) -> str:
    if not result.has_interval:
        return "too few clients for an interval"
    return f"95 % interval {text(result.low)} to {text(result.high)}"


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


def client_names(run: RunData, *, show_clients: bool) -> dict[str, str]:
    """Returns what a page calls each client, by its name in the data, those first who gained most.

    Args:
        run: The run.
        show_clients: Whether clients have their names; else their rank.
    """
    if "client" not in run.clients:
        return {}
    names = run.clients["client"].iloc[rank_order(run)]
    return {n: shown(n) if show_clients else f"client {i}" for i, n in enumerate(names, 1)}


def dots(run: RunData, *, show_clients: bool) -> dict[str, Any] | None:
    """Returns what `points.js` draws of a run's clients; None where nobody was evaluated.

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
    names = [f"client {rank}" for rank in ranks + 1]
    if show_clients and "client" in run.clients:
        names = [shown(name) for name in run.clients["client"].iloc[order]]

    def column(name: str, values: np.ndarray, digits: int = 4) -> dict[str, Any]:
        return {"label": name, "values": rounded(values[order], digits)}

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
    known = {f"{m}{s}" for m in run.client_metrics for s in ("", "_before", "_after", GUESS)}
    known |= {"num_examples", "client", ROUND}
    columns = [
        column(label(name.removeprefix("num_")), run.clients[name].to_numpy(np.float64), 5)
        for name in map(str, run.clients.select_dtypes("number").columns)
        if name not in known
    ]
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
    """Returns the rows of the table of percentiles.

    Returns:
        Each has `metric`, a label, `stage` (such as `before`), `values`, the texts of the
        percentiles and of the mean, and `hurt`, the share of clients hurt, where the stage is
        `change`.
    """
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
            if len(values):
                figures = [*np.percentile(values, PERCENTILES), values.mean()]
                rows.append(
                    {
                        "metric": label(metric),
                        "stage": stage,
                        "values": [plain(value) for value in figures],
                        "hurt": hurt if stage == "change" else "",
                    }
                )
    return rows
