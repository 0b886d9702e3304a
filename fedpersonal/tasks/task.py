"""What a task is: data, a model, and how its clients are evaluated.

Building, running, evaluating and reporting are written once, in `tasks.experiment`; a task says
what differs. It needs no registration: `experiments.launch.task_main` makes a binary of it, and
`tasks.find` finds it by its module.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import Sources
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.method import Layers, Method, methods
from fedpersonal.options import Options, Value, join, option
from fedpersonal.runs.tested import TestReport
from fedpersonal.tasks.figures import figures_text, tested_text
from fedpersonal.tasks.options import RunOptions

if TYPE_CHECKING:
    from fedpersonal.evaluation.evaluate import Evaluator
    from fedpersonal.evaluation.guess import Guess
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.federated.boundary import Crossing
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.clients import ReadWhenDrawn
    from fedpersonal.training.trained import TrainedModel


class Source(Protocol):
    """Data as they were read."""

    @property
    def name(self) -> str:
        """What the data are."""

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out."""

    def describe(self) -> dict[str, object]:
        """Returns what tells these data from others, and how many there are."""

    def fingerprint(self) -> str:
        """Returns a hash of the content."""


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Clients to evaluate.

    Attributes:
        support: What a client's model is personalised on.
        query: What is predicted, of the same clients.
        seen: Whether they are the clients that train.
    """

    support: ClientDataset
    query: ClientDataset
    seen: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Data, split for one experiment; a task may add fields.

    Attributes:
        name: What the data are.
        train: The clients that train: a `ClientDataset`, or what `subset` makes one of.
        validation: Clients for choosing hyperparameters.
        test: Clients to look at once.
    """

    name: str
    train: ClientDataset | ReadWhenDrawn
    validation: EvaluationSet
    test: EvaluationSet


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
    """What a task builds for a method.

    Attributes:
        model: The model that trains.
        algorithm: What a client does in a round.
        layers: The model's layers by the part that they play.
        evaluator: The model as evaluated clients apply it.
    """

    model: PartitionedModel
    algorithm: Algorithm
    layers: Layers
    evaluator: Evaluator


OptionsT = TypeVar("OptionsT", bound=RunOptions)
SourceT = TypeVar("SourceT", bound=Source)
DataT = TypeVar("DataT", bound=Data)


