"""Table 3 of the FURL paper, its learning curves (Figure 3) and maps of user embeddings (4, 5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.papers.furl.embedding_agreement import (
    Agreement,
    label_agreement,
    neighbour_agreement,
    value_agreement,
)
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete
from experiments.papers.sweep import Row, Sweep, choose_rows
from fedpersonal.algorithms.method import KeepingOptions, Method
from fedpersonal.simulation.model_file import read_model
from fedpersonal.tasks.documents.task import TASK

if TYPE_CHECKING:
    from fedpersonal.data.documents import Documents

TASKS = (TASK,)
_NEIGHBOURS = 10
_TABLE = "user_embedding/embeddings"
# By algorithm: the paper's name, and accuracy on Reddit and AUC on Sticker, in per cent.
_PAPER = {
    "centralized": ("Global Server", 28.93, 57.75),
    "centralized_personalized": ("Personalized Server", 66.13, 65.60),
    "fed_avg": ("Global FL", 11.90, 57.24),
    "furl": ("Personalized FL", 62.41, 65.63),
}


def _row(method: Method, local_state: str = "kept") -> Row:
    name, *figures = _PAPER.get(method.name, (method.title,))
    twin = "" if local_state == "kept" else " (stateless)"
    return Row(
        f"{name}{twin}",
        "reddit_{}" if method.is_federated else "reddit_{}_server",
        {"algorithm": method.name, "local_state": local_state},
        {} if twin else dict(zip(("accuracy", "auc"), figures)),
    )


_METHODS = TASK.methods.values()
ROWS = (
    *(_row(method) for method in _METHODS),
    *(
        _row(method, "rebuilt")
        for method in _METHODS
        if method.local_part and issubclass(method.options, KeepingOptions)
    ),
)
PAPER_ROWS = tuple(row for name in _PAPER for row in ROWS if row.values == {
    "algorithm": name, "local_state": "kept"})  # fmt: skip


def run(sweep: Sweep) -> Report:
    """Runs what is missing; returns the table, and draws learning curves and a map."""
    sweep = sweep.with_preset(quick=sweep.is_generated)
    rows = choose_rows(ROWS, sweep.rows, table="table 3") if sweep.rows else PAPER_ROWS
    source = sweep.read(TASK, "reddit_{}")
    runs = {row.name: sweep.runs(TASK, row, _folder(row)) for row in rows}
    every = [run for own in runs.values() for run in own]
    complete(every, source.describe(), isolated=sweep.isolated)
    metric = "auc" if source.is_binary else "accuracy"
    curves = ResultTable("learning_curves", {name: _curve(own) for name, own in runs.items()})
    names = ("users_most_frequent", "overall_most_frequent")
    guesses = {
        name: over_seeds(runs[rows[0].name], "guessing", name, scale=100).mean for name in names
    }
    draw(
        [curves],
        sweep.output_dir / "learning_curves.png",
        title=f"Learning curves on {source.name}",
        x_label="epochs of local training",
        y_label="validation accuracy (%)",
        baselines=[
            ("a user's most frequent label", guesses["users_most_frequent"]),
            ("the most frequent label", guesses["overall_most_frequent"]),
        ],
    )
    agreement = _draw_map(sweep, source, runs)
    about = source.describe()
    options = every[0].options
    parts = [
        f"# Table 3 of FURL on {source.name} (a stand-in: the paper's figures are of data that "
        "cannot be had)",
        f"{about['num_texts']:,} texts of {about['num_users']:,} users, {about['num_labels']} "
        f"labels; {every[0].summary['num_training_clients']:,} of the users take part. Preset "
        f"{sweep.preset}: {options.total_rounds:,} rounds of {options.clients_per_round} users; "
        f"{sweep.seeds_in_words()}.",
        *_tables(rows, runs, metric),
        f"Without reading: a user's most frequent label {guesses['users_most_frequent']:.1f} % "
        f"right, the most frequent one of all {guesses['overall_most_frequent']:.1f} %.",
        *_agreement_note(agreement),
    ]
    facts = {
        "data": about,
        "preset": sweep.preset,
        "metric": metric,
        "guessing": guesses,
        "user_embeddings": agreement,
    }
    return Report("table3", sweep.seeds, parts, hidden=[curves], facts=facts)


def _folder(row: Row) -> str:
    twin = "" if row.values["local_state"] == "kept" else "_stateless"
    return f"{row.values['algorithm']}{twin}"


def _tables(
    rows: Sequence[Row], runs: Mapping[str, Sequence[Run]], metric: str
) -> list[ResultTable]:
    name = "AUC" if metric == "auc" else "Accuracy"
    seen: dict[str, dict[str, Cell]] = {}
    unseen: dict[str, dict[str, Cell]] = {}
    for row in rows:
        own, title = runs[row.name], f"{name} %"
        published = row.published.get(metric)
        seen[row.name] = {title: over_seeds(own, "test", metric, scale=100, published=published)}
        first = own[0].summary
        if TASK.methods[row.values["algorithm"]].is_federated:
            sent = first["broadcast_bytes_per_client"] + first["aggregated_bytes_per_client"]
            seen[row.name]["MB a round"] = Cell((sent / 1e6,))
        if all(metric in (run.summary["unseen"] or ()) for run in own):
            unseen[row.name] = {
                title: over_seeds(own, "unseen", metric, scale=100),
                "hurt %": over_seeds(own, "unseen", "share_hurt", scale=100),
            }
    tables = [
        ResultTable(
            "seen",
            seen,
            f"{name} in per cent, on other texts of the users who train; and megabytes that a user "
            "receives and sends in a round:",
            digits=2,
        )
    ]
    if unseen:
        caption = (
            f"Users who never took part: {name} in per cent on the second half of their texts, "
            "after the first half has rebuilt what each of them lacks; and the share of them whose "
            "loss that raises:"
        )
        tables.append(ResultTable("unseen", unseen, caption, digits=2))
    return tables


def _curve(runs: Sequence[Run]) -> dict[float, Cell]:
    """Returns validation accuracy by epochs; an epoch is as many examples as there are."""
    tables = [run.record.metrics.set_index("round")["eval/accuracy"].dropna() for run in runs]
    users = runs[0].summary["num_training_clients"]
    a_round = min(runs[0].options.clients_per_round, users) / users
    return {n * a_round: Cell(tuple(100 * own[n] for own in tables)) for n in tables[0].index}


def _draw_map(
    sweep: Sweep, source: Documents, runs: Mapping[str, Sequence[Run]]
) -> dict[str, Any] | None:
    """Draws both embeddings of the users whom both know, and returns how alike they cluster.

    Returns None where an embedding is missing, or those users are too few to have neighbours.
    """
    names = [_PAPER[name][0] for name in ("centralized_personalized", "furl")]
    if not all(name in runs for name in names):
        return None
    first, second = (user_embeddings(runs[name][0]) for name in names)
    both = first.index.intersection(second.index)
    if len(both) <= _NEIGHBOURS:
        return None
    from experiments.papers.furl.embedding_map import plot_embeddings
    from fedpersonal.data.documents import most_frequent_labels

    train = TASK.split(source, runs[names[0]][0].options).train
    places = pd.Index(train.client_ids).get_indexer(both)
    embeddings = [table.loc[both].to_numpy() for table in (first, second)]
    if source.is_binary:
        clicks = np.bincount(train.example_clients, train.labels, train.num_clients)
        rates = (clicks / np.maximum(train.counts, 1))[places]
        of_users = {"values": rates, "values_name": "click rate"}
        own = [value_agreement(table, rates, k=_NEIGHBOURS) for table in embeddings]
        what = "rank correlation of a user's click rate with the neighbours'"
    else:
        labels = most_frequent_labels(train)[places]
        of_users = {"labels": labels, "label_names": source.label_names}
        own = [label_agreement(table, labels, k=_NEIGHBOURS) for table in embeddings]
        what = "neighbours with the same most frequent label"
    plot_embeddings(
        [
            (name, table, f"{what}: {agreement}")
            for name, table, agreement in zip(names, embeddings, own)
        ],
        sweep.output_dir / "user_embeddings.png",
        title=f"User embeddings on {source.name}",
        **of_users,
    )
    shared = neighbour_agreement(*embeddings, k=_NEIGHBOURS)
    found = dict(zip(("server", "federated", "shared_neighbours"), (*own, shared)))
    agreements = {name: dataclasses.asdict(agreement) for name, agreement in found.items()}
    return {"what": what, "num_users": len(both), "neighbours": _NEIGHBOURS, **agreements}


def user_embeddings(run: Run) -> pd.DataFrame:
    """Returns the embeddings of the users who have one, a row a user, by the user's name."""
    saved = read_model(run.path)
    if _TABLE in saved.weights:
        return pd.DataFrame(saved.weights[_TABLE], index=saved.names["user"])
    from fedpersonal.local_state.store import read_all
    from fedpersonal.tasks.training_run import STORE

    clients, values = read_all(run.path / STORE)
    return pd.DataFrame(values[_TABLE][:, 0], index=clients)


def _agreement_note(agreement: Mapping[str, Any] | None) -> list[str]:
    if agreement is None:
        return []
    server, federated, shared = (
        Agreement(**agreement[name]) for name in ("server", "federated", "shared_neighbours")
    )
    return [
        f"User embeddings, {agreement['neighbours']} nearest neighbours of "
        f"{agreement['num_users']:,} users: {agreement['what']}: {server} of the server's, "
        f"{federated} of the users' own. Share of a user's neighbours that are the same in both: "
        f"{shared}."
    ]
