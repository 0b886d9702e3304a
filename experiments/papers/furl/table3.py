"""Table 3 of the FURL paper, its learning curves (Figure 3) and maps of user embeddings (4, 5)."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from fedpersonal.data.documents import most_frequent_labels
from fedpersonal.tasks.documents.choice import DocumentChoice
from fedpersonal.tasks.documents.methods import METHODS

from experiments.papers.compared_curves import plot_curves
from experiments.papers.furl.embedding_agreement import (
    Agreement,
    label_agreement,
    neighbour_agreement,
    value_agreement,
)
from experiments.papers.furl.embedding_map import Panel, plot_embeddings
from experiments.papers.furl.runs import complete, user_embeddings, validation_curve
from experiments.papers.presets import Preset
from experiments.papers.summarized_runs import SummarizedRun
from experiments.papers.sweep import as_github_table, mean_and_deviation, with_deviation
from fedpersonal.atomic_files import write_csv, write_json, write_text
from fedpersonal.errors import UserError
from fedpersonal.simulation.pictures import COLORS
from fedpersonal.tasks.documents.data import DocumentData

_NEIGHBOURS = 10
# Accuracy on Reddit and AUC on Sticker, in per cent.
_PAPER = {
    "centralized": (28.93, 57.75),
    "centralized_personalized": (66.13, 65.60),
    "fed_avg": (11.90, 57.24),
    "furl": (62.41, 65.63),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        algorithm: The method.
        local_state: `kept`, or `rebuilt` for the stateless twin of a method that keeps.
    """

    algorithm: str
    local_state: str = "kept"

    @property
    def name(self) -> str:
        """Its name in the table, and by which it is chosen."""
        title = METHODS[self.algorithm].title
        # Without a comma, at which `--rows` is parted.
        return title if self.local_state == "kept" else f"{title} (stateless)"

    @property
    def folder(self) -> str:
        """Names the folder of its runs."""
        return self.algorithm if self.local_state == "kept" else f"{self.algorithm}_stateless"


ROWS = (
    *(Row(algorithm) for algorithm in METHODS),
    *(Row(algorithm, "rebuilt") for algorithm, method in METHODS.items() if method.local_layers),
)
PAPER_ROWS = tuple(row for row in ROWS if row.algorithm in _PAPER and row.local_state == "kept")


def choose_rows(names: Sequence[str]) -> tuple[Row, ...]:
    """Returns the rows of these names, in the table's order; the paper's four for no names.

    Raises:
        UserError: If a name is no row's.
    """
    known = [row.name for row in ROWS]
    for name in names:
        if name not in known:
            raise UserError(
                f"--rows: {name!r} is no row of table 3; these are: {'; '.join(known)}."
            )
    return tuple(row for row in ROWS if row.name in names) if names else PAPER_ROWS


def run(
    choice: DocumentChoice,
    preset: Preset,
    output_dir: str,
    *,
    seeds: Sequence[int],
    rows: Sequence[Row] = PAPER_ROWS,
    scale_rounds: float = 1.0,
    isolated: bool = True,
) -> str:
    """Runs what is missing; writes `table3.md`, `.json`, `.csv`, learning curves and a map.

    Args:
        choice: The labelled texts.
        preset: The hyperparameters.
        output_dir: Receives the table, the pictures and the runs.
        seeds: Seeds to run each row with.
        rows: The rows, some of `ROWS`.
        scale_rounds: Factor of the rounds.
        isolated: Whether each run has a process of its own.

    Returns:
        The table as Markdown.

    Raises:
        UserError: If a run diverges or its folder holds another one.
    """
    folder = pathlib.Path(output_dir)
    runs = {
        (row, seed): SummarizedRun(
            f"{row.name}, seed {seed}",
            folder / row.folder / f"seed_{seed}",
            preset.options_of(
                row.algorithm,
                scale_rounds=scale_rounds,
                local_state=row.local_state,
                text_length=choice.text_length,
                seed=seed,
            ),
        )
        for seed in seeds
        for row in rows
    }
    complete(list(runs.values()), choice, isolated=isolated)
    data = choice.load(seed=seeds[0])
    metric = "auc" if data.is_binary else "accuracy"
    measured = [_measure(row, [runs[row, seed] for seed in seeds], metric) for row in rows]
    guesses = _guesses([runs[rows[0], seed] for seed in seeds])
    points = pd.concat(
        [
            _curve(runs[row, seed], data).assign(name=row.name, seed=seed)
            for row in rows
            for seed in seeds
        ],
        ignore_index=True,
    )
    agreement = _draw_map(folder, data, runs, seeds[0])
    _draw_curves(folder, data, points, guesses)
    title = _heading(choice, preset, data, len(seeds), next(iter(runs.values())).options)
    markdown = "\n\n".join(
        [title, *_tables(measured, metric, guesses), *_agreement_notes(agreement)]
    )
    write_csv(folder / "table3.csv", points.to_dict("records"))
    write_json(
        folder / "table3.json",
        {
            "data": choice.describe(),
            "preset": preset.name,
            "seeds": list(seeds),
            "metric": metric,
            "rows": measured,
            "guessing": guesses,
            "user_embeddings": agreement,
        },
    )
    write_text(folder / "table3.md", markdown)
    return markdown


