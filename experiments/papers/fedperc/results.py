"""What the runs of FedPerC's tables have come to, as numbers (Silva et al., Tables 1, 2 and 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers.fedperc import published_figures
from experiments.papers.fedperc.published_figures import SAMPLES
from experiments.papers.summarized_runs import SummarizedRun
from experiments.papers.sweep import mean_and_deviation
from fedpersonal.tasks.utterances.methods import METHODS

UNTRAINED = "base_model"
BASELINES = (
    "split_learning",
    "split_learning_fresh",
    "meta_learning",
    "meta_learning_fresh",
    UNTRAINED,
)
OURS = ("fedperc", "fedperc_generated")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the tables of perplexity.

    Attributes:
        name: Its name in files.
        title: Its name in tables.
        runs: The algorithm of its runs, or `UNTRAINED`.
        fine_tunes: Whether its results depend on how many samples a user gives.
    """

    name: str
    title: str
    runs: str
    fine_tunes: bool = True

    def results(self, summary: Mapping[str, Any], samples: str) -> Mapping[str, Any]:
        """Returns what a run's summary says of it, for one of `SAMPLES`."""
        return summary["by_samples"][samples if self.fine_tunes else "0"]


COLUMNS = (
    Column("fedperc", METHODS["fedperc"].title, "fedperc"),
    Column("fedperc_frozen", "FedPerC (Frozen)", "fedperc", fine_tunes=False),
    *(Column(name, METHODS[name].title, name) for name in METHODS if name != "fedperc"),
    Column(UNTRAINED, "Base model", UNTRAINED, fine_tunes=False),
)


def perplexities(
    source: str, split: str, runs: Mapping[str, Sequence[SummarizedRun]]
) -> list[dict[str, Any]]:
    """Returns a row for each column and number of samples.

    Args:
        source: The data set, by which the paper's figures are found.
        split: `known` or `withheld`.
        runs: Algorithm, or `UNTRAINED`, to a run a seed.
    """
    rows = []
    for column in COLUMNS:
        summaries = [run.summary() for run in runs[column.runs]]
        for samples in SAMPLES:
            values = [column.results(s, samples)["perplexity"] for s in summaries]
            mean, deviation = mean_and_deviation(values)
            paper = published_figures.perplexity(source, split, column.name, samples)
            rows.append(
                {
                    "split": split,
                    "method": column.name,
                    "samples": samples,
                    "perplexity": mean,
                    "perplexity_sd": deviation,
                    "paper": paper and paper[0],
                    "paper_sd": paper and paper[1],
                    "by_seed": values,
                }
            )
    return rows


def user_percentiles(runs: Mapping[str, Sequence[SummarizedRun]]) -> dict[str, dict[str, float]]:
    """Returns percentiles over users of the perplexity after all samples, means over seeds."""
    found = {}
    for column in COLUMNS:
        of_seeds = [
            column.results(run.summary(), SAMPLES[-1])["percentiles"]["perplexity"]
            for run in runs[column.runs]
        ]
        found[column.name] = {p: float(np.mean([own[p] for own in of_seeds])) for p in of_seeds[0]}
    return found


def lower_by(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns by how many per cent `OURS` are lower than each of `BASELINES`, at each split.

    Args:
        rows: From `perplexities`.

    Returns:
        A row for each split and two methods; `per_cent`, and `paper` or None, have a number for
        each of `SAMPLES`.
    """
    cells = {(row["split"], row["method"], row["samples"]): row for row in rows}
    found = []
    for split in dict.fromkeys(row["split"] for row in rows):
        for method in OURS:
            for baseline in BASELINES:
                pairs = [
                    (cells[split, method, samples], cells[split, baseline, samples])
                    for samples in SAMPLES
                ]
                published = all(own["paper"] and other["paper"] for own, other in pairs)
                found.append(
                    {
                        "split": split,
                        "method": method,
                        "baseline": baseline,
                        "per_cent": [_lower(*pair, "perplexity") for pair in pairs],
                        "paper": [_lower(*pair, "paper") for pair in pairs] if published else None,
                    }
                )
    return found


def memory(runs: Mapping[str, Sequence[SummarizedRun]]) -> list[dict[str, Any]]:
    """Returns, by method, bytes that a user keeps, receives and sends, with known users.

    However heads start, they are as large: there is one row for both.

    `personalisation` is what a user needs in memory beside the frozen base: what it keeps and what
    it receives; `per_cent` is its share of Split-Learning's.
    """
    rows = []
    for name, method in METHODS.items():
        if method.fresh_heads:  # As many bytes as those that start as the base's.
            continue
        summary = runs[name][0].summary()
        kept = summary["kept_bytes_per_client"] if method.keeps else 0
        received = summary["broadcast_bytes_per_client"]
        rows.append(
            {
                "method": name,
                "kept": kept,
                "received": received,
                "sent": summary["aggregated_bytes_per_client"],
                "personalisation": kept + received,
                "frozen": summary["frozen_bytes"],
            }
        )
    (heads,) = (row["personalisation"] for row in rows if row["method"] == "split_learning")
    return [{**row, "per_cent": 100 * row["personalisation"] / heads} for row in rows]


def embedding_shares(runs: Sequence[SummarizedRun]) -> dict[str, Any]:
    """Returns the shares of `embedding_specificity`, means over seeds, and how many there were."""
    summaries = [run.summary() for run in runs]
    found: dict[str, Any] = {name: summaries[0][name] for name in ("num_users", "num_pairs")}
    for name in ("beats_median", "beats_mean", "pairs_won"):
        values = [summary[name] for summary in summaries]
        # Where nobody has others to be compared with, there is no share.
        if None in values:
            found[name], found[f"{name}_sd"] = None, None
        else:
            found[name], found[f"{name}_sd"] = mean_and_deviation(values)
    return found


def _lower(own: Mapping[str, Any], other: Mapping[str, Any], name: str) -> float:
    return 100 * (1 - own[name] / other[name])
