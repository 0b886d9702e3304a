"""Table 3 of the FURL paper, its learning curves (Figure 3) and maps of user embeddings (4, 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers.furl.embedding_agreement import (
    label_agreement,
    neighbour_agreement,
    value_agreement,
)
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete
from experiments.papers.sweep import Row, Sweep, choose_rows
from fedpersonal.algorithms.method import KeepingOptions, Method
from fedpersonal.data.texts.labelled import LabelledTexts, most_frequent_labels
from fedpersonal.saved_model import read_saved_model
from fedpersonal.tasks.documents.task import TASK

_NEIGHBOURS = 10
_TABLE = "user_embedding/embeddings"
# By algorithm: the paper's name, and accuracy on Reddit and AUC on Sticker, in per cent.
_PAPER = {
    "centralized": ("Global Server", 28.93, 57.75),
    "centralized_personalized": ("Personalized Server", 66.13, 65.60),
    "fed_avg": ("Global FL", 11.90, 57.24),
    "furl": ("Personalized FL", 62.41, 65.63),
}
_GUESSES = {"users_most_frequent": "a user's most frequent label",
            "overall_most_frequent": "the most frequent label"}  # fmt: skip
_SEEN = (
    "{} in per cent, on other texts of the users who train; and megabytes that a user receives and "
    "sends in a round:"
)
_UNSEEN = (
    "Users who never took part: {} in per cent on the second half of their texts, after the first "
    "half has rebuilt what each of them lacks; and the share of them whose loss that raises:"
)


def _row(method: Method, local_state: str = "kept") -> Row:
    name, *figures = _PAPER.get(method.name, (method.title,))
    is_twin = local_state == "rebuilt"
    return Row(
        f"{name} (stateless)" if is_twin else name,
        "reddit_{}" if method.is_federated else "reddit_{}_server",
        {"algorithm": method.name, "local_state": local_state},
        {} if is_twin else dict(zip(("accuracy", "auc"), figures)),
    )


def _keeps(method: Method) -> bool:
    return bool(method.local_part) and issubclass(method.options, KeepingOptions)


_METHODS = TASK.methods.values()
ROWS = (*map(_row, _METHODS), *(_row(m, "rebuilt") for m in _METHODS if _keeps(m)))
PAPER_ROWS = tuple(row for name, *_ in _PAPER.values() for row in ROWS if row.name == name)


def run(sweep: Sweep) -> Report:
    """Runs what is missing; returns the table, and draws learning curves and a map."""
    sweep = sweep.with_preset(quick=sweep.is_generated)
    rows = choose_rows(ROWS, sweep.rows, table="table 3") if sweep.rows else PAPER_ROWS
    source = sweep.read(TASK, "reddit_{}")
    about = source.describe()
    runs = {}
    for row in rows:
        twin = "_stateless" if row.values["local_state"] == "rebuilt" else ""
        runs[row.name] = sweep.runs(TASK, row, f"{row.values['algorithm']}{twin}")
    every = [run for own in runs.values() for run in own]
    complete(every, about, isolated=sweep.isolated)
    metric = "auc" if source.is_binary else "accuracy"
    curves = ResultTable("learning_curves", {name: _curve(own) for name, own in runs.items()})
    guesses = {
        name: over_seeds(next(iter(runs.values())), "guessing", name, scale=100).mean
        for name in _GUESSES
    }
    draw(
        [curves],
        sweep.output_dir / "learning_curves.png",
        title=f"Learning curves on {source.name}",
        x_label="epochs of local training",
        y_label="validation accuracy (%)",
        baselines=[(_GUESSES[name], value) for name, value in guesses.items()],
    )
    agreement = _draw_map(sweep, source, runs)
    options = every[0].options
    users, overall = guesses.values()
    parts = [
        f"# Table 3 of FURL on {source.name} (a stand-in: the paper's figures are of data that "
        "cannot be had)",
        f"{about['num_texts']:,} texts of {about['num_users']:,} users, {about['num_labels']} "
        f"labels; {every[0].summary['num_training_clients']:,} of the users take part. Preset "
        f"{sweep.preset}: {options.total_rounds:,} rounds of {options.clients_per_round} users; "
        f"{sweep.seeds_in_words()}.",
        *_tables(rows, runs, metric),
        f"Without reading: a user's most frequent label {users:.1f} % right, the most frequent one "
        f"of all {overall:.1f} %.",
        *([agreement.pop("note")] if agreement else []),
    ]
    facts = {"data": about, "preset": sweep.preset, "guessing": guesses, "map": agreement}
    return Report("table3", sweep.seeds, parts, hidden=[curves], facts=facts)


def _tables(
    rows: Sequence[Row], runs: Mapping[str, Sequence[Run]], metric: str
) -> list[ResultTable]:
    name = "AUC" if metric == "auc" else "Accuracy"
    column = f"{name} %"
    seen: Cells = {}
    unseen: Cells = {}
    for row in rows:
        own, paper = runs[row.name], row.published.get(metric)
        first = own[0].summary
        seen[row.name] = {column: over_seeds(own, "test", metric, scale=100, published=paper)}
        if TASK.methods[str(row.values["algorithm"])].is_federated:
            sent = first["broadcast_bytes_per_client"] + first["aggregated_bytes_per_client"]
            seen[row.name]["MB a round"] = Cell((sent / 1e6,))
        if all(metric in (run.summary["unseen"] or ()) for run in own):
            unseen[row.name] = {
                column: over_seeds(own, "unseen", metric, scale=100),
                "hurt %": over_seeds(own, "unseen", "share_hurt", scale=100),
            }
    tables = [ResultTable("seen", seen, _SEEN.format(name), digits=2)]
    if unseen:
        digits: dict[Column, int] = {column: 2, "hurt %": 0}
        tables.append(ResultTable("unseen", unseen, _UNSEEN.format(name), digits))
    return tables


def _curve(runs: Sequence[Run]) -> dict[Column, Cell]:
    """Returns validation accuracy by epochs; an epoch is as many examples as there are."""
    tables = [run.record.metrics.set_index("round")["eval/accuracy"].dropna() for run in runs]
    users = runs[0].summary["num_training_clients"]
    a_round = min(runs[0].options.clients_per_round, users) / users
    return {n * a_round: Cell(tuple(100 * own[n] for own in tables)) for n in tables[0].index}


def user_embeddings(run: Run) -> pd.DataFrame:
    """Returns the embeddings of the users who have one, a row a user, by the user's name."""
    from fedpersonal.local_state.store import LOCAL_STATE, read_all

    saved = read_saved_model(run.path)
    if _TABLE in saved.weights:
        return pd.DataFrame(saved.weights[_TABLE], index=saved.about["names"]["user"])
    clients, values = read_all(run.path / LOCAL_STATE)
    return pd.DataFrame(values[_TABLE][:, 0], index=clients)


