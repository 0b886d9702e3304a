"""Table 3 of the FURL paper, its learning curves (Figure 3) and maps of user embeddings (4, 5).

The paper has two kinds of data: texts with classes, here comments with subreddits, and binary
labels, here whether a user likes a film. The table also has baselines without a model, local
training, and FedAvg with fine-tuning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.evaluation.statistics import auc
from fedpersonal.methods.method import KeepingOptions, Method
from fedpersonal.suite.papers import furl_data as paper
from fedpersonal.suite.papers.embeddings import compare_embeddings
from fedpersonal.suite.papers.jobs import Job, check_splits, share_trainings
from fedpersonal.suite.papers.picture import draw
from fedpersonal.suite.papers.reproduction import Reproduction, Row, choose_rows, lines_of
from fedpersonal.suite.papers.table import (
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
from fedpersonal.suite.readers.documents import FILMS_1M_FILES
from fedpersonal.suite.readers.encoders import PADDING
from fedpersonal.suite.readers.labelled_texts import LabelledTexts
from fedpersonal.suite.readers.movielens import movielens_1m_file
from fedpersonal.suite.tasks.labels.data import (
    LABEL_OF_ALL,
    RATE_OF_ALL,
    SHRUNKEN_RATES,
    USERS_LABEL,
    USERS_RATE,
    DocumentData,
    label_baselines,
)
from fedpersonal.suite.tasks.labels.task import TASK

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

# Baselines by metric, the strongest first.
_BASELINES = {
    "accuracy": {
        USERS_LABEL: "A user's most frequent label",
        LABEL_OF_ALL: "The most frequent label",
    },
    "auc": {
        SHRUNKEN_RATES: "Regularised rates of text and user",
        USERS_RATE: "A user's rate",
        RATE_OF_ALL: "The rate of all",
    },
}
_LINEAR = "Central linear model"
# Inverse weights of the squared norm; the best one on validation texts is used.
STRENGTHS = (0.1, 0.3, 1.0, 3.0)
_ACCURACY = ClientMetric("accuracy_after", scale=100)
_SEEN = (
    "{}: {} in per cent, on other texts of seen users; and megabytes that a user receives and "
    "sends in a round:"
)
_UNSEEN = (
    "Unseen users: {} in per cent on the second half of their texts, after rebuilding local "
    "variables on the first half; and the share of users whose loss is worse after rebuilding:"
)
_DIFFERENCE = "{}: accuracy minus that of {}, in points, on the same texts of seen users:"


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
        request: The request for the data set.
        source: The texts.
        jobs: The jobs of each row.
        linear: The jobs of the linear model, if it has the same words as inputs.
    """

    request: Reproduction
    source: LabelledTexts
    jobs: Mapping[Row, Sequence[Job]]
    linear: Sequence[Job]

    @property
    def metric(self) -> str:
        """The metric of the table."""
        return "auc" if self.source.is_binary else "accuracy"

    @property
    def baseline(self) -> tuple[str, str]:
        """The strongest baseline: its name in summaries, and the name of its row."""
        return next(iter(_BASELINES[self.metric].items()))

    @property
    def first(self) -> Sequence[Job]:
        """The jobs of the first row."""
        return next(iter(self.jobs.values()))

    def paper_line(self, method: str) -> Line | None:
        """Returns the line of the paper's row of a method; None if it was not requested."""
        lines = lines_of(self.jobs)
        return next((line for line in lines if line.name == paper.PUBLISHED[method][0]), None)


def run(request: Reproduction) -> Report:
    """Runs the missing runs; returns the tables, and draws learning curves and maps."""
    forms = [plan(one) for one in requests_of(request)]
    for form in forms:
        check_splits(form.first[:1])
    for form in forms:
        request.complete(form.source, *form.jobs.values(), form.linear)
    parts: list[str | Table] = ["# Table 3 of FURL on other data (the paper's are not public)"]
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
        facts[form.source.name] = {
            "data": form.source.describe(),
            "preset": form.request.preset,
            "map": agreement,
        }
    return Report("table3", request.seeds, parts, hidden=curves, facts={"forms": facts})