class Task(Generic[OptionsT, SourceT, DataT]):
    """A task; subclasses give its data and its model, and change what differs from the usual.

    The types are those of its options, its own and those of `RunOptions`, and of its data, as read
    and as split.

    Attributes:
        name: Its name in flags and folders.
        own_options: The options of its data and its model.
        defaults: Its defaults of options that it shares with others.
        own_methods: Methods that fit this task alone.
        layers: The layers of its model, by the part that they play.
        has_own_rows: Whether tables by the input `user` that no server has are each client's own,
            of a single row.
        evaluated_together: How many clients a shard holds when it is evaluated; 0 for all.
        evaluation_packing: `stacked` or `pooled`.
        examples: What its examples are called.
        metrics: The metrics that a program prints, the headline first; a run may lack some.
        meanings: What metrics mean here, where that differs from what they mean anywhere.
        predicts: What is predicted from what, with counts of the data in braces.
        client: What a client is, a noun.
        sources: The data that it knows by name; None of tasks without items and texts.
        usual_server_optimizer: The server optimizer of methods that have no usual one.
    """

    name: ClassVar[str]
    own_options: ClassVar[type[Options]]
    defaults: ClassVar[Mapping[str, Value]] = {}
    own_methods: ClassVar[Sequence[type[Method]]] = ()
    layers: ClassVar[Layers] = Layers()
    has_own_rows: ClassVar[bool] = False
    evaluated_together: ClassVar[int] = 100
    evaluation_packing: ClassVar[str] = "pooled"
    examples: ClassVar[str] = "examples"
    metrics: ClassVar[Sequence[str]] = ("accuracy",)
    meanings: ClassVar[Mapping[str, str]] = {}
    predicts: ClassVar[str] = ""
    client: ClassVar[str] = "user"
    sources: ClassVar[Sources | None] = None
    usual_server_optimizer: ClassVar[str] = "sgd"

    @property
    def methods(self) -> Mapping[str, type[Method]]:
        """The methods that fit its model, by name; those that are registered later, too."""
        fitting = [method for method in methods().values() if method.fits(self.layers)]
        return {method.name: method for method in [*self.own_methods, *fitting]}

    @property
    def options(self) -> type[OptionsT]:
        """The class of all its options: its own, those of any run and those of its methods."""
        methods = tuple(self.methods.values())
        known = self.__dict__.setdefault("_options", {})
        if methods not in known:
            known[methods] = self._join_options(methods)
        return known[methods]

    def _join_options(self, methods: Sequence[type[Method]]) -> type[OptionsT]:
        names = tuple(method.name for method in methods)
        others = _unfit_methods(self, names)

        class Choice(RunOptions):
            """The algorithm."""

            method: str = option(names[0], "What to train with.", choices=names, others=others)

        def check(options: OptionsT) -> None:
            joined.check(options)
            self.check(options)

        of_methods = dict.fromkeys(method.options for method in methods)
        joined = join(f"{type(self).__name__}Options", self.own_options, Choice, *of_methods)
        body = {"__doc__": f"Options of the task {self.name}.", "check": check}
        return type(joined.__name__, (joined,), body, defaults=self.defaults)

    @functools.cached_property
    def module(self) -> str:
        """The module that has it as `TASK`, by which runs and other processes find it again."""
        name = type(self).__module__
        main = sys.modules[name]
        if name != "__main__":
            return name
        spec = getattr(main, "__spec__", None)
        return spec.name if spec else pathlib.Path(str(main.__file__)).stem

    def __reduce__(self):
        from fedpersonal.tasks.find import find_task

        # A task has no state; its class of options could not be pickled.
        return find_task, (self.module,)

    def check(self, options: OptionsT) -> None:
        """Raises a `UserError` where options contradict each other."""
        if 0 < options.decay_rounds < options.total_rounds:
            raise UserError(
                f"--decay_rounds={options.decay_rounds} must be 0 or at least --total_rounds="
                f"{options.total_rounds}: the rounds after it would change nothing."
            )

    def settle(self, options: OptionsT) -> OptionsT:
        """Returns the options with the method's usual values in place of None."""
        method = self.method(options)
        usual = method.server_optimizer or self.usual_server_optimizer
        optimizer = options.server_optimizer or usual
        of_method = method.server_learning_rate if optimizer == usual else None
        rate = options.server_learning_rate or of_method or (1.0 if optimizer == "sgd" else 0.1)
        return options.replace(server_optimizer=optimizer, server_learning_rate=rate)

    def evaluated_local_layers(self, options: OptionsT) -> tuple[str, ...]:
        """Returns the layers that are each client's own in the evaluated model."""
        return self.method(options).local_layers(options, self.layers)

    def is_finetuning_idle(self, options: OptionsT) -> bool:
        """Tells whether a method fine-tunes nothing that a prediction of the same client reads.

        Such are rows of a table by an input whose values never come twice in a client's data.
        """
        return False

    def method(self, options: OptionsT) -> type[Method]:
        """Returns the method that options name."""
        return self.methods[options.method]

    def unread_options(self, values: Mapping[str, Any]) -> set[str]:
        """Returns the options of methods and servers that a run with these values does not read.

        Args:
            values: Options by name, as of a run's `config.json`; those of an older version may fit
                no more, and then there are none.
        """
        from fedpersonal.tasks.idle import idle_options

        known = self.options.declarations()
        try:
            return idle_options(
                self, self.options(**{n: v for n, v in values.items() if n in known})
            )
        except UserError:
            return set()

    def title(self, data: Mapping[str, Any]) -> str:
        """Returns what is predicted from what for how many, as a page of a run says it.

        Args:
            data: Of the run's `config.json`; empty where it does not say how many there are.
        """
        return filled(self.predicts, data)

    def is_public(self, options: Mapping[str, Any]) -> bool:
        """Tells whether the items and texts of a run's data are nobody's secret."""
        return self.sources is not None and self.sources.are_public(options)

    def read(self, options: OptionsT) -> SourceT:
        """Reads the data; imports no TensorFlow, so that mistakes in them show at once."""
        raise NotImplementedError

    def meanings_of(self, known: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns what metrics mean in a run, where that differs from what they mean anywhere.

        Args:
            known: The run's options, and the name of its data as `dataset`.
        """
        return self.meanings

    def replace_presets(
        self, source: SourceT, options: OptionsT, set_by: Mapping[str, str]
    ) -> tuple[OptionsT, list[str]]:
        """Replaces values of presets that do not fit the data.

        Args:
            source: The data.
            options: The options.
            set_by: Which preset has set an option, by name: a file of flags, or a size.

        Returns:
            The options, and a line for each of them that was replaced.
        """
        return options, []

    def warnings(self, source: SourceT, options: OptionsT) -> list[str]:
        """Returns lines on data that do not suit the options, to be told before the slow part."""
        return []

    def split_warnings(self, source: SourceT, data: DataT) -> list[str]:
        """Returns lines on who tests what, once data are split."""
        return []

    def split(self, source: SourceT, options: OptionsT) -> DataT:
        """Splits the data for an experiment."""
        raise NotImplementedError

    def sizes(self, data: DataT) -> dict[str, Any]:
        """Returns what of the data a model is built of, such as the number of items, for JSON."""
        raise NotImplementedError

    def build_model(
        self, sizes: SimpleNamespace, options: OptionsT, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the model that trains.

        Args:
            sizes: What the data tell of it, such as the number of items.
            options: The options of the run.
            local_layers: The layers that are each client's own, as the method wants them.
        """
        raise NotImplementedError

    def build(self, known_sizes: Mapping[str, Any], options: OptionsT) -> Built:
        """Builds the model that trains, what a client does with it, and what evaluates it."""
        from fedpersonal.evaluation.evaluate import Evaluator

        method, sizes = self.method(options), SimpleNamespace(**known_sizes)
        model = self.build_model(sizes, options, method.local_layers(options, self.layers))
        names = tuple(dict.fromkeys(v.layer for v in model.variables))
        parts = {
            part: tuple(n for n in own if n in names) for part, own in vars(self.layers).items()
        }
        layers = dataclasses.replace(self.layers, **{**parts, "everything": names})
        evaluated = self.evaluated_model(sizes, options, model)
        algorithm = method.build(options, layers)
        same = evaluated is model
        model = algorithm.prepare(model)
        evaluated = model if same else algorithm.prepare(evaluated)
        evaluator = Evaluator(
            evaluated,
            algorithm.personalization(evaluated),
            method.finetuning(options, layers),
            batch_size=options.client_batch_size,
            packing=self.evaluation_packing,
            together=self.evaluated_together,
            seed=options.seed,
        )
        return Built(model, algorithm, layers, evaluator)

    def for_model(self, model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
        """Returns a data set with the inputs that a model has."""
        features = {name: dataset.features[name] for name in model.input_spec}
        if self.has_own_rows and "user" in features and not model.owned_tables:
            features["user"] = np.zeros_like(features["user"])
        return dataclasses.replace(dataset, features=features)

    def training_clients(
        self, model: PartitionedModel, train: ClientDataset | ReadWhenDrawn, options: OptionsT
    ) -> ClientDataset | ReadWhenDrawn:
        """Returns the clients that train, with the inputs that the model has.

        Args:
            model: The model that trains.
            train: The training clients of the data.
            options: The options of the run.
        """
        return self.for_model(model, train) if isinstance(train, ClientDataset) else train

    def for_evaluation(
        self, model: PartitionedModel, part: EvaluationSet
    ) -> tuple[ClientDataset, ClientDataset]:
        """Returns the support and the query sets with the inputs that the model has."""
        return self.for_model(model, part.support), self.for_model(model, part.query)

    def evaluated_model(
        self, sizes: SimpleNamespace, options: OptionsT, model: PartitionedModel
    ) -> PartitionedModel:
        """Returns the model that evaluation applies: the one that trains, unless overridden.

        Args:
            sizes: What the data tell of it, such as the number of items.
            options: The options of the run.
            model: The model that trains.
        """
        return model

    def pool(self, options: OptionsT, num_clients: int) -> tuple[int, int]:
        """Returns a server's batch size, and in how many rounds it sees all examples once.

        As many examples a round as federated rounds have on average.
        """
        clients = min(options.clients_per_round, num_clients)
        return options.client_batch_size, max(1, round(num_clients / clients))

    def validate(
        self, experiment: Experiment[OptionsT, DataT]
    ) -> Callable[[TrainedModel], ClientResults]:
        """Returns what evaluates a model between rounds."""
        return experiment.evaluation(experiment.data.validation, start="kept", with_before=False)

    def test(self, experiment: Experiment[OptionsT, DataT], trained: TrainedModel) -> TestReport:
        """Evaluates a trained model on the test clients, once."""
        return TestReport(experiment.evaluation(experiment.data.test)(trained))

    def validated_metrics(self, data: DataT) -> Sequence[str]:
        """Returns the metrics that validation has beside the loss and those of the model."""
        return ()

    def guesses(
        self, experiment: Experiment[OptionsT, DataT], part: EvaluationSet
    ) -> Mapping[str, Guess]:
        """Returns what results must beat: guesses that train no model, by their names.

        Args:
            experiment: The experiment.
            part: Whose query sets are predicted: its `validation` or `test` clients.
        """
        return {}

    def recommend(
        self, experiment: Experiment[OptionsT, DataT], trained: TrainedModel, results: ClientResults
    ) -> Recommendations | None:
        """Returns what a model recommends to some test clients; None of tasks without items.

        Args:
            experiment: The task's data and model.
            trained: The trained model.
            results: The test clients' results.
        """
        return None

    def boundary(
        self, experiment: Experiment[OptionsT, DataT]
    ) -> tuple[list[Crossing], list[dict[str, Any]]]:
        """Returns what crosses between server and clients in rounds, and further entries."""
        return experiment.trainer.crossings, []

    def outside_privacy(self, experiment: Experiment[OptionsT, DataT]) -> list[str]:
        """Names what else is told of clients, beside what differential privacy hides them in."""
        return []

    def describe(self, experiment: Experiment[OptionsT, DataT]) -> dict[str, Any]:
        """Returns further entries of the summary that are known before the test."""
        return {}

    def names(self, experiment: Experiment[OptionsT, DataT]) -> Mapping[str, Sequence[str]]:
        """Returns what the rows of tables stand for, by the input that picks them: of users here.

        They are rows of the server's where it has everybody's data.
        """
        has_rows = self.has_own_rows and experiment.method.has_table
        return {"user": experiment.data.train.client_ids.tolist()} if has_rows else {}

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        test = summary["test"]
        return [
            f"{tested_text(test, self.client)}, {test['num_examples']:,} {self.examples}: "
            f"{figures_text(test, self.metrics, self.client)}"
        ]


def _unfit_methods(task: Task, names: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Returns the methods that are not among the `names`, and why each does not fit a task."""
    reasons = {
        name: f"the method does not fit the model of {task.name}, which has no layers for it of "
        f"the kind {' or '.join(method.missing_parts(task.layers))}"
        for name, method in methods().items()
        if name not in names
    }
    return tuple(reasons.items())


def filled(text: str, counts: Mapping[str, Any]) -> str:
    """Returns a text with counts in place of names in braces; those not known are left out."""

    def count(match: re.Match[str]) -> str:
        value = counts.get(match[1])
        return f"{value:,} " if isinstance(value, int) else ""

    return re.sub(r"\{(\w+)\} ", count, text)