def _draw_map(
    sweep: Sweep, source: LabelledTexts, runs: Mapping[str, Sequence[Run]]
) -> dict[str, Any] | None:
    """Draws both embeddings of the users whom both know, and returns how alike they cluster.

    Returns None where an embedding is missing, or those users are too few to have neighbours.
    """
    from experiments.papers.furl.embedding_map import plot_embeddings

    names = [_PAPER[name][0] for name in ("centralized_personalized", "furl")]
    if not all(name in runs for name in names):
        return None
    first, second = (user_embeddings(runs[name][0]) for name in names)
    both = first.index.intersection(second.index)
    if len(both) <= _NEIGHBOURS:
        return None
    server = runs[names[0]][0]
    train = server.task.split(source, server.options).train
    places = pd.Index(train.client_ids).get_indexer(both)
    tables = [table.loc[both].to_numpy() for table in (first, second)]
    if source.is_binary:
        clicks = np.bincount(train.example_clients, train.labels, train.num_clients)
        rates = (clicks / np.maximum(train.counts, 1))[places]
        own = [value_agreement(table, rates, k=_NEIGHBOURS) for table in tables]
        of_users = {"values": rates, "values_name": "click rate"}
        what = "rank correlation of a user's click rate with the neighbours'"
    else:
        labels = most_frequent_labels(train)[places]
        own = [label_agreement(table, labels, k=_NEIGHBOURS) for table in tables]
        of_users = {"labels": labels, "label_names": source.label_names}
        what = "neighbours with the same most frequent label"
    panels = [(n, table, f"{what}: {agreement}") for n, table, agreement in zip(names, tables, own)]
    title = f"User embeddings on {source.name}"
    plot_embeddings(panels, sweep.output_dir / "user_embeddings.png", title=title, **of_users)
    shared = neighbour_agreement(*tables, k=_NEIGHBOURS)
    found = {"server": own[0], "federated": own[1], "shared_neighbours": shared}
    note = (
        f"User embeddings, {_NEIGHBOURS} nearest neighbours of {len(both):,} users: {what}: "
        f"{own[0]} of the server's, {own[1]} of the users' own. Share of a user's neighbours that "
        f"are the same in both: {shared}."
    )
    agreements = {name: dataclasses.asdict(agreement) for name, agreement in found.items()}
    return {"note": note, "what": what, "num_users": len(both), **agreements}