def requests_of(request: Reproduction) -> list[Reproduction]:
    """Returns a request for each data set: the one in the options, or comments and films."""
    if request.dataset != "auto" or request.options.get("text_file"):
        return [request]
    films = "movielens_100k"
    folder = request.options.get("data_dir")
    if folder:
        try:
            movielens_1m_file(str(folder), FILMS_1M_FILES)
            films = "movielens_1m"
        except UserError:  # Without these files, MovieLens-100K is used; the page names it.
            pass
    return [request, request.replace(options={**request.options, "dataset": films})]


def plan(request: Reproduction) -> Form:
    """Reads the data of one form and returns it with its jobs."""
    kind = "films" if request.dataset.startswith("movielens") else "reddit"
    request = request.with_preset(quick=request.is_generated or request.dataset == "movielens_100k")
    rows = choose_rows(ROWS, request.rows, table="table 3") if request.rows else USUAL_ROWS
    source = request.read(TASK, f"{kind}_{{}}")
    jobs = {}
    for row in [_of_kind(row, kind) for row in rows]:
        twin = "_stateless" if row.values["local_state"] == "rebuilt" else ""
        folder = f"{source.name}/{row.values['method']}{twin}"
        jobs[row] = request.jobs(TASK, row, folder)
    jobs = share_trainings(jobs)
    linear: list[Job] = []
    first = next(iter(jobs.values()))
    if first[0].options.values()["text_encoder"] == "hashed_words":
        path = request.output_dir / source.name / "linear"
        linear = [job.followed_by(path, _LINEAR, measure_linear) for job in first]
    return Form(request, source, jobs, linear)


def _of_kind(row: Row, kind: str) -> Row:
    """Returns a row with the hyperparameters of comments, `reddit`, or of `films`."""
    values = {**row.values, **paper.METHOD_OPTIONS.get(str(row.values["method"]), {}).get(kind, {})}
    return dataclasses.replace(row, preset=row.preset.replace("{kind}", kind), values=values)


def _about(form: Form) -> str:
    about, first = form.source.describe(), form.first[0]
    options = first.options
    return (
        f"## {form.source.name}\n\n{about['num_texts']:,} texts of {about['num_users']:,} users, "
        f"{about['num_labels']} labels; {first.summary['num_training_clients']:,} of the users "
        f"train. Preset {form.request.preset}: {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users; {form.request.seeds_in_words()}."
    )


def _tables(form: Form) -> list[Table]:
    metric, lines = form.metric, lines_of(form.jobs)
    name = "AUC" if metric == "auc" else "Accuracy"

    def column(*path: str) -> Column:
        paper = metric if path == ("test",) else ""
        return figure(f"{name} %", *path, metric, digits=2, scale=100, paper=paper)

    def baselines(part: str, jobs: Sequence[Job]) -> list[tuple[list[Line], list[Column]]]:
        return [
            ([Line(title, jobs)], [column(part, "guesses", key)])
            for key, title in _BASELINES[metric].items()
        ]

    sent = Column("MB per round", _megabytes, 2)
    linear = [Line(_LINEAR, form.linear)] if form.linear else []
    blocks = [(lines, [column("test"), sent]), (linear, [column("test")])]
    source = form.source.name
    caption = _SEEN.format(source, name)
    tables = [Table.of(f"{source}_seen", *blocks, *baselines("test", form.first), caption=caption)]
    unseen = [
        line for line in lines if all(metric in (job.summary["unseen"] or ()) for job in line.jobs)
    ]
    if unseen:
        columns = [column("unseen"), figure("worse %", "unseen", "share_hurt", digits=0, scale=100)]
        blocks = [(unseen, columns), *baselines("unseen", unseen[0].jobs)]
        caption = _UNSEEN.format(name)
        tables.append(Table.of(f"{source}_unseen", *blocks, caption=caption))
    return tables