def _measure(row: Row, runs: Sequence[SummarizedRun], metric: str) -> dict[str, Any]:
    summaries = [run.summary() for run in runs]
    tests = [100 * summary["test"][metric] for summary in summaries]
    measured: dict[str, Any] = {
        "name": row.name,
        "algorithm": row.algorithm,
        "local_state": row.local_state,
        "paper": _PAPER.get(row.algorithm, (None, None))[metric == "auc"]
        if row.local_state == "kept"
        else None,
    }
    measured["test"], measured["test_sd"] = mean_and_deviation(tests)
    withheld = [summary["withheld"] for summary in summaries]
    if all(results is not None and metric in results for results in withheld):
        for name, values in (
            ("withheld", [100 * w[metric] for w in withheld]),
            ("withheld_hurt", [100 * (w["share_hurt"] or 0.0) for w in withheld]),
        ):
            measured[name], measured[f"{name}_sd"] = mean_and_deviation(values)
    measured["megabytes"] = (
        sum(summaries[0][f"{way}_bytes_per_client"] for way in ("broadcast", "aggregated")) / 1e6
    )
    measured["is_federated"] = METHODS[row.algorithm].is_federated
    return measured


def _guesses(runs: Sequence[SummarizedRun]) -> dict[str, float]:
    """Returns the mean accuracy, in per cent, of guesses that read no text."""
    guesses = [run.summary()["guessing"] for run in runs]
    return {name: 100 * float(np.mean([g[name] for g in guesses])) for name in guesses[0]}


def _curve(run: SummarizedRun, data: DocumentData) -> pd.DataFrame:
    """Returns validation accuracy by epochs; an epoch is as many examples as there are."""
    curve = validation_curve(run)
    a_round = min(run.options.clients_per_round, data.num_users) / data.num_users
    return pd.DataFrame({"epoch": curve.index * a_round, "accuracy": 100 * curve.to_numpy()})


def _draw_curves(
    folder: pathlib.Path, data: DocumentData, points: pd.DataFrame, guesses: Mapping[str, float]
) -> None:
    curves = []
    for name, own in points.groupby("name", sort=False):
        over_seeds = own.groupby("epoch")["accuracy"].agg(["mean", "std"]).fillna(0.0)
        curves.append((name, over_seeds.reset_index().to_numpy()))
    # Each picture has as many curves as there are colors.
    for number, first in enumerate(range(0, len(curves), len(COLORS)), start=1):
        plot_curves(
            curves[first : first + len(COLORS)],
            folder / ("learning_curves.png" if number == 1 else f"learning_curves_{number}.png"),
            title=f"Learning curves on {data.name}",
            x_label="epochs of local training",
            y_label="validation accuracy (%)",
            baselines=[
                ("a user's most frequent label", guesses["users_most_frequent"]),
                ("the most frequent label", guesses["overall_most_frequent"]),
            ],
        )


