"""Recommendation from implicit feedback: methods on negatives that leak nothing, and that leak.

In both tables a user's held-out item is ranked among 99 sampled ones, and among all that the user
has not in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from experiments.papers import differences
from experiments.papers.reproduction import Reproduction, Row, choose_rows
from experiments.papers.result_table import Cell, Cells, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete
from fedpersonal.data.ratings.interactions import Interactions
from fedpersonal.evaluation.client_metric import ClientMetric
from fedpersonal.options import Value
from fedpersonal.tasks.interactions.data import NEGATIVES
from fedpersonal.tasks.interactions.task import TASK

PRESET = "interactions_quick"
HR, NDCG, HR_ALL, NDCG_ALL = "HR@10", "NDCG@10", "HR@10 of all", "NDCG@10 of all"
COLUMNS = {HR: "hr@10", NDCG: "ndcg@10", HR_ALL: "hr@10_all", NDCG_ALL: "ndcg@10_all"}
_COMPARED = (HR, NDCG_ALL)
_FAIR, LEAKING = NEGATIVES
_CAPTIONS = {
    _FAIR: "**Negatives are any items that a user has not in training**, a held-out one as likely "
    "as any other (`--negatives=unobserved_in_training`).",
    LEAKING: "**Negatives are never held-out items** (`--negatives=never_held_out`), as in the "
    "public code of PFedRec: who learns which items are no negatives knows what is held out.",
}
_ABOUT = """\
Each user's last interaction is held out ({split}), and ranked among {sampled} items that the user \
has never chosen; *of all*: among all that it has not in training. All figures are percentages. \
*Paper*: on MovieLens-1M, from the literature at second hand; FedNCF has 60.6 and 33.3 there."""


def _row(name: str, hr: float | None = None, ndcg: float | None = None, **values: Value) -> Row:
    return Row(name, PRESET, values, {} if hr is None else {HR: hr, NDCG: ndcg})


# A guess: it trains nothing, and draws no negatives.
POPULARITY = _row("Popularity")
FEDMF = _row("FedMF", 65.2, 39.4, algorithm="furl", client_learning_rate=1.0, l2=0.01)
PFEDREC = _row("PFedRec", 73.3, 44.4)
CENTRAL = _row(
    "Central matrix factorization",
    algorithm="centralized",
    client_optimizer="adam",
    client_learning_rate=0.003,
    server_optimizer="sgd",
    server_learning_rate=1.0,
    local_steps=0,
    l2=0.003,
    total_rounds=48,
    rounds_per_eval=12,
)
ROWS = (
    POPULARITY,
    FEDMF,
    _row(
        "FedRecon",
        64.5,
        37.8,
        algorithm="fed_recon",
        client_learning_rate=1.0,
        reconstruction_learning_rate=10.0,
        max_reconstruction_steps=20,
        total_rounds=300,
    ),
    PFEDREC,
    _row(
        "FedAvg + fine-tuning",
        algorithm="fed_avg_finetuning",
        client_learning_rate=5.0,
        finetuning_learning_rate=1.0,
        finetuning_epochs=1,
        total_rounds=300,
    ),
    # By itself a client needs no sample: it takes all items that may be negatives.
    _row(
        "Local training",
        algorithm="local_only",
        client_optimizer="adam",
        client_batch_size=1000,
        finetuning_learning_rate=0.1,
        finetuning_epochs=5,
        support_negatives=0,
        embedding_dim=2,
    ),
    CENTRAL,
)
# What the validation items of the leaking protocol favour: they leak, too.
_OF_LEAKING: dict[Row, dict[str, Value]] = {PFEDREC: {"client_learning_rate": 10.0}}
# More users take part in a round, as there are more of them; a server's passes are longer.
_OF_1M: dict[str, Value] = {"clients_per_round": 300, "rounds_per_eval": 100}
_CENTRAL_1M: dict[str, Value] = {"total_rounds": 12, "rounds_per_eval": 6}


