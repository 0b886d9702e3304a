"""Colours: of one meaning each, and told apart."""

from fedpersonal.simulation.palette import COLORS, ROLES, SERIES, css_variables, series_of


def luminance(color):
    """As WCAG 2 defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_texts_and_marks_stand_out_from_their_paper():
    for dark in (0, 1):
        paper, panel = ROLES["paper"][dark], ROLES["panel"][dark]
        for ground in (paper, panel):
            assert contrast(ROLES["ink"][dark], ground) >= 7
            assert contrast(ROLES["quiet"][dark], ground) >= 4.5
        for role in ("after", "hurt", "device", "server", "focus", "training", "before"):
            assert contrast(ROLES[role][dark], paper) >= 2.9, role
        assert all(contrast(pair[dark], paper) >= 2.9 for pair in SERIES)


def test_series_are_those_of_pictures():
    assert [light for light, _ in SERIES[: len(COLORS)]] == list(COLORS)
    assert len({light for light, _ in SERIES}) == len({dark for _, dark in SERIES}) == 10
    assert "--hurt: #ff8a80;" in css_variables(dark=True)
    assert "--series-9: " in css_variables(dark=False)


def test_a_method_keeps_its_colour():
    assert series_of(["furl", "fed_recon"]) == [2, 0]
    assert series_of(["own", "fed_recon", "other", "furl"]) == [1, 0, 3, 2]
    assert series_of(["fed_recon", "fed_recon"]) == [0, 1]
    assert len(set(series_of([f"own {i}" for i in range(10)]))) == 10
    assert len(series_of([f"own {i}" for i in range(25)])) == 25
