"""Table 3 of the FURL paper, its learning curves (Figure 3) and maps of user embeddings (4, 5).

Its two forms are a class of a text, here a comment's subreddit, and a yes or no, here whether the
user likes a film. Beside the paper's rows stand what must be beaten: guesses that read nothing,
local training alone, and FedAvg with fine-tuning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers import differences
from experiments.papers.furl.accuracy_differences import GUESS, difference_table
from experiments.papers.furl.compared_embeddings import compare_embeddings
from experiments.papers.furl.linear_model import measure_linear
from experiments.papers.reproduction import Reproduction, Row, choose_rows
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, check_splits, complete, share_training
from fedpersonal.algorithms.method import KeepingOptions, Method
from fedpersonal.data.ratings.movielens import movielens_1m_file
from fedpersonal.data.texts.films import FILMS_1M_FILES
from fedpersonal.data.texts.labelled import LabelledTexts
from fedpersonal.errors import UserError
from fedpersonal.options import Value
from fedpersonal.tasks.documents.data import LABEL_OF_ALL, RATE_OF_ALL, USERS_LABEL, USERS_RATE
from fedpersonal.tasks.documents.task import TASK

# By algorithm: the paper's name, and accuracy on Reddit and AUC on Sticker, in per cent.
_PAPER = {
    "centralized": ("Global Server", 28.93, 57.75),
    "centralized_personalized": ("Personalized Server", 66.13, 65.60),
    "fed_avg": ("Global FL", 11.90, 57.24),
    "furl": ("Personalized FL", 62.41, 65.63),
}
_RIVALS = ("local_only", "fed_avg_finetuning")
# By algorithm and kind, what the preset does not have. A model of one's own starts from nothing: it
# needs more steps than a shared one's copy.
_OWN: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "local_only": {
        "reddit": {"finetuning_learning_rate": 3.0, "finetuning_epochs": 20},
        "films": {"finetuning_learning_rate": 1.0, "finetuning_epochs": 10},
    },
    "fed_avg": {"films": {"client_learning_rate": 0.3}},
    "fed_avg_finetuning": {"films": {"client_learning_rate": 0.3}},
    "per_fed_avg": {
        "films": {
            "client_learning_rate": 0.3,
            "support_query_split": "shared",
            "adaptation_learning_rate": 0.1,
            "adaptation_steps": 10,
        }
    },
}
_GUESSES = {
    "accuracy": {USERS_LABEL: GUESS, LABEL_OF_ALL: "The most frequent label"},
    "auc": {USERS_RATE: "A user's own rate", RATE_OF_ALL: "The rate of all"},
}  # fmt: skip
_LINEAR = "Central linear model"
_SEEN = (
    "{}: {} in per cent, on other texts of the users who train; and megabytes that a user receives "
    "and sends in a round:"
)
_UNSEEN = (
    "Users who never took part: {} in per cent on the second half of their texts, after the first "
    "half has rebuilt what each of them lacks; and the share of them whose loss that raises:"
)


def _row(method: type[Method], local_state: str = "kept") -> Row:
    name, *figures = _PAPER.get(method.name, (method.title,))
    is_twin = local_state == "rebuilt"
    return Row(
        f"{name} (stateless)" if is_twin else name,
        "{kind}_{}" if method.is_federated else "{kind}_{}_server",
        {"algorithm": method.name, "local_state": local_state},
        {} if is_twin else dict(zip(("accuracy", "auc"), figures)),
    )


def _keeps(method: type[Method]) -> bool:
    return bool(method.local_part) and issubclass(method.options, KeepingOptions)


_METHODS = TASK.methods.values()
ROWS = (*map(_row, _METHODS), *(_row(m, "rebuilt") for m in _METHODS if _keeps(m)))
PAPER_ROWS = tuple(row for name, *_ in _PAPER.values() for row in ROWS if row.name == name)
USUAL_ROWS = (
    *PAPER_ROWS,
    *(row for name in _RIVALS for row in ROWS if row.values["algorithm"] == name),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """The table on one data set.

    Attributes:
        asked: What is asked of it.
        source: Its texts.
        rows: Its rows.
        runs: The runs of each row, by the row's name; and those of the linear model.
    """

    asked: Reproduction
    source: LabelledTexts
    rows: Sequence[Row]
    runs: Mapping[str, Sequence[Run]]

    @property
    def metric(self) -> str:
        """What is measured."""
        return "auc" if self.source.is_binary else "accuracy"

    @property
    def every(self) -> list[Run]:
        """All runs."""
        return [run for own in self.runs.values() for run in own]


def run(asked: Reproduction) -> Report:
    """Runs what is missing; returns the tables, and draws learning curves and maps."""
    forms = [plan(own) for own in ask(asked)]
    for form in forms:
        check_splits([form.every[0]], isolated=asked.isolated)
    for form in forms:
        complete(form.every, form.source.describe(), isolated=asked.isolated)
    parts: list[str | ResultTable] = [
        "# Table 3 of FURL (a stand-in: the paper's figures are of data that cannot be had)"
    ]
    curves, facts = [], {}
    for form in forms:
        curves.append(_draw_curves(form))
        agreement = _compare(form)
        parts += [_about(form), *_tables(form)]
        own = {row.name: form.runs[row.name] for row in form.rows}
        differing = difference_table(form.source, own, _PAPER["furl"][0])
        if differing and differences.ABOUT not in parts:
            parts.append(differences.ABOUT)
        parts += differing
        parts += [agreement.pop("note")] if agreement else []
        told = {"data": form.source.describe(), "preset": form.asked.preset, "map": agreement}
        facts[form.source.name] = told
    return Report("table3", asked.seeds, parts, hidden=curves, facts={"forms": facts})


def ask(asked: Reproduction) -> list[Reproduction]:
    """Returns what is asked of each data set: that which is named, or comments and films."""
    if asked.dataset != "auto" or asked.given.get("text_file"):
        return [asked]
    films = "movielens_100k"
    folder = asked.given.get("data_dir")
    if folder:
        try:
            movielens_1m_file(str(folder), FILMS_1M_FILES)
            films = "movielens_1m"
        except UserError:  # The page names the films that there are.
            pass
    return [asked, asked.replace(given={**asked.given, "dataset": films})]


def plan(asked: Reproduction) -> Form:
    """Reads the data of one form and settles its runs."""
    kind = "films" if asked.dataset.startswith("movielens") else "reddit"
    asked = asked.with_preset(quick=asked.is_generated or asked.dataset == "movielens_100k")
    rows = choose_rows(ROWS, asked.rows, table="table 3") if asked.rows else USUAL_ROWS
    rows = [_of_kind(row, kind) for row in rows]
    source = asked.read(TASK, f"{kind}_{{}}")
    runs: dict[str, Sequence[Run]] = {}
    for row in rows:
        twin = "_stateless" if row.values["local_state"] == "rebuilt" else ""
        folder = f"{source.name}/{row.values['algorithm']}{twin}"
        runs[row.name] = asked.runs(TASK, row, folder)
    shared = iter(share_training([run for own in runs.values() for run in own]))
    runs = {name: [next(shared) for _ in own] for name, own in runs.items()}
    first = runs[rows[0].name]
    if first[0].options.values()["text_encoder"] == "hashed_words":
        runs[_LINEAR] = [
            Run(
                f"{_LINEAR}, {own.path.name.replace('_', ' ')}",
                asked.output_dir / source.name / "linear" / own.path.name,
                TASK,
                own.trainer.values,
                own.trainer,
                measure_linear,
            )
            for own in first
        ]
    return Form(asked, source, rows, runs)


def _of_kind(row: Row, kind: str) -> Row:
    """Returns a row with the hyperparameters of comments, `reddit`, or of `films`."""
    values = {**row.values, **_OWN.get(str(row.values["algorithm"]), {}).get(kind, {})}
    return dataclasses.replace(row, preset=row.preset.replace("{kind}", kind), values=values)


def _about(form: Form) -> str:
    about, first = form.source.describe(), form.every[0]
    options = first.options
    return (
        f"## {form.source.name}\n\n{about['num_texts']:,} texts of {about['num_users']:,} users, "
        f"{about['num_labels']} labels; {first.summary['num_training_clients']:,} of the users "
        f"take part. Preset {form.asked.preset}: {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users; {form.asked.seeds_in_words()}."
    )


def _tables(form: Form) -> list[ResultTable]:
    metric = form.metric
    name = "AUC" if metric == "auc" else "Accuracy"
    column = f"{name} %"
    seen: Cells = {}
    unseen: Cells = {}
    for row in form.rows:
        own, paper = form.runs[row.name], row.published.get(metric)
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
    if _LINEAR in form.runs:
        seen[_LINEAR] = {column: over_seeds(form.runs[_LINEAR], "test", metric, scale=100)}
    first_row = form.runs[form.rows[0].name]
    with_unseen = next((form.runs[name] for name in unseen), None)
    for key, guess in _GUESSES[metric].items():
        seen[guess] = {column: over_seeds(first_row, "test", "guesses", key, metric, scale=100)}
        if with_unseen:
            path = ("unseen", "guesses", key, metric)
            unseen[guess] = {column: over_seeds(with_unseen, *path, scale=100)}
    prefix = form.source.name
    tables = [ResultTable(f"{prefix}_seen", seen, _SEEN.format(prefix, name), digits=2)]
    if unseen:
        digits: dict[Column, int] = {column: 2, "hurt %": 0}
        caption = _UNSEEN.format(name)
        tables.append(ResultTable(f"{prefix}_unseen", unseen, caption, digits))
    return tables


def _draw_curves(form: Form) -> ResultTable:
    """Draws validation accuracy by epochs of the rows that train, and returns its points."""
    name = form.source.name
    curves = {
        row.name: _curve(form.runs[row.name])
        for row in form.rows
        if form.runs[row.name][0].trained_by is None
        and TASK.methods[str(row.values["algorithm"])].trains
    }
    points = ResultTable(f"{name}_learning_curves", curves)
    guesses = _GUESSES["accuracy"].items()
    first = form.runs[form.rows[0].name]
    if curves:
        draw(
            [points],
            form.asked.output_dir / name / "learning_curves.png",
            title=f"Learning curves on {name}",
            x_label="epochs of local training",
            y_label="validation accuracy (%)",
            baselines=[
                (n, over_seeds(first, "test", "guesses", k, "accuracy", scale=100).mean)
                for k, n in guesses
            ],
        )
    return points


def _curve(runs: Sequence[Run]) -> dict[Column, Cell]:
    """Returns validation accuracy by epochs; an epoch is as many examples as there are."""
    tables = [run.record.metrics.set_index("round")["eval/accuracy"].dropna() for run in runs]
    users = runs[0].summary["num_training_clients"]
    a_round = min(runs[0].options.clients_per_round, users) / users
    return {n * a_round: Cell(tuple(100 * own[n] for own in tables)) for n in tables[0].index}


def _compare(form: Form) -> dict[str, Any] | None:
    """Compares the embeddings of a server and of users; None where one is missing."""
    names = [_PAPER[name][0] for name in ("centralized_personalized", "furl")]
    if not all(name in form.runs for name in names):
        return None
    server, federated = (form.runs[name][0] for name in names)
    path = form.asked.output_dir / form.source.name / "user_embeddings.png"
    return compare_embeddings(server, federated, form.source, path)