def run(asked: Reproduction) -> Report:
    """Runs what is missing, and returns the table."""
    rows = choose_rows(ROWS, asked.rows, table="recommendation")
    source = asked.read(TASK, PRESET)
    trained = [row for row in rows if row is not POPULARITY]
    runs = {negatives: _runs(asked, source, trained, negatives) for negatives in NEGATIVES}
    every = [run for by_row in runs.values() for own in by_row.values() for run in own]
    complete(every, source.describe(), isolated=asked.isolated)
    split = "by time" if source.times is not None else "drawn by chance, since there are no times"
    guess, suffix = [], source.candidates_suffix
    if POPULARITY in rows:
        guess = _popularity(asked, source)
    parts: list[str | ResultTable] = [
        f"# Recommendation on {source.name}\n\n{asked.seeds_in_words().capitalize()}. "
        + _ABOUT.format(split=split, sampled="up to 99" if suffix else "99"),
        differences.ABOUT,
    ]
    for negatives, own in runs.items():
        cells = _cells(own, guess, suffix)
        parts.append(ResultTable(negatives, cells, _CAPTIONS[negatives]))
    return Report("recommendation", asked.seeds, parts, facts={"data": source.describe()})


def _runs(
    asked: Reproduction, source: Interactions, rows: Sequence[Row], negatives: str
) -> dict[Row, list[Run]]:
    """Returns the runs of a protocol, one a seed."""
    found = {}
    for row in rows:
        own: dict[str, Value] = {"negatives": negatives}
        if source.name == "movielens-1m":
            own.update(_CENTRAL_1M if row is CENTRAL else _OF_1M)
        if negatives == LEAKING:
            own.update(_OF_LEAKING.get(row, {}))
        folder = f"{negatives}/{row.name.lower().replace(' + ', '_').replace(' ', '_')}"
        found[row] = asked.runs(TASK, row, folder, note=f", {negatives}", **own)
    return found


def _popularity(asked: Reproduction, source: Interactions) -> list[pd.DataFrame]:
    """Returns the guess' clients, a table a seed: without training, negatives do not matter."""
    from fedpersonal.tasks.interactions.guesses import rank_by_popularity

    tables = []
    for seed in asked.seeds:
        data = TASK.split(source, TASK.options(**asked.values(TASK, PRESET, seed=seed)))
        ranks = rank_by_popularity(data, data.test)
        tables.append(pd.DataFrame({"client": data.test.query.client_ids, **ranks}).dropna())
    return tables


def _cells(runs: Mapping[Row, Sequence[Run]], guess: Sequence[pd.DataFrame], suffix: str) -> Cells:
    """Returns the figures of a protocol, and each row's differences from FedMF."""
    columns = {
        name: key if key.endswith("_all") else f"{key}{suffix}" for name, key in COLUMNS.items()
    }
    metrics = {name: ClientMetric(key, weights=None, scale=100) for name, key in columns.items()}
    cells: Cells = {}
    tables: dict[str, Sequence[pd.DataFrame]] = {}
    if guess:
        tables[POPULARITY.name] = guess
        cells[POPULARITY.name] = {
            name: Cell(tuple(metric.overall(table) for table in guess))
            for name, metric in metrics.items()
        }
    for row, own in runs.items():
        # Users who left too few items are not ranked.
        ranked = [*columns.values()]
        tables[row.name] = [run.record.per_client.dropna(subset=ranked) for run in own]
        cells[row.name] = {
            name: over_seeds(own, "test", key, scale=100, published=row.published.get(name))
            for name, key in columns.items()
        }
    for name, table in tables.items() if FEDMF in runs else ():
        if name != FEDMF.name:
            for column in _COMPARED:
                found = differences.difference(table, tables[FEDMF.name], metrics[column])
                cells[name][f"{column} − FedMF's"] = found
    return cells
