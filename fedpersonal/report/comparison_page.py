"""The page of a comparison: one file to look at, with its tables beside it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from fedpersonal.files import write_text
from fedpersonal.report import comparison_text as text
from fedpersonal.report.comparison import Comparison, compare_runs
from fedpersonal.report.comparison_charts import against_bytes, client_dots, colors_of, curve_bands
from fedpersonal.report.render import render


def write_comparison(
    folders: Sequence[str | os.PathLike],
    page: str | os.PathLike,
    *,
    metric: str | None = None,
    show_clients: bool = False,
) -> list[pathlib.Path]:
    """Compares finished runs and writes a page, and beside it its tables as Markdown and CSV.

    Args:
        folders: 2 to 10 run folders. The method of the first is the one that others are compared
            with; runs that differ by their seed alone are one method.
        page: The page's path, which ends in `.html`.
        metric: The metric to judge by; None for the usual one.
        show_clients: Whether the page names clients; else they are numbered by rank.

    Returns:
        The page, the Markdown and the CSV file.

    Raises:
        UserError: If runs cannot be compared, as of `compare_runs`, or a file cannot be written.
    """
    return write_page(compare_runs(folders, metric=metric), page, show_clients=show_clients)


def write_page(
    comparison: Comparison, page: str | os.PathLike, *, show_clients: bool = False
) -> list[pathlib.Path]:
    """Writes what `write_comparison` writes of runs that are compared already."""
    path = pathlib.Path(page)
    write_text(path, comparison_page(comparison, show_clients=show_clients))
    return [path, *text.write_tables(comparison, path)]


def comparison_page(comparison: Comparison, *, show_clients: bool = False) -> str:
    """Returns the page of a comparison."""
    data: dict[str, Any] = {
        "curves": {"panels": curve_bands(comparison)},
        "dots": client_dots(comparison, show_clients=show_clients),
        "bytes": against_bytes(comparison),
    }
    return render(
        "compare.jinja",
        data=data,
        title=text.title(comparison),
        verdicts=text.verdicts(comparison),
        baseline=comparison.methods[0].name,
        about=text.about(comparison),
        about_methods=text.about_methods(comparison),
        about_spread=text.ABOUT_SPREAD,
        methods=text.method_rows(comparison),
        costs=text.cost_rows(comparison.methods),
        about_costs=text.ABOUT_COSTS,
        differences=text.difference_rows(comparison),
        spread=text.spread_rows(comparison),
        options=text.option_rows(comparison.methods),
        runs=text.run_rows(comparison.methods),
        show_clients=show_clients,
        colors=colors_of(comparison),
    )
