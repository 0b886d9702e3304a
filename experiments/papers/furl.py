"""Table 3 of the FURL paper, its learning curves (Figure 3) and maps of user embeddings (4, 5).

Its two forms are a class of a text, here a comment's subreddit, and a yes or no, here whether the
user likes a film. Beside the paper's rows stand what must be beaten: guesses without a model,
local training alone, and FedAvg with fine-tuning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse

from experiments.papers import furl_data as paper
from experiments.papers.embeddings import compare_embeddings
from experiments.papers.jobs import Job, check_splits, share_trainings
from experiments.papers.picture import draw
from experiments.papers.reproduction import Reproduction, Row, choose_rows, lines_of
from experiments.papers.table import (
    DIFFERENCES,
    Cell,
    Column,
    Line,
    Report,
    Table,
    behind,
    figure,
    over_seeds,
    validation_curve,
)
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.documents import FILMS_1M_FILES
from fedpersonal.data.encoders import PADDING
from fedpersonal.data.labelled_texts import LabelledTexts
from fedpersonal.data.movielens import movielens_1m_file
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.evaluation.statistics import auc
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.tasks.documents.data import (
    LABEL_OF_ALL,
    RATE_OF_ALL,
    SHRUNKEN_RATES,
    USERS_LABEL,
    USERS_RATE,
    DocumentData,
    guess_labels,
)
from fedpersonal.tasks.documents.task import TASK

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

# By metric, the strongest first.
_GUESSES = {
    "accuracy": {
        USERS_LABEL: "A user's most frequent label",
        LABEL_OF_ALL: "The most frequent label",
    },
    "auc": {
        SHRUNKEN_RATES: "Shrunken rates of text and user",
        USERS_RATE: "A user's own rate",
        RATE_OF_ALL: "The rate of all",
    },
}
_LINEAR = "Central linear model"
# Inverse weights of the squared norm: what is best for validation texts counts.
STRENGTHS = (0.1, 0.3, 1.0, 3.0)
_ACCURACY = ClientMetric("accuracy_after", scale=100)
_SEEN = (
    "{}: {} in per cent, on other texts of the users who train; and megabytes that a user receives "
    "and sends in a round:"
)
_UNSEEN = (
    "Users who never took part: {} in per cent on the second half of their texts, after the first "
    "half has rebuilt what each of them lacks; and the share of them whose loss that raises:"
)
_DIFFERENT = "{}: accuracy minus that of {}, in points, on the same texts of the users who train:"


def _row(method: type[Method], local_state: str = "kept") -> Row:
    name, *figures = paper.PUBLISHED.get(method.name, (method.title,))
    is_twin = local_state == "rebuilt"
    return Row(
        f"{name} (stateless)" if is_twin else name,
        "{kind}_{}" if method.is_federated else "{kind}_{}_server",
        {"method": method.name, "local_state": local_state},
        {} if is_twin else dict(zip(("accuracy", "auc"), figures)),
    )


def _keeps(method: type[Method]) -> bool:
    return bool(method.local_part) and issubclass(method.options, KeepingOptions)


_METHODS = TASK.methods.values()
ROWS = (*map(_row, _METHODS), *(_row(m, "rebuilt") for m in _METHODS if _keeps(m)))
PAPER_ROWS = tuple(row for name, *_ in paper.PUBLISHED.values() for row in ROWS if row.name == name)
USUAL_ROWS = (
    *PAPER_ROWS,
    *(row for name in paper.RIVALS for row in ROWS if row.values["method"] == name),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """The table on one data set.

    Attributes:
        asked: What is asked of it.
        source: Its texts.
        jobs: The jobs of each row.
        linear: Those of the linear model, if it reads the same words.
    """

    asked: Reproduction
    source: LabelledTexts
    jobs: Mapping[Row, Sequence[Job]]
    linear: Sequence[Job]

    @property
    def metric(self) -> str:
        """What is measured."""
        return "auc" if self.source.is_binary else "accuracy"

    @property
    def guess(self) -> tuple[str, str]:
        """The strongest guess: its name in summaries, and that of its row."""
        return next(iter(_GUESSES[self.metric].items()))

    @property
    def first(self) -> Sequence[Job]:
        """The jobs of the first row."""
        return next(iter(self.jobs.values()))

    def of(self, method: str) -> Line | None:
        """Returns the line of a paper's row, None where it is not wanted."""
        lines = lines_of(self.jobs)
        return next((line for line in lines if line.name == paper.PUBLISHED[method][0]), None)


