"""`report.html`: a finished run to look at."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpersonal.evaluation.guess import CHANCE, strongest
from fedpersonal.files import write_text
from fedpersonal.report.boundary_picture import WIDTH, boundary_picture
from fedpersonal.report.clients import dots, percentile_rows
from fedpersonal.report.curves import curve_panels
from fedpersonal.report.embedding_map import embedding_map
from fedpersonal.report.numbers import label, plain, shown, size
from fedpersonal.report.options_told import command, options_told
from fedpersonal.report.recommendations import Recommendations, recommendations_told
from fedpersonal.report.render import render
from fedpersonal.report.run_data import RunData, is_number, read_run
from fedpersonal.report.texts import Texts, texts_told
from fedpersonal.report.verdict import judge

REPORT = "report.html"


def write_report(
    folder: str | os.PathLike,
    *,
    show_clients: bool = False,
    failure: str | None = None,
    only_last: bool = False,
) -> pathlib.Path:
    """Writes `report.html` to the folder of a finished run.

    Args:
        folder: The folder, of a binary or of a program that gave it to `Trainer.fit`.
        show_clients: Whether the page has clients' names; else it is made to be shared, and they
            are numbered by their rank.
        failure: What has ended the run before its time; such a run need not be finished.
        only_last: Whether files of other rounds than the last, such as a `per_client.csv` from
            before a run went on, are left out; else they are an error.

    Returns:
        The file.

    Raises:
        UserError: It is no finished run's folder, or a file is damaged or cannot be written.
    """
    run = read_run(folder, failure=failure, only_last=only_last)
    path = run.path / REPORT
    write_text(path, report_page(run, show_clients=show_clients))
    return path


def report_page(run: RunData, *, show_clients: bool = False) -> str:
    """Returns the page of a run; arguments are of `write_report`."""
    data = {
        "curves": curve_panels(run),
        "dots": dots(run, show_clients=show_clients),
        # A model, texts and recommendations are of the end, which a run that has failed lacks.
        "map": None if run.failure else embedding_map(run),
    }
    return render(
        "report.jinja",
        data=data,
        run=run,
        verdict=judge(run),
        figures=key_figures(run),
        percentiles=percentile_rows(run),
        boundary=boundary_picture(run),
        boundary_width=WIDTH,
        options=options_told(run),
        command=command(run),
        texts=Texts([], [])
        if run.failure
        else texts_told(run.path, rounds=run.summary.get("rounds")),
        recommendations=Recommendations() if run.failure else recommendations_told(run.path),
        show_clients=show_clients,
    )


def key_figures(run: RunData) -> list[tuple[str, str]]:
    """Returns names and texts of what a run came to, and what it took."""
    test, told = run.summary.get("test") or {}, []
    before, counting = test.get("before") or {}, test.get("num_clients_of") or {}
    chance = (test.get("guesses") or {}).get(CHANCE) or {}
    for name, value in test.items():
        if is_number(value) and not name.startswith("num_") and name != "share_hurt":
            text = plain(value, 4)
            guess, score = strongest(test.get("guesses"), name) or ("", None)
            beside = {"before": before.get(name), shown(guess): score, CHANCE: chance.get(name)}
            known = [f"{what}: {plain(v, 4)}" for what, v in beside.items() if is_number(v)]
            known += [f"{counting[name]:,} clients"] if is_number(counting.get(name)) else []
            text += f" ({'; '.join(known)})" if known else ""
            told.append((label(name) + _whose(run, name, value), text))
    counts = {
        "clients tested": test.get("num_clients"),
        "clients without a query set": test.get("num_clients_without_query") or None,
        "examples": test.get("num_examples"),
        "rounds": len(run.rounds),
    }
    told += [(name, f"{value:,}") for name, value in counts.items() if is_number(value)]
    told += _attendance(run, test)
    seconds = run.rounds["seconds"].sum() if len(run.rounds) else None
    if seconds:
        told.append(("time in rounds", f"{plain(float(seconds))} s"))
    if run.bytes_per_client:
        told.append(("each client, each round", size(run.bytes_per_client)))
    privacy = run.summary.get("privacy") or {}
    draws = [("secret", "secret"), ("public", "known")]
    for draw, word in draws if privacy.get("draw") == "secret" else draws[::-1]:
        epsilon = privacy.get(f"epsilon_{draw}_draw")
        is_claimed = privacy.get("draw") == draw
        name = f"epsilon (draw {word})" if is_claimed else f"epsilon if the draw were {word}"
        if is_number(epsilon):
            told.append((name, plain(epsilon)))
    return told


def _attendance(run: RunData, test: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what is told of seen clients that no round drew, and of when others took part."""
    told, never, since = [], test.get("never_drawn"), test.get("rounds_since")
    if isinstance(never, dict) and is_number(never.get("num_clients")):
        text, metric = f"{never['num_clients']:,}", run.main_metric or ""
        if is_number(never.get(metric)):
            text += f", with {label(metric)} {plain(never[metric], 4)}"
        told.append(("clients never drawn", text))
    if isinstance(since, dict) and is_number(since.get("p50")) and is_number(since.get("p95")):
        text = f"median {plain(since['p50'])}, 95th percentile {plain(since['p95'])}"
        told.append(("rounds since a client took part", text))
    return told


def _whose(run: RunData, name: str, value: float) -> str:
    """Returns which of two means a metric of the test is, where clients' values tell."""
    if f"{name}_after" not in run.clients and name not in run.clients:
        return ""
    values = run.after(name)
    known = values[np.isfinite(values)]
    if not len(known):
        return ""
    return ", mean client" if np.isclose(known.mean(), value, rtol=1e-5) else ", all together"
