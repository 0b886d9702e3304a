"""Recommendation from implicit feedback: methods with negatives that do not leak, and that leak.

In both tables, a user's held-out item is ranked among 99 sampled items, and among all items that
are not in the user's training data. The rows are PFedRec and other methods. A third table has the
share of each method's lead over popularity that remains without the leak.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedpersonal.evaluation.client_metrics import ClientMetric, paired_share
from fedpersonal.options import Value
from fedpersonal.suite.papers.jobs import Job
from fedpersonal.suite.papers.reproduction import Reproduction, Row, choose_rows
from fedpersonal.suite.papers.table import (
    DIFFERENCES,
    Cell,
    Column,
    Line,
    Report,
    Table,
    behind,
    figure,
)
from fedpersonal.suite.readers.interactions import Interactions
from fedpersonal.suite.tasks.ranking.task import TASK

PRESET = "interactions_quick"
HR, NDCG, HR_ALL, NDCG_ALL = "HR@10", "NDCG@10", "HR@10 of all", "NDCG@10 of all"
COLUMNS = {HR: "hr@10", NDCG: "ndcg@10", HR_ALL: "hr@10_all", NDCG_ALL: "ndcg@10_all"}
FAIR, LEAKY = "fair", "leaky_negatives"
_CAPTIONS = {
    FAIR: "**Negatives are any items without training interactions of the user**, held-out items "
    "with the same probability as others.",
    LEAKY: "**Negatives are never held-out items** (`--leaky_negatives`), as in the public code of "
    "PFedRec: a model that learns which items are no negatives knows the held-out ones.",
}
_REMAINS = """\
**Share of each lead that remains without the leak**, in per cent: a method's lead over popularity \
in the first table, divided by its lead in the second. At 100, the leak gives the method nothing; \
at 0, all of its lead; below 0, the method is behind popularity without the leak. Brackets have \
the 95 % interval of a paired bootstrap over the test clients; the number after ± is the standard \
deviation over seeds. A method without a lead with the leak has no share."""
_ABOUT = """\
Each user's last interaction is held out ({split}), and ranked among {sampled} items that the user \
has never chosen; *of all*: among all items that are not in the user's training data. All figures \
are percentages. *Paper*: on MovieLens-1M, from secondary literature."""


def _row(name: str, *paper: float, **values: Value) -> Row:
    return Row(name, PRESET, values, dict(zip((HR, NDCG), paper)))


# A baseline, without training and negatives.
POPULARITY = _row("Popularity")
FEDMF = _row("FedMF", 65.2, 39.4, method="furl", client_learning_rate=1.0, l2=0.01)
FEDRECON = _row(
    "FedRecon",
    64.5,
    37.8,
    method="fed_recon",
    client_learning_rate=1.0,
    reconstruction_learning_rate=10.0,
    max_reconstruction_steps=20,
    total_rounds=300,
)
PFEDREC = _row("PFedRec", 73.3, 44.4)
# Its paper's scores have no biases.
FEDNCF = _row(
    "FedNCF",
    60.6,
    33.3,
    method="furl",
    hidden_units=(32, 16, 8),
    use_biases=False,
    l2=0.003,
    total_rounds=300,
)
FEDRAP = _row(
    "FedRAP",
    method="fedrap",
    client_learning_rate=1.0,
    local_learning_rate=1.0,
    l2=0.01,
    item_difference=0.01,
    item_sparsity=0.0003,
    total_rounds=300,
)
CENTRAL = _row(
    "Central matrix factorization",
    method="centralized",
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
    FEDRECON,
    PFEDREC,
    FEDNCF,
    FEDRAP,
    _row(
        "FedAvg + fine-tuning",
        method="fed_avg_finetuning",
        client_learning_rate=5.0,
        finetuning_learning_rate=1.0,
        finetuning_epochs=1,
        total_rounds=300,
    ),
    # In local training, all possible negatives are used, without sampling.
    _row(
        "Local training",
        method="local_only",
        client_optimizer="adam",
        client_batch_size=1000,
        finetuning_learning_rate=0.1,
        standalone_epochs=5,
        support_negatives=0,
        embedding_dim=2,
    ),
    CENTRAL,
)
# The compared metrics, and the rows with which others are compared.
_COMPARED = tuple((metric, row) for row in (FEDMF, FEDRECON) for metric in (HR, NDCG_ALL))
# The best options on validation items of the leaky protocol, which leak, too.
_LEAKY_OPTIONS: dict[Row, dict[str, Value]] = {
    PFEDREC: {"client_learning_rate": 30.0},
    FEDNCF: {"l2": 0.0},
}
# With more users, more take part in a round; all methods have the same number of rounds. Passes of
# centralised training are longer, so they are fewer.
_OPTIONS_1M: dict[str, Value] = {
    "clients_per_round": 300,
    "total_rounds": 300,
    "rounds_per_eval": 100,
}
_CENTRAL_1M: dict[str, Value] = {"total_rounds": 12, "rounds_per_eval": 6}