def run(asked: Reproduction) -> Report:
    """Runs what is missing; returns the tables, and draws learning curves and maps."""
    forms = [plan(own) for own in ask(asked)]
    for form in forms:
        check_splits(form.first[:1])
    for form in forms:
        asked.complete(form.source, *form.jobs.values(), form.linear)
    parts: list[str | Table] = [
        "# Table 3 of FURL (a stand-in: the paper's figures are of data that cannot be had)"
    ]
    curves, facts = [], {}
    for form in forms:
        curves.append(_draw_curves(form))
        agreement = _compare(form)
        parts += [_about(form), *_tables(form)]
        differing = _differences(form)
        if differing and DIFFERENCES not in parts:
            parts.append(DIFFERENCES)
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
    """Reads the data of one form and settles its jobs."""
    kind = "films" if asked.dataset.startswith("movielens") else "reddit"
    asked = asked.with_preset(quick=asked.is_generated or asked.dataset == "movielens_100k")
    rows = choose_rows(ROWS, asked.rows, table="table 3") if asked.rows else USUAL_ROWS
    source = asked.read(TASK, f"{kind}_{{}}")
    jobs = {}
    for row in [_of_kind(row, kind) for row in rows]:
        twin = "_stateless" if row.values["local_state"] == "rebuilt" else ""
        folder = f"{source.name}/{row.values['method']}{twin}"
        jobs[row] = asked.jobs(TASK, row, folder)
    jobs = share_trainings(jobs)
    linear: list[Job] = []
    first = next(iter(jobs.values()))
    if first[0].options.values()["text_encoder"] == "hashed_words":
        path = asked.output_dir / source.name / "linear"
        linear = [job.then(path, _LINEAR, measure_linear) for job in first]
    return Form(asked, source, jobs, linear)


def _of_kind(row: Row, kind: str) -> Row:
    """Returns a row with the hyperparameters of comments, `reddit`, or of `films`."""
    values = {**row.values, **paper.OWN.get(str(row.values["method"]), {}).get(kind, {})}
    return dataclasses.replace(row, preset=row.preset.replace("{kind}", kind), values=values)


def _about(form: Form) -> str:
    about, first = form.source.describe(), form.first[0]
    options = first.options
    return (
        f"## {form.source.name}\n\n{about['num_texts']:,} texts of {about['num_users']:,} users, "
        f"{about['num_labels']} labels; {first.summary['num_training_clients']:,} of the users "
        f"take part. Preset {form.asked.preset}: {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users; {form.asked.seeds_in_words()}."
    )


def _tables(form: Form) -> list[Table]:
    metric, lines = form.metric, lines_of(form.jobs)
    name = "AUC" if metric == "auc" else "Accuracy"

    def column(*path: str) -> Column:
        paper = metric if path == ("test",) else ""
        return figure(f"{name} %", *path, metric, digits=2, scale=100, paper=paper)

    def guesses(part: str, jobs: Sequence[Job]) -> list[tuple[list[Line], list[Column]]]:
        return [
            ([Line(guess, jobs)], [column(part, "guesses", key)])
            for key, guess in _GUESSES[metric].items()
        ]

    sent = Column("MB a round", _megabytes, 2)
    linear = [Line(_LINEAR, form.linear)] if form.linear else []
    blocks = [(lines, [column("test"), sent]), (linear, [column("test")])]
    source = form.source.name
    caption = _SEEN.format(source, name)
    tables = [Table.of(f"{source}_seen", *blocks, *guesses("test", form.first), caption=caption)]
    unseen = [
        line for line in lines if all(metric in (job.summary["unseen"] or ()) for job in line.jobs)
    ]
    if unseen:
        columns = [column("unseen"), figure("hurt %", "unseen", "share_hurt", digits=0, scale=100)]
        blocks = [(unseen, columns), *guesses("unseen", unseen[0].jobs)]
        caption = _UNSEEN.format(name)
        tables.append(Table.of(f"{source}_unseen", *blocks, caption=caption))
    return tables


def _megabytes(line: Line) -> Cell | None:
    """Returns what a client receives and sends in a round, of methods that send."""
    first = line.jobs[0]
    if not TASK.methods[first.options.method].is_federated:
        return None
    summary = first.summary
    sent = summary["broadcast_bytes_per_client"] + summary["aggregated_bytes_per_client"]
    return Cell((sent / 1e6,))