def _megabytes(line: Line) -> Cell | None:
    """Returns the megabytes that a client receives and sends in a round; None if none are sent."""
    first = line.jobs[0]
    if not TASK.methods[first.options.method].is_federated:
        return None
    summary = first.summary
    sent = summary["broadcast_bytes_per_client"] + summary["aggregated_bytes_per_client"]
    return Cell((sent / 1e6,))


def _differences(form: Form) -> list[Table]:
    """Returns the differences of accuracy from Personalized FL, paired by user.

    An AUC is computed over all users' texts, not a sum over users, so accuracy is compared.
    """
    other = form.paper_line("furl")
    if other is None:
        return []
    key, title = form.baseline
    baseline = [
        baseline_by_client(TASK.split(form.source, TASK.options(**job.options.values())), key)
        for job in other.jobs
    ]
    lines = [*lines_of(form.jobs), Line(title, baseline=baseline)]
    lines = [line for line in lines if line.name != other.name]
    name = form.source.name
    block = lines, [behind("accuracy", [other], other.name, _ACCURACY)]
    return [Table.of(f"{name}_differences", block, caption=_DIFFERENCE.format(name, other.name))]


def baseline_by_client(data: DocumentData, name: str) -> pd.DataFrame:
    """Returns each test user's accuracy, in [0, 1], by a baseline of `label_baselines`."""
    query, baseline = data.test.query, label_baselines(data, data.test)[name]
    accuracy = baseline.clients["accuracy"]
    table = {"client": query.client_ids, "num_examples": query.counts, "accuracy_after": accuracy}
    return pd.DataFrame(table)[query.counts > 0]


def _draw_curves(form: Form) -> Table:
    """Draws the validation accuracy of rows that train, by epochs, and returns the points.

    An epoch has as many examples as the data.
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
        baselines = dict([form.baseline, *_BASELINES["accuracy"].items()])
        draw(
            [points],
            form.request.output_dir / name / "learning_curves.png",
            title=f"Learning curves on {name}",
            x_label="epochs of local training",
            y_label="validation accuracy (%)",
            baselines=[
                (title, over_seeds(form.first, *path, key, "accuracy", scale=100).mean)
                for key, title in baselines.items()
            ],
        )
    return points


def _compare(form: Form) -> dict[str, Any] | None:
    """Compares embeddings of centralised and federated training; None if one is missing."""
    server, federated = form.paper_line("centralized_personalized"), form.paper_line("furl")
    if not (server and federated):
        return None
    path = form.request.output_dir / form.source.name / "user_embeddings.png"
    return compare_embeddings(server.jobs[0], federated.jobs[0], form.source, path)


def measure_linear(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Fits a logistic regression on bags of hashed words and the user's identity.

    Args:
        job: The job of the result.
        experiment: An experiment whose data have the features "text", "num_words" and "user".
        trained: The trained model, which is not used.

    Returns:
        `test`, the area under the ROC curve of the test texts or, with more than two labels, the
        accuracy; and `strength`, the best of `STRENGTHS`.
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
    results = []
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=200).fit(*train)
        results.append((*(measure(model, *part) for part in parts), strength))
    _, measured, strength = max(results)
    metric = "auc" if experiment.data.is_binary else "accuracy"
    return {"test": {metric: measured}, "strength": strength}


def as_matrix(part: ClientDataset, num_ids: int, num_users: int) -> scipy.sparse.csr_matrix:
    """Returns a matrix of texts, (n, num_ids + num_users): bags of norm 1, and a 1 for the user.

    Args:
        part: Texts with the features "text", "num_words" and "user".
        num_ids: Number of ids of words.
        num_users: Number of training users.
    """
    text, counts = part.features["text"], part.features["num_words"]
    is_word = text != PADDING
    shares = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    starts = np.append(0, np.cumsum(counts))
    bags = scipy.sparse.csr_matrix((shares, text[is_word], starts), (len(text), num_ids))
    rows = np.arange(len(text) + 1)
    ones = np.ones(len(text))
    users = scipy.sparse.csr_matrix((ones, part.features["user"], rows), (len(text), num_users))
    return scipy.sparse.hstack([bags, users], format="csr")