def run(request: Reproduction) -> Report:
    """Runs the missing runs, and returns the tables."""
    rows = choose_rows(ROWS, request.rows, table="recommendation")
    source = request.read(TASK, PRESET)
    jobs = {
        (row, protocol): [] if row is POPULARITY else _jobs(request, source, row, protocol)
        for protocol in _CAPTIONS
        for row in rows
    }
    request.complete(source, *jobs.values())
    split = "by time" if source.times is not None else "at random, since the data have no times"
    suffix = source.candidates_suffix
    baseline = _popularity(request, source)
    lines = {
        protocol: [
            Line(row.name, row_jobs, row.published, () if row_jobs else baseline)
            for row in rows
            for row_jobs in [jobs[row, protocol]]
        ]
        for protocol in _CAPTIONS
    }
    parts: list[str | Table] = [
        f"# Recommendation on {source.name}\n\n{request.seeds_in_words().capitalize()}. "
        + _ABOUT.format(split=split, sampled="up to 99" if suffix else "99"),
        DIFFERENCES,
    ]
    for protocol, caption in _CAPTIONS.items():
        columns = _columns(lines[protocol], suffix)
        parts.append(Table.of(protocol, (lines[protocol], columns), caption=caption))
    trained = [line for line in lines[FAIR] if line.jobs]
    shares = [
        _share(title, lines[LEAKY], baseline, metric) for title, metric in _metrics(suffix).items()
    ]
    if trained:
        parts.append(Table.of("remains", (trained, shares), caption=_REMAINS))
    return Report("recommendation", request.seeds, parts, facts={"data": source.describe()})


def _jobs(request: Reproduction, source: Interactions, row: Row, protocol: str) -> list[Job]:
    """Returns the jobs of a row by a protocol."""
    options: dict[str, Value] = {"leaky_negatives": protocol == LEAKY}
    if source.name == "movielens-1m":
        options.update(_CENTRAL_1M if row is CENTRAL else _OPTIONS_1M)
    if protocol == LEAKY:
        options.update(_LEAKY_OPTIONS.get(row, {}))
    folder = f"{protocol}/{row.name.lower().replace(' + ', '_').replace(' ', '_')}"
    return request.jobs(TASK, row, folder, note=f", {protocol}", **options)


def _popularity(request: Reproduction, source: Interactions) -> list[pd.DataFrame]:
    """Returns the test clients by popularity, a table per seed, which no negatives change."""
    from fedpersonal.suite.tasks.ranking.data import rank_by_popularity

    tables = []
    for data in request.splits(TASK, source, PRESET):
        ranks = rank_by_popularity(data, data.test)
        tables.append(pd.DataFrame({"client": data.test.query.client_ids, **ranks}).dropna())
    return tables


def _columns(lines: Sequence[Line], suffix: str) -> list[Column]:
    """Returns figures, and differences on users with enough items to be ranked."""
    metrics = _metrics(suffix)
    counted = [metric.column for metric in metrics.values()]
    return [
        *(
            figure(name, "test", metric.column, scale=100, metric=metric)
            for name, metric in metrics.items()
        ),
        *(
            behind(f"{name} − {row.name}'s", lines, row.name, metrics[name], counted=counted)
            for name, row in _COMPARED
        ),
    ]


def _metrics(suffix: str) -> dict[str, ClientMetric]:
    """Returns the metrics by their columns' titles."""
    return {
        name: ClientMetric(
            key if key.endswith("_all") else f"{key}{suffix}", weights=None, scale=100
        )
        for name, key in COLUMNS.items()
    }


def _share(
    title: str, leaky: Sequence[Line], baseline: Sequence[pd.DataFrame], metric: ClientMetric
) -> Column:
    """Returns the column of the share of a lead over the baseline that remains without the leak."""
    leaky_lines = {line.name: line for line in leaky}

    def cell(line: Line) -> Cell | None:
        without, with_leak, reference = (
            [table.dropna(subset=[metric.column]) for table in clients]
            for clients in (line.clients, leaky_lines[line.name].clients, baseline)
        )
        share = paired_share(without, with_leak, reference, metric)
        if share is None:
            return None
        by_seed, (low, high) = share
        return Cell(tuple((100 * by_seed).tolist()), interval=(100 * low, 100 * high))

    return Column(title, cell)
