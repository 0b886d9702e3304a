"""`report.html`: a finished run to look at, with all that it needs in one file."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import os
import pathlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import numpy as np

import fedpersonal
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better, unit_of
from fedpersonal.evaluation.guess import CHANCE, GUESS, strongest
from fedpersonal.files import to_json, write_text
from fedpersonal.report import run as numbers
from fedpersonal.report.charts import boundary_groups, curve_panels, embedding_map
from fedpersonal.report.clients import client_names, dots, judge, percentile_rows
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
from fedpersonal.runs.validation import find_best_round, passes_sentence

REPORT = "report.html"
PAGE = pathlib.Path(__file__).parent / "page"
# In this order; each file may use what is above it.
_SCRIPTS = ("base.js", "curves.js", "points.js", "tables.js", "start.js")


class Page(pathlib.PosixPath):
    """The path of a written page; a notebook shows what the page says first."""

    def _repr_html_(self) -> str | None:
        """Returns the verdict and the key figures; None where there is no page of a run."""
        if self.name != REPORT or not self.exists():
            return None
        run = read_run(self.parent, only_last=True)
        return (
            _environment()
            .get_template("notebook.jinja")
            .render(run=run, verdict=judge(run), figures=key_figures(run), page=self)
        )


def write_report(
    folder: str | os.PathLike,
    *,
    show_clients: bool = False,
    failure: str | None = None,
    only_last: bool = False,
) -> Page:
    """Writes `report.html` to the folder of a finished run.

    Args:
        folder: The folder, of a binary or of a program that gave it to `Trainer.fit`.
        show_clients: Whether the page has clients' names, and the items and texts of any data;
            else it is made to be shared: clients are numbered by their rank, and items and texts
            are those of public data alone.
        failure: What has ended the run before its time; such a run need not be finished.
        only_last: Whether files of other rounds than the last, such as a `per_client.csv` from
            before a run went on, are left out; else they are an error.

    Returns:
        The file, which a notebook shows in short.

    Raises:
        UserError: It is no finished run's folder, or a file is damaged or cannot be written.
    """
    run = read_run(folder, failure=failure, only_last=only_last)
    path = Page(run.path / REPORT)
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
        data["map"] = embedding_map(run, show_clients=show_clients)
        texts, recommendations = _samples(run, show_clients=show_clients)
    return render(
        "report.jinja",
        data=data,
        run=run,
        verdict=judge(run),
        figures=key_figures(run),
        meanings=meanings(run, shown_metrics(run)),
        validation=_validation(run),
        percents=PERCENTILES,
        percentiles=percentile_rows(run),
        boundary=boundary_groups(run),
        options=changed_options(run),
        command=command(run),
        texts=texts,
        recommendations=recommendations,
        show_clients=show_clients,
        show_items=show_clients or run.is_public,
    )


def _validation(run: RunData) -> str:
    """Returns a sentence on the round, or the passes of clients alone, that validated best."""
    alone = run.summary.get("standalone")
    if alone:
        return f"{_capital(passes_sentence(alone))}."
    entry = run.summary.get("validation") or {}
    metrics = [entry["metric"]] if isinstance(entry.get("metric"), str) else run.task_metrics
    best = find_best_round(run.rounds, metrics)
    if best is None:
        return ""
    tested = entry.get("tested_round")
    unit = unit_of(run.meaning(best.metric))
    return f"{_capital(best.sentence(unit, tested if is_number(tested) else None))}."


def _capital(sentence: str) -> str:
    return f"{sentence[0].upper()}{sentence[1:]}"


def _samples(run: RunData, *, show_clients: bool) -> tuple[Texts, Recommendations]:
    """Returns texts and recommendations with what the page calls their clients."""
    names, guesses = client_names(run, show_clients=show_clients), {}

    def called(client: str) -> str:
        return names.get(client, shown(client) if show_clients else "a client")

    texts = read_texts(run.path, rounds=run.summary.get("rounds"))
    found = read_recommendations(run.path)
    if f"{found.metric}{GUESS}" in run.clients:
        guesses = run.clients.set_index("client")[f"{found.metric}{GUESS}"].to_dict()
    clients = [
        dataclasses.replace(one, client=called(one.client), guess=guesses.get(one.client))
        for one in found.clients
    ]
    texts = dataclasses.replace(texts, clients=[*map(called, texts.clients)])
    return texts, dataclasses.replace(found, clients=clients)


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
        label=numbers.label,
        count="{:,}".format,
        rating="{:g}".format,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


class Figure(NamedTuple):
    """What a run came to, or took.

    Attributes:
        name: Its name.
        text: Its value.
        beside: What is to be seen with it, such as the guess that it must beat.
        metric: The label of its metric; empty of others.
    """

    name: str
    text: str
    beside: Sequence[str] = ()
    metric: str = ""


def shown_metrics(run: RunData) -> list[str]:
    """Returns the metrics of a run that a page shows, those of the test first."""
    rounds = [name.rpartition("/")[2] for name in run.round_metrics]
    return [*dict.fromkeys([*_test_metrics(run), *run.client_metrics, *rounds])]


def _test_metrics(run: RunData) -> list[str]:
    """Returns the metrics of the test, those that the task prints first, and the loss last."""
    found = [
        name
        for name, value in run.test.items()
        if is_number(value) and not name.startswith("num_") and name != "share_hurt"
    ]
    usual = find_metrics(run.task_metrics, found)
    places = {name: place for place, name in enumerate(usual)}
    return sorted(found, key=lambda name: (name == "loss", places.get(name, len(usual))))


def meanings(run: RunData, metrics: Iterable[str]) -> dict[str, str]:
    """Returns what metrics mean, in words, by their labels; those that nobody knows are missing."""
    better = {True: "; lower is better", False: "; higher is better", None: ""}
    found = {name: run.meaning(name) for name in metrics}
    return {label(n): told + better[lower_is_better(n)] for n, told in found.items() if told}


def key_figures(run: RunData) -> list[Figure]:
    """Returns what a run came to, each metric beside what it must beat, and what it took."""
    test, figures = run.test, []
    before, counting = test.get("before") or {}, test.get("num_clients_of") or {}
    chance = (test.get("guesses") or {}).get(CHANCE) or {}
    for name in _test_metrics(run):
        base = name.removesuffix("_after")
        if name.endswith("_before") and f"{name.removesuffix('_before')}_after" in test:
            continue  # It stands beside the figure after.
        guess, score = strongest(test.get("guesses"), base) or ("", None)
        earlier = before.get(name, test.get(f"{base}_before"))
        others = {"before": earlier, shown(guess): score, CHANCE: chance.get(name)}
        notes = [f"{what}: {plain(v, 4)}" for what, v in others.items() if is_number(v)]
        notes += [f"{counting[name]:,} clients"] if is_number(counting.get(name)) else []
        whose = label(name) + _whose(run, name, test[name])
        figures.append(Figure(whose, plain(test[name], 4), notes, label(base)))
    counts = {
        "clients tested": test.get("num_clients"),
        "clients without a query set": test.get("num_clients_without_query") or None,
        "examples": test.get("num_examples"),
        "rounds": len(run.rounds),
    }
    costs = [(name, f"{value:,}") for name, value in counts.items() if is_number(value)]
    costs += _attendance(run, test)
    seconds = run.rounds["seconds"].sum() if len(run.rounds) else None
    if seconds:
        costs.append(("time in rounds", f"{plain(float(seconds))} s"))
    if run.bytes_per_client:
        costs.append(("sent and received, each client, each round", size(run.bytes_per_client)))
    costs += _epsilons(run.summary.get("privacy") or {})
    return [*figures, *(Figure(name, text) for name, text in costs)]


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
    unread = run.task.unread_options(run.options)
    for name, declared in run.task.options.declarations().items():
        value = run.options.get(name)
        if name in unread or _as_json(value) == _as_json(declared.default):
            continue
        if isinstance(value, (list, tuple)):
            value = tuple(option_text(name, one) for one in value)
        elif value is not None and not isinstance(value, bool):
            value = option_text(name, value)
        parts += map(shlex.quote, declared.flags(value))
    return " \\\n  ".join(parts)


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
