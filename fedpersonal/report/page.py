"""`report.html`: the page of a finished run, in one file that needs no other."""

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
from fedpersonal.evaluation.baselines import BASELINE_SUFFIX, CHANCE, strongest
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better, unit_of
from fedpersonal.files import to_json, write_text
from fedpersonal.report import run as numbers
from fedpersonal.report.charts import boundary_groups, curve_panels, embedding_map
from fedpersonal.report.clients import client_names, dots, judge, percentile_rows
from fedpersonal.report.pictures import css_variables
from fedpersonal.report.run import (
    OUR_TASKS,
    RunData,
    format_number,
    format_size,
    is_number,
    label,
    option_text,
    read_run,
    shorten,
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
# In this order; each file may use names of the files before it.
_SCRIPTS = ("base.js", "curves.js", "points.js", "tables.js", "start.js")


class Page(pathlib.PosixPath):
    """The path of a written page; notebooks show the page's verdict and key figures."""

    def _repr_html_(self) -> str | None:
        """Returns the verdict and the key figures; None if the path is not a run's page."""
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
        folder: The folder, written by a command or by `Trainer.fit`.
        show_clients: Whether the page has clients' names, and the items and texts of any data.
            Otherwise the page can be shared: it numbers clients by rank, and shows items and
            texts of public data only.
        failure: Why the run ended early; such a run need not be finished.
        only_last: Whether to leave out files of earlier rounds than the last, such as a
            `per_client.csv` from before the run was resumed; otherwise they are an error.

    Returns:
        The file; a notebook shows its key figures.

    Raises:
        UserError: If the folder is no finished run's, or a file is damaged or cannot be written.
    """
    run = read_run(folder, failure=failure, only_last=only_last)
    path = Page(run.path / REPORT)
    write_text(path, report_page(run, show_clients=show_clients))
    return path


def report_page(run: RunData, *, show_clients: bool = False) -> str:
    """Returns the page of a run, with or without clients' names."""
    data = {
        "curves": {"panels": curve_panels(run)},
        "dots": dots(run, show_clients=show_clients),
        "map": None,
    }
    texts, recommendations = Texts(), Recommendations()
    # Failed runs lack the files of a run's end: model, texts and recommendations.
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
    """Returns a sentence on the best round on validation clients, or passes of local training."""
    local_training = run.summary.get("standalone")
    if local_training:
        return f"{_capital(passes_sentence(local_training))}."
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
    """Returns texts and recommendations, with clients named as on the page."""
    names, by_baseline = client_names(run, show_clients=show_clients), {}

    def page_name(client: str) -> str:
        return names.get(client, shorten(client) if show_clients else "a client")

    texts = read_texts(run.path, rounds=run.summary.get("rounds"))
    picks = read_recommendations(run.path)
    if f"{picks.metric}{BASELINE_SUFFIX}" in run.clients:
        by_baseline = run.clients.set_index("client")[f"{picks.metric}{BASELINE_SUFFIX}"].to_dict()
    clients = [
        dataclasses.replace(one, client=page_name(one.client), guess=by_baseline.get(one.client))
        for one in picks.clients
    ]
    texts = dataclasses.replace(texts, clients=[*map(page_name, texts.clients)])
    return texts, dataclasses.replace(picks, clients=clients)


def render(template: str, *, data: Mapping[str, Any], **context: Any) -> str:
    """Returns a page.

    Args:
        template: A file of `page/`, which extends `base.jinja`.
        data: The data of charts, by name: `<figure data-chart="curves" data-key="name">`.
        **context: Variables of the template, which are escaped.
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
        number=numbers.format_number,
        percent=numbers.format_percent,
        shorten=numbers.shorten,
        label=numbers.label,
        count="{:,}".format,
        rating="{:g}".format,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


class Figure(NamedTuple):
    """A result or a cost of a run.

    Attributes:
        name: The name.
        text: The value.
        notes: Figures to compare with, such as the baseline's.
        metric: The label of the metric; empty if the figure is not a metric.
    """

    name: str
    text: str
    notes: Sequence[str] = ()
    metric: str = ""


def shown_metrics(run: RunData) -> list[str]:
    """Returns the metrics of a run that a page shows; metrics of the test come first."""
    rounds = [name.rpartition("/")[2] for name in run.round_metrics]
    return [*dict.fromkeys([*_test_metrics(run), *run.client_metrics, *rounds])]


def _test_metrics(run: RunData) -> list[str]:
    """Returns the metrics of the test: first those that the task prints; the loss is last."""
    metrics = [
        name
        for name, value in run.test.items()
        if is_number(value) and not name.startswith("num_") and name != "share_hurt"
    ]
    usual = find_metrics(run.task_metrics, metrics)
    places = {name: place for place, name in enumerate(usual)}
    return sorted(metrics, key=lambda name: (name == "loss", places.get(name, len(usual))))


def meanings(run: RunData, metrics: Iterable[str]) -> dict[str, str]:
    """Returns the definitions of metrics in words, by label, without those that are unknown."""
    better = {True: "; lower is better", False: "; higher is better", None: ""}
    definitions = {name: run.meaning(name) for name in metrics}
    return {label(n): text + better[lower_is_better(n)] for n, text in definitions.items() if text}


def key_figures(run: RunData) -> list[Figure]:
    """Returns the metrics of a run, each with figures to compare with, and its costs."""
    test, figures = run.test, []
    before, counting = test.get("before") or {}, test.get("num_clients_of") or {}
    chance = (test.get("guesses") or {}).get(CHANCE) or {}
    for name in _test_metrics(run):
        base = name.removesuffix("_after")
        if name.endswith("_before") and f"{name.removesuffix('_before')}_after" in test:
            continue  # The figure after personalisation has it as a note.
        baseline, score = strongest(test.get("guesses"), base) or ("", None)
        earlier = before.get(name, test.get(f"{base}_before"))
        references = {"before": earlier, shorten(baseline): score, CHANCE: chance.get(name)}
        notes = [f"{n}: {format_number(v, 4)}" for n, v in references.items() if is_number(v)]
        notes += [f"{counting[name]:,} clients"] if is_number(counting.get(name)) else []
        title = label(name) + _averaging(run, name, test[name])
        figures.append(Figure(title, format_number(test[name], 4), notes, label(base)))
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
        costs.append(("time in rounds", f"{format_number(float(seconds))} s"))
    if run.bytes_per_client:
        costs.append(("sent and received per client and round", format_size(run.bytes_per_client)))
    costs += _epsilons(run.summary.get("privacy") or {})
    return [*figures, *(Figure(name, text) for name, text in costs)]


def _attendance(run: RunData, test: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns figures of seen clients never sampled, and of the rounds since participation."""
    figures, never, since = [], test.get("never_drawn"), test.get("rounds_since")
    if isinstance(never, dict) and is_number(never.get("num_clients")):
        text, metric = f"{never['num_clients']:,}", run.main_metric or ""
        if is_number(never.get(metric)):
            text += f", with {label(metric)} {format_number(never[metric], 4)}"
        figures.append(("seen clients never sampled", text))
    if isinstance(since, dict) and is_number(since.get("p50")) and is_number(since.get("p95")):
        text = (
            f"median {format_number(since['p50'])}, 95th percentile {format_number(since['p95'])}"
        )
        figures.append(("rounds since a client last took part", text))
    return figures


def _epsilons(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the epsilon that the run claims, then that of the other kind of sampling."""
    figures = []
    kinds = ["secret", "public"]
    for kind in kinds if privacy.get("draw") == "secret" else kinds[::-1]:
        epsilon = privacy.get(f"epsilon_{kind}_draw")
        is_claimed = privacy.get("draw") == kind
        name = f"epsilon ({kind} sampling)" if is_claimed else f"epsilon if sampling were {kind}"
        if is_number(epsilon):
            figures.append((name, format_number(epsilon)))
    return figures


def _averaging(run: RunData, name: str, value: float) -> str:
    """Returns how a metric of the test is averaged; empty if clients' values do not show it."""
    if f"{name}_after" not in run.clients and name not in run.clients:
        return ""
    values = run.after(name)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    is_mean = np.isclose(finite.mean(), value, rtol=1e-5)
    return ", mean over clients" if is_mean else ", pooled over examples"


def changed_options(run: RunData) -> list[tuple[str, str, str]]:
    """Returns the name, the value and the default of each option that differs from its default.

    For a user program, which has no defaults, it returns all options, with empty defaults.
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
    """Returns the command that repeats a run; None for user programs."""
    if run.task is None or not str(run.options["task"]).startswith(OUR_TASKS):
        return None
    parts = [f"fedpersonal {run.task.name}"]
    ignored = run.task.ignored_options(run.options)
    for name, declared in run.task.options.declarations().items():
        value = run.options.get(name)
        if name in ignored or _as_json(value) == _as_json(declared.default):
            continue
        if isinstance(value, (list, tuple)):
            value = tuple(option_text(name, one) for one in value)
        elif value is not None and not isinstance(value, bool):
            value = option_text(name, value)
        parts += map(shlex.quote, declared.flags(value))
    return " \\\n  ".join(parts)


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
