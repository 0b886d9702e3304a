"""Learning curves as a picture; and colours, which are told apart."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedpersonal.errors import UserError
from fedpersonal.report.pictures import (
    COLORS,
    ROLES,
    SERIES,
    css_variables,
    plot_learning_curve,
    series_of,
)

TRAINING = "training, while clients adapt"


@pytest.fixture(name="draw")
def _draw(tmp_path, monkeypatch):
    """Returns a function that draws so many rounds, and returns the lines and axes of panels."""

    def draw(rounds, **columns):
        figures, save = [], Figure.savefig
        monkeypatch.setattr(
            Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
        )
        table = pd.DataFrame({"round": np.arange(1, rounds + 1), "seconds": 0.5, **columns})
        table.to_csv(tmp_path / "metrics.csv", index=False)
        plot_learning_curve(tmp_path / "metrics.csv", tmp_path / "c.png", title="a run")
        assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
        assert figures[-1].get_suptitle() == "a run"
        lines = {
            (ax.get_ylabel(), line.get_label()): line.get_xydata()
            for ax in figures[-1].axes
            for line in ax.get_lines()
        }
        return lines, {ax.get_ylabel(): ax.get_ylim() for ax in figures[-1].axes}

    return draw


def test_a_panel_a_metric_with_named_curves(draw):
    number = np.arange(1, 11)
    evaluated = np.where(number % 5 == 0, 3 / number, np.nan)
    lines, _ = draw(
        10,
        **{"train/loss": 1 / number, "train/rmse": 2 / number, "train/num_examples": 7},
        **{"eval/unseen/rmse": evaluated},
    )
    assert [*lines] == [
        *(("rmse", TRAINING), ("rmse", "evaluation, unseen"), ("loss", TRAINING)),
    ]
    np.testing.assert_allclose(lines["loss", TRAINING], np.stack([number, 1 / number], 1))
    np.testing.assert_allclose(lines["rmse", "evaluation, unseen"], [[5, 0.6], [10, 0.3]])
    assert [*draw(1, **{"train/loss": 1.0})[0]] == [("loss", TRAINING)]
    with pytest.raises(UserError, match="metrics.csv has no metrics"):
        draw(3)


def test_long_curves_are_averaged_and_their_start_does_not_flatten_them(draw):
    number = np.arange(1, 101)
    lines, _ = draw(100, **{"train/loss": np.where(number % 2 == 0, 1.0, 3.0)})
    averaged = lines["loss", f"{TRAINING} (mean of 4 rounds)"]
    np.testing.assert_allclose(averaged[10:90, 1], 2.0)
    _, ends = draw(50, **{"train/loss": np.where(number < 5, 100.0, 1 + number / 50)[:50]})
    assert 1.0 < ends["loss"][0] < 1.22 and 2.0 < ends["loss"][1] < 2.3


def luminance(color):
    """As WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_texts_and_marks_stand_out_from_their_paper(dark):
    colors = {name: pair[dark] for name, pair in ROLES.items()}
    for ground in (colors["paper"], colors["panel"]):
        assert contrast(colors["ink"], ground) >= 7 and contrast(colors["quiet"], ground) >= 4.5
    marks = [colors[name] for name in ("after", "worse", "device", "server", "focus", "before")]
    marks += [colors["training"], *(pair[dark] for pair in SERIES)]
    assert all(contrast(mark, colors["paper"]) >= 2.9 for mark in marks)
    assert len({pair[dark] for pair in SERIES}) == 10
    assert f"--series-9: {SERIES[9][dark]};" in css_variables(dark=dark)
    assert [light for light, _ in SERIES[: len(COLORS)]] == list(COLORS)


def test_a_method_keeps_its_colour():
    assert series_of(["furl", "fed_recon"]) == [2, 0]
    assert series_of(["own", "fed_recon", "other", "furl"]) == [1, 0, 3, 2]
    assert series_of(["fed_recon", "fed_recon"]) == [0, 1]
    assert len(set(series_of([f"own {i}" for i in range(10)]))) == 10
    assert len(series_of([f"own {i}" for i in range(25)])) == 25
