"""`report.html`: a finished run to look at, with all that it needs in one file."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import jinja2
import numpy as np

import fedpersonal
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.guess import CHANCE, strongest
from fedpersonal.files import to_json, write_text
from fedpersonal.report import run as numbers
from fedpersonal.report.charts import boundary_groups, curve_panels, embedding_map
from fedpersonal.report.clients import dots, judge, percentile_rows
from fedpersonal.report.pictures import css_variables
from fedpersonal.report.run import (
    OUR_TASKS,
    RunData,
    is_number,
    label,
    option_text,
    plain,
    read_run,
    shown,
    size,
)
from fedpersonal.report.samples import (
    Recommendations,
    Texts,
    read_recommendations,
    read_texts,
)

REPORT = "report.html"
PAGE = pathlib.Path(__file__).parent / "page"
# In this order; each file may use what is above it.
_SCRIPTS = ("base.js", "curves.js", "points.js", "tables.js", "start.js")


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
    """Returns the page of a run, with the names of clients or without."""
    data = {
        "curves": {"panels": curve_panels(run)},
        "dots": dots(run, show_clients=show_clients),
        "map": None,
    }
    texts, recommendations = Texts(), Recommendations()
    # A model, texts and recommendations are of the end, which a run that has failed lacks.
    if not run.failure:
        data["map"] = embedding_map(run)
        texts = read_texts(run.path, rounds=run.summary.get("rounds"))
        recommendations = read_recommendations(run.path)
    return render(
        "report.jinja",
        data=data,
        run=run,
        verdict=judge(run),
        figures=key_figures(run),
        percents=PERCENTILES,
        percentiles=percentile_rows(run),
        boundary=boundary_groups(run),
        options=changed_options(run),
        command=command(run),
        texts=texts,
        recommendations=recommendations,
        show_clients=show_clients,
    )


def render(template: str, *, data: Mapping[str, Any], **context: Any) -> str:
    """Returns a page.

    Args:
        template: A file of `page/`, which extends `base.jinja`.
        data: What scripts draw, by name: `<figure data-chart="curves" data-key="name">`.
        **context: What the template shows, escaped.
    """
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            data=to_json(data),
            script=script,
            script_hash=f"sha256-{digest}",
            style=(PAGE / "page.css").read_text(encoding="utf-8"),
            light=css_variables(dark=False),
            dark=css_variables(dark=True),
            version=fedpersonal.__version__,
            **context,
        )
    )


@functools.cache
def _script() -> str:
    parts = [(PAGE / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        plain=numbers.plain,
        percent=numbers.percent,
        shown=numbers.shown,
        count="{:,}".format,
        rating="{:g}".format,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def key_figures(run: RunData) -> list[tuple[str, str]]:
    """Returns names and texts of what a run came to, and what it took."""
    test, figures = run.summary.get("test") or {}, []
    before, counting = test.get("before") or {}, test.get("num_clients_of") or {}
    chance = (test.get("guesses") or {}).get(CHANCE) or {}
    for name, value in test.items():
        if is_number(value) and not name.startswith("num_") and name != "share_hurt":
            text = plain(value, 4)
            guess, score = strongest(test.get("guesses"), name) or ("", None)
            beside = {"before": before.get(name), shown(guess): score, CHANCE: chance.get(name)}
            notes = [f"{what}: {plain(v, 4)}" for what, v in beside.items() if is_number(v)]
            notes += [f"{counting[name]:,} clients"] if is_number(counting.get(name)) else []
            text += f" ({'; '.join(notes)})" if notes else ""
            figures.append((label(name) + _whose(run, name, value), text))
    counts = {
        "clients tested": test.get("num_clients"),
        "clients without a query set": test.get("num_clients_without_query") or None,
        "examples": test.get("num_examples"),
        "rounds": len(run.rounds),
    }
    figures += [(name, f"{value:,}") for name, value in counts.items() if is_number(value)]
    figures += _attendance(run, test)
    seconds = run.rounds["seconds"].sum() if len(run.rounds) else None
    if seconds:
        figures.append(("time in rounds", f"{plain(float(seconds))} s"))
    if run.bytes_per_client:
        figures.append(("each client, each round", size(run.bytes_per_client)))
    return figures + _epsilons(run.summary.get("privacy") or {})


def _attendance(run: RunData, test: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns how seen clients fare that no round drew, and when others took part last."""
    figures, never, since = [], test.get("never_drawn"), test.get("rounds_since")
    if isinstance(never, dict) and is_number(never.get("num_clients")):
        text, metric = f"{never['num_clients']:,}", run.main_metric or ""
        if is_number(never.get(metric)):
            text += f", with {label(metric)} {plain(never[metric], 4)}"
        figures.append(("clients never drawn", text))
    if isinstance(since, dict) and is_number(since.get("p50")) and is_number(since.get("p95")):
        text = f"median {plain(since['p50'])}, 95th percentile {plain(since['p95'])}"
        figures.append(("rounds since a client took part", text))
    return figures


def _epsilons(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the epsilon that the run claims, and then that of the other kind of draw."""
    figures = []
    draws = [("secret", "secret"), ("public", "known")]
    for draw, word in draws if privacy.get("draw") == "secret" else draws[::-1]:
        epsilon = privacy.get(f"epsilon_{draw}_draw")
        is_claimed = privacy.get("draw") == draw
        name = f"epsilon (draw {word})" if is_claimed else f"epsilon if the draw were {word}"
        if is_number(epsilon):
            figures.append((name, plain(epsilon)))
    return figures


def _whose(run: RunData, name: str, value: float) -> str:
    """Returns which of two means a metric of the test is, where clients' values tell."""
    if f"{name}_after" not in run.clients and name not in run.clients:
        return ""
    values = run.after(name)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    return ", mean client" if np.isclose(finite.mean(), value, rtol=1e-5) else ", all together"


def changed_options(run: RunData) -> list[tuple[str, str, str]]:
    """Returns the name, the value and the default of each option that differs from its default.

    Of a program of one's own, which has no defaults, all options, with empty defaults.
    """
    if run.task is None:
        return [(n, option_text(n, v), "") for n, v in run.options.items() if n != "task"]
    defaults = {name: d.default for name, d in run.task.options.declarations().items()}
    return [
        (name, option_text(name, value), option_text(name, defaults[name]))
        for name, value in run.options.items()
        if name in defaults and _as_json(value) != _as_json(defaults[name])
    ]


def command(run: RunData) -> str | None:
    """Returns the command that repeats a run of a binary; None for other programs."""
    if run.task is None or not str(run.options["task"]).startswith(OUR_TASKS):
        return None
    parts = [f"fedpersonal {run.task.name}"]
    for name, declared in run.task.options.declarations().items():
        value = run.options.get(name)
        if _as_json(value) == _as_json(declared.default):
            continue
        if isinstance(value, (list, tuple)):
            value = tuple(option_text(name, one) for one in value)
        elif value is not None and not isinstance(value, bool):
            value = option_text(name, value)
        parts += map(shlex.quote, declared.flags(value))
    return " \\\n  ".join(parts)


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
