"""What FedPerC's paper reports (Silva et al., EACL Findings 2023, Tables 1, 2 and 3)."""

from __future__ import annotations

METHODS = ("fedperc", "fedperc_frozen", "fedperc_generated", "split_learning", "meta_learning")
SAMPLES = ("1", "5", "15", "all")

# By data set and split: perplexity's mean and standard deviation over 15 seeds, a row for each of
# `SAMPLES` and a column for each of `METHODS`.
_PERPLEXITY = {
    ("reddit", "known"): (
        ((219.5, 35.7), (146.2, 2.3), (120.2, 1.4), (1297.5, 21.9), (226.2, 3.7)),
        ((131.6, 10.1), (136.9, 3.4), (123.3, 2.8), (994.3, 27.8), (234.7, 5.1)),
        ((111.4, 3.5), (132.6, 4.7), (120.0, 3.3), (691.3, 34.3), (227.1, 8.4)),
        ((189.5, 6.7), (167.9, 2.0), (124.9, 1.3), (930.4, 30.9), (241.4, 2.1)),
    ),
    ("tv_shows", "known"): (
        ((57.2, 3.6), (50.3, 1.6), (51.6, 1.3), (359.4, 28.2), (111.7, 4.6)),
        ((51.5, 1.5), (50.7, 2.1), (51.7, 2.0), (244.5, 15.1), (110.0, 6.5)),
        ((48.8, 1.7), (51.0, 2.1), (51.7, 2.0), (167.7, 8.6), (111.9, 6.1)),
        ((46.7, 1.7), (51.2, 2.0), (52.1, 2.6), (82.1, 3.3), (113.0, 4.7)),
    ),
    ("reddit", "withheld"): (
        ((594.3, 973.8), (202.0, 5.9), (117.3, 1.8), (922.9, 27.8), (213.9, 6.0)),
        ((139.4, 4.4), (202.9, 10.9), (117.5, 2.7), (655.9, 18.8), (212.2, 5.4)),
        ((117.4, 1.9), (203.6, 11.2), (116.6, 2.6), (449.2, 11.4), (211.7, 3.7)),
        ((101.1, 2.2), (202.2, 7.6), (117.9, 2.8), (309.3, 8.3), (212.8, 5.2)),
    ),
    ("tv_shows", "withheld"): (
        ((205.1, 292.2), (96.4, 10.4), (68.7, 5.9), (283.6, 30.9), (113.5, 13.1)),
        ((68.6, 5.6), (90.1, 4.9), (66.7, 6.3), (220.7, 29.2), (111.4, 13.3)),
        ((62.1, 5.0), (97.6, 6.8), (66.1, 5.5), (158.1, 20.0), (117.3, 10.5)),
        ((52.3, 3.3), (98.2, 9.5), (68.6, 5.1), (96.7, 14.5), (114.2, 17.0)),
    ),
}

# Milliseconds of a pass, mean and standard deviation, on an NVIDIA A40.
TRAIN_PASS = {
    "fedperc": (88.18, 24.104),
    "fedperc_frozen": (43.57, 11.99),
    "fedperc_generated": (55.96, 12.41),
    "split_learning": (222.08, 37.55),
    "meta_learning": (111.81, 22.33),
}
TEST_PASS = {
    "fedperc": (40.37, 11.76),
    "fedperc_frozen": (40.25, 12.10),
    "fedperc_generated": (47.02, 12.63),
    "split_learning": (65.42, 16.49),
    "meta_learning": (36.77, 8.95),
}

# Of the memory of separate heads, in per cent.
MEMORY_PERCENT = 0.001


def perplexity(source: str, split: str, method: str, samples: str) -> tuple[float, float] | None:
    """Returns a perplexity of Table 1 or 2 and its standard deviation.

    Args:
        source: The data set, such as `tv_shows`.
        split: `known` or `withheld`.
        method: A method; the paper does not say how heads start, so its figures stand for both.
        samples: One of `SAMPLES`.

    Returns:
        None of what the paper does not report.
    """
    rows = _PERPLEXITY.get((source, split))
    method = method.removesuffix("_fresh")
    if rows is None or method not in METHODS:
        return None
    return rows[SAMPLES.index(samples)][METHODS.index(method)]
