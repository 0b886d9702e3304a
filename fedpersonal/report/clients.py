"""Clients before and after personalisation: dots, histograms, percentiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpersonal.draws import Purpose, generator
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.direction import lower_is_better
from fedpersonal.evaluation.guess import GUESS
from fedpersonal.report.numbers import label, percent, plain, rounded, shown
from fedpersonal.report.run_data import RunData
from fedpersonal.report.verdict import share_hurt
from fedpersonal.simulation.run_record import ROUND

MOST_DOTS = 6_000


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