def _draw_map(
    folder: pathlib.Path,
    data: DocumentData,
    runs: Mapping[tuple[Row, int], SummarizedRun],
    seed: int,
) -> dict[str, Any] | None:
    """Draws both embeddings of the users whom both know, and returns how alike they cluster.

    Returns None where an embedding is missing, or those users are too few to have neighbours.
    """
    server, federated = Row("centralized_personalized"), Row("furl")
    if (server, seed) not in runs or (federated, seed) not in runs:
        return None
    first, second = (user_embeddings(runs[row, seed]) for row in (server, federated))
    both = first.index.intersection(second.index)
    if len(both) <= _NEIGHBOURS:
        return None
    first, second = first.loc[both].to_numpy(), second.loc[both].to_numpy()
    places = pd.Index(data.train.client_ids).get_indexer(both)
    if data.is_binary:
        counts = np.maximum(data.train.counts, 1)
        clicks = np.bincount(data.train.example_clients, data.train.labels, len(counts)) / counts
        of_users = {"values": clicks[places], "values_name": "click rate"}
        own = [value_agreement(x, clicks[places], k=_NEIGHBOURS) for x in (first, second)]
        what = "rank correlation of a user's click rate with the neighbours'"
    else:
        labels = most_frequent_labels(data.train)[places]
        of_users = {"labels": labels, "label_names": data.label_names}
        own = [label_agreement(x, labels, k=_NEIGHBOURS) for x in (first, second)]
        what = "neighbours with the same most frequent label"
    plot_embeddings(
        [
            Panel(row.name, embeddings, f"{what}: {_with_chance(agreement)}")
            for row, embeddings, agreement in zip((server, federated), (first, second), own)
        ],
        folder / "user_embeddings.png",
        title=f"User embeddings on {data.name}",
        **of_users,
    )
    return {
        "what": what,
        "num_users": len(both),
        "neighbours": _NEIGHBOURS,
        "server": dataclasses.asdict(own[0]),
        "federated": dataclasses.asdict(own[1]),
        "shared_neighbours": dataclasses.asdict(neighbour_agreement(first, second, k=_NEIGHBOURS)),
    }


def _with_chance(agreement: Agreement) -> str:
    return f"{agreement.measured:.2f} (chance {agreement.chance:.2f})"


def _heading(
    choice: DocumentChoice, preset: Preset, data: DocumentData, num_seeds: int, options: Any
) -> str:
    about = choice.describe()
    seeds = (
        f"mean ± standard deviation over {num_seeds} seeds"
        if num_seeds > 1
        else "a single seed, hence no standard deviation"
    )
    return (
        f"# Table 3 of FURL on {about['dataset']} (a stand-in: the paper's figures are of data "
        f"that cannot be had)\n\n{about['num_texts']:,} texts of {about['num_users']:,} users, "
        f"{about['num_labels']} labels; {len(data.withheld.client_ids):,} users are withheld. "
        f"Preset {preset.name}: {options.total_rounds:,} rounds of {options.clients_per_round} "
        f"users; {seeds}."
    )


def _tables(
    measured: Sequence[Mapping[str, Any]], metric: str, guesses: Mapping[str, float]
) -> list[str]:
    rows, others = [], []
    for row in measured:
        paper = "–" if row["paper"] is None else f"{row['paper']:.2f}"
        sent = f"{row['megabytes']:.2f}" if row["is_federated"] else "–"
        rows.append([row["name"], paper, _with_deviation(row, "test"), sent])
        if "withheld" in row:
            others.append(
                [row["name"], _with_deviation(row, "withheld")] + [f"{row['withheld_hurt']:.0f}"]
            )
    name = "AUC" if metric == "auc" else "Accuracy"
    tables = [
        f"{name} in per cent, on other texts of the users who train; and megabytes that a user "
        "receives and sends in a round:",
        as_github_table(rows, ["", "paper", "measured", "MB a round"]),
        f"Without reading: a user's most frequent label {guesses['users_most_frequent']:.1f} % "
        f"right, the most frequent one of all {guesses['overall_most_frequent']:.1f} %.",
    ]
    if others:
        tables += [
            f"Users who never took part: {name} in per cent on the second half of their texts, "
            "after the first half has rebuilt what each of them lacks; and the share of them "
            "whose loss that raises:",
            as_github_table(others, ["", name, "hurt, %"]),
        ]
    return tables


def _with_deviation(row: Mapping[str, Any], name: str) -> str:
    return with_deviation(row[name], row[f"{name}_sd"], digits=2)


def _agreement_notes(agreement: Mapping[str, Any] | None) -> list[str]:
    if agreement is None:
        return []
    server, federated, shared = (
        _with_chance(Agreement(**agreement[name]))
        for name in ("server", "federated", "shared_neighbours")
    )
    return [
        f"User embeddings, {agreement['neighbours']} nearest neighbours of "
        f"{agreement['num_users']:,} users: {agreement['what']}: {server} of the server's, "
        f"{federated} of the users' own. Share of a user's neighbours that are the same in both: "
        f"{shared}."
    ]