def _differences(form: Form) -> list[Table]:
    """Returns the differences of accuracy from Personalized FL, user by user.

    An AUC is of all users' texts together, and no sum over users: accuracy takes its place.
    """
    other = form.of("furl")
    if other is None:
        return []
    key, title = form.guess
    guess = [
        guess_by_client(TASK.split(form.source, TASK.options(**job.options.values())), key)
        for job in other.jobs
    ]
    lines = [*lines_of(form.jobs), Line(title, guess=guess)]
    lines = [line for line in lines if line.name != other.name]
    name = form.source.name
    block = lines, [behind("accuracy", [other], other.name, _ACCURACY)]
    return [Table.of(f"{name}_differences", block, caption=_DIFFERENT.format(name, other.name))]


def guess_by_client(data: DocumentData, name: str) -> pd.DataFrame:
    """Returns each test user's accuracy, in [0, 1], by a guess of `guess_labels`."""
    query, guess = data.test.query, guess_labels(data, data.test)[name]
    accuracy = guess.clients["accuracy"]
    table = {"client": query.client_ids, "num_examples": query.counts, "accuracy_after": accuracy}
    return pd.DataFrame(table)[query.counts > 0]


def _draw_curves(form: Form) -> Table:
    """Draws validation accuracy by epochs of the rows that train, and returns its points.

    An epoch is as many examples as there are.
    """
    name = form.source.name
    curves = {
        row.name: validation_curve(jobs, "accuracy", lambda clients, users: clients / users)
        for row, jobs in form.jobs.items()
        if jobs[0].trained_by is None and TASK.methods[str(row.values["method"])].trains
    }
    points = Table(f"{name}_learning_curves", curves)
    if curves:
        path = ("test", "guesses")
        shown = dict([form.guess, *_GUESSES["accuracy"].items()])
        draw(
            [points],
            form.asked.output_dir / name / "learning_curves.png",
            title=f"Learning curves on {name}",
            x_label="epochs of local training",
            y_label="validation accuracy (%)",
            baselines=[
                (title, over_seeds(form.first, *path, key, "accuracy", scale=100).mean)
                for key, title in shown.items()
            ],
        )
    return points


def _compare(form: Form) -> dict[str, Any] | None:
    """Compares the embeddings of a server and of users; None where one is missing."""
    server, federated = form.of("centralized_personalized"), form.of("furl")
    if not (server and federated):
        return None
    path = form.asked.output_dir / form.source.name / "user_embeddings.png"
    return compare_embeddings(server.jobs[0], federated.jobs[0], form.source, path)


def measure_linear(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Fits a logistic regression on bags of hashed words and who the user is.

    Args:
        job: The job that is to have the result.
        experiment: One whose data have the features "text", "num_words" and "user".
        trained: What it has trained, which is not looked at.

    Returns:
        The area under the ROC curve of the test texts, or where there are more than two labels the
        accuracy, as `test`, and the best of `STRENGTHS`.
    """
    del job, trained
    from sklearn.linear_model import LogisticRegression

    def measure(model: LogisticRegression, matrix: scipy.sparse.csr_matrix, labels: np.ndarray):
        if experiment.data.is_binary:
            return auc(labels, model.decision_function(matrix))
        return float(model.score(matrix, labels))

    data, num_ids = experiment.data, experiment.data.vocabulary.size
    train, *parts = (
        (as_matrix(part, num_ids, data.num_users), part.labels)
        for part in (data.train, data.validation.query, data.test.query)
    )
    found = []
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=200).fit(*train)
        found.append((*(measure(model, *part) for part in parts), strength))
    _, measured, strength = max(found)
    metric = "auc" if experiment.data.is_binary else "accuracy"
    return {"test": {metric: measured}, "strength": strength}


def as_matrix(part: ClientDataset, num_ids: int, num_users: int) -> scipy.sparse.csr_matrix:
    """Returns a row a text, (n, num_ids + num_users): its bag, of length 1, and a 1 for its user.

    Args:
        part: Texts with the features "text", "num_words" and "user".
        num_ids: Ids of words.
        num_users: Users who train.
    """
    text, counts = part.features["text"], part.features["num_words"]
    is_word = text != PADDING
    shares = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    starts = np.append(0, np.cumsum(counts))
    bags = scipy.sparse.csr_matrix((shares, text[is_word], starts), (len(text), num_ids))
    whose = np.arange(len(text) + 1)
    ones = np.ones(len(text))
    users = scipy.sparse.csr_matrix((ones, part.features["user"], whose), (len(text), num_users))
    return scipy.sparse.hstack([bags, users], format="csr")
