"""`report.html`: a finished run to look at."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from fedpersonal.atomic_files import write_text
from fedpersonal.report.boundary_picture import WIDTH, boundary_picture
from fedpersonal.report.clients import dots, percentile_rows
from fedpersonal.report.curves import curve_panels
from fedpersonal.report.embedding_map import embedding_map
from fedpersonal.report.numbers import label, plain, size
from fedpersonal.report.options_told import command, options_told
from fedpersonal.report.recommendations import recommendations_told
from fedpersonal.report.render import render
from fedpersonal.report.run_data import RunData, is_number, read_run
from fedpersonal.report.texts import texts_told
from fedpersonal.report.verdict import judge

REPORT = "report.html"


def write_report(
    folder: str | os.PathLike, *, show_clients: bool = False, failure: str | None = None
) -> pathlib.Path:
    """Writes `report.html` to the folder of a finished run.

    Args:
        folder: The folder, of a binary or of a program that gave it to `Trainer.fit`.
        show_clients: Whether the page has clients' names; else it is made to be shared, and they
            are numbered by their rank.
        failure: What has ended the run before its time; such a run need not be finished.

    Returns:
        The file.

    Raises:
        UserError: It is no finished run's folder, or a file is damaged or cannot be written.
    """
    run = read_run(folder, failure=failure)
    path = run.path / REPORT
    write_text(path, report_page(run, show_clients=show_clients))
    return path


def report_page(run: RunData, *, show_clients: bool = False) -> str:
    """Returns the page of a run; arguments are of `write_report`."""
    data = {
        "curves": curve_panels(run),
        "dots": dots(run, show_clients=show_clients),
        "map": embedding_map(run),
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
        texts=texts_told(run.path),
        recommendations=recommendations_told(run.path),
        show_clients=show_clients,
    )


def key_figures(run: RunData) -> list[tuple[str, str]]:
    """Returns names and texts of what a run came to, and what it took."""
    test, told = run.summary.get("test") or {}, []
    before = test.get("before") or {}
    for name, value in test.items():
        if is_number(value) and not name.startswith("num_") and name != "share_hurt":
            text = plain(value, 4)
            if is_number(before.get(name)):
                text += f" (before: {plain(before[name], 4)})"
            told.append((label(name) + _whose(run, name, value), text))
    counts = {"clients tested": test.get("num_clients"), "examples": test.get("num_examples")}
    counts["rounds"] = len(run.rounds)
    told += [(name, f"{value:,}") for name, value in counts.items() if is_number(value)]
    seconds = run.rounds["seconds"].sum() if len(run.rounds) else None
    if seconds:
        told.append(("time in rounds", f"{plain(float(seconds))} s"))
    if run.bytes_per_client:
        told.append(("each client, each round", size(run.bytes_per_client)))
    epsilon = (run.summary.get("privacy") or {}).get("epsilon")
    if is_number(epsilon):
        told.append(("privacy", f"epsilon {plain(epsilon)}"))
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
