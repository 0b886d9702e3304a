"""Pages: templates of `page/`, with all that they need in one file."""

from __future__ import annotations

import base64
import functools
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jinja2

import fedpersonal
from fedpersonal.files import to_json
from fedpersonal.report import numbers
from fedpersonal.simulation.palette import css_variables

PAGE = pathlib.Path(__file__).parent / "page"
# In this order; each file may use what is above it.
_SCRIPTS = ("base.js", "curves.js", "dots.js", "histograms.js", "scatter.js", "start.js")


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
        size=numbers.size,
        shown=numbers.shown,
        rating="{:g}".format,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment
