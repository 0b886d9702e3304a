"""Tasks: data, a model, and how its clients are evaluated.

Building, running, evaluating and reporting are written once, in `tasks.experiment`; a task defines
what differs. It needs no registration: `suite.commands.launch.task_main` makes a binary of it, and
`tasks.find` finds it by its module.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from fedpersonal import former
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import Sources
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.method import Layers, Method, methods
from fedpersonal.options import Options, Value, join, option
from fedpersonal.suite.tasks.figures import metrics_text, population_text
from fedpersonal.suite.tasks.options import RunOptions
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.evaluation.evaluate import Evaluator
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.federated.boundary import Crossing
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.clients import LazyClients
    from fedpersonal.training.trained import TrainedModel


class Source(Protocol):
    """Data as they were read."""

    @property
    def name(self) -> str:
        """The name of the data."""

    def summary(self) -> str:
        """Returns a line on the size of the data, and on rows that were left out."""

    def describe(self) -> dict[str, object]:
        """Returns the entries that distinguish these data from others, and their sizes."""

    def fingerprint(self) -> str:
        """Returns a hash of the content."""


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Clients to evaluate.

    Attributes:
        support: The clients' support sets, on which models are personalised.
        query: The query sets of the same clients, which are predicted.
        seen: Whether the clients also train.
    """

    support: ClientDataset
    query: ClientDataset
    seen: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Data, split for one experiment; a task may add fields.

    Attributes:
        name: The name of the data.
        train: The clients that train, in memory or read when they are sampled.
        validation: Clients for choosing hyperparameters.
        test: Clients for the final test.
    """

    name: str
    train: ClientDataset | LazyClients
    validation: EvaluationSet
    test: EvaluationSet


@dataclasses.dataclass(frozen=True, eq=False)
class TaskBuild:
    """The model and the algorithm that a task builds for a method.

    Attributes:
        model: The model that trains.
        algorithm: The phases of a client in a round.
        layers: The model's layers by their role.
        evaluator: The evaluated model, with its phases.
    """

    model: PartitionedModel
    algorithm: Algorithm
    layers: Layers
    evaluator: Evaluator


OptionsT = TypeVar("OptionsT", bound=RunOptions)
SourceT = TypeVar("SourceT", bound=Source)
DataT = TypeVar("DataT", bound=Data)


# Former to present names of members that subclasses define.
_FORMER_MEMBERS = {
    "own_options": "extra_options",
    "own_methods": "extra_methods",
    "has_own_rows": "has_per_client_rows",
    "evaluated_together": "clients_per_evaluation_shard",
    "settle": "with_defaults",
    "pool": "central_batching",
    "validated_metrics": "validation_metrics",
    "guesses": "baselines",
    "outside_privacy": "unprotected_outputs",
    "names": "row_labels",
}


class Task(Generic[OptionsT, SourceT, DataT]):
    """A task; subclasses define its data and its model, and override defaults.

    The type parameters are its options, which include `RunOptions`, and its data, as read and as
    split.

    Attributes:
        name: The name in flags and folders.
        usage: The text about the task in its command's help, with example commands.
        extra_options: The options of the task's data and model.
        defaults: The task's defaults of options that all tasks share.
        extra_methods: Methods that fit only this task.
        layers: The layers of the task's model, by their role.
        has_per_client_rows: Whether a table looked up by the input `user` has a single, local row
            at each client, unless the server has a row for each user.
        clients_per_evaluation_shard: The number of clients in a shard of an evaluation; 0 for all.
        evaluation_packing: `stacked` or `pooled`.
        examples: The plural noun for examples.
        metrics: The metrics that a program prints, the headline first; a run may lack some.
        meanings: The meanings of metrics that differ from the usual ones.
        predicts: The prediction problem in words, with counts of the data in braces.
        client: The noun for a client.
        sources: The data sets that the task reads by name; None for tasks without items and texts.
        usual_server_optimizer: The server optimizer for methods without a default.
    """

    name: ClassVar[str]
    usage: ClassVar[str] = ""
    extra_options: ClassVar[type[Options]]
    defaults: ClassVar[Mapping[str, Value]] = {}
    extra_methods: ClassVar[Sequence[type[Method]]] = ()
    layers: ClassVar[Layers] = Layers()
    has_per_client_rows: ClassVar[bool] = False
    clients_per_evaluation_shard: ClassVar[int] = 100
    evaluation_packing: ClassVar[str] = "pooled"
    examples: ClassVar[str] = "examples"
    metrics: ClassVar[Sequence[str]] = ("accuracy",)
    meanings: ClassVar[Mapping[str, str]] = {}
    predicts: ClassVar[str] = ""
    client: ClassVar[str] = "user"
    sources: ClassVar[Sources | None] = None
    usual_server_optimizer: ClassVar[str] = "sgd"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        former.rename_members(cls, _FORMER_MEMBERS)

    @property
    def methods(self) -> Mapping[str, type[Method]]:
        """The methods that fit the task's model, by name, including those registered later."""
        fitting = [method for method in methods().values() if method.fits(self.layers)]
        return {method.name: method for method in [*self.extra_methods, *fitting]}

    @property
    def options(self) -> type[OptionsT]:
        """The class of all options: of the task, of any run and of the task's methods."""
        methods = tuple(self.methods.values())
        by_methods = self.__dict__.setdefault("_options", {})
        if methods not in by_methods:
            by_methods[methods] = self._join_options(methods)
        return by_methods[methods]

    def _join_options(self, methods: Sequence[type[Method]]) -> type[OptionsT]:
        names = tuple(method.name for method in methods)
        others = _unfit_methods(self, names)

        class Choice(RunOptions):
            """The algorithm."""

            method: str = option(
                names[0], "The method to train with.", choices=names, refusals=others
            )

        def check(options: OptionsT) -> None:
            joined.check(options)
            self.check(options)

        method_options = dict.fromkeys(method.options for method in methods)
        joined = join(f"{type(self).__name__}Options", self.extra_options, Choice, *method_options)
        body = {"__doc__": f"Options of the task {self.name}.", "check": check}
        return type(joined.__name__, (joined,), body, defaults=self.defaults)

    @functools.cached_property
    def module(self) -> str:
        """The module that has the task as `TASK`, by which runs and other processes find it."""
        name = type(self).__module__
        main = sys.modules[name]
        if name != "__main__":
            return name
        spec = getattr(main, "__spec__", None)
        return spec.name if spec else pathlib.Path(str(main.__file__)).stem

    def __reduce__(self):
        # A task has no state, and its class of options cannot be pickled.
        return _import_task, (self.module,)

    def check(self, options: OptionsT) -> None:
        """Raises a `UserError` if options contradict each other."""
        if 0 < options.decay_rounds < options.total_rounds:
            raise UserError(
                f"--decay_rounds={options.decay_rounds} must be 0 or at least --total_rounds="
                f"{options.total_rounds}: the rounds after it would change nothing."
            )

    def with_defaults(self, options: OptionsT) -> OptionsT:
        """Returns the options with the method's defaults in place of None."""
        method = self.method(options)
        usual = method.server_optimizer or self.usual_server_optimizer
        optimizer = options.server_optimizer or usual
        usual_rate = method.server_learning_rate if optimizer == usual else None
        rate = options.server_learning_rate or usual_rate or (1.0 if optimizer == "sgd" else 0.1)
        return options.replace(server_optimizer=optimizer, server_learning_rate=rate)

    def evaluated_local_layers(self, options: OptionsT) -> tuple[str, ...]:
        """Returns the local layers of the evaluated model."""
        return self.method(options).local_layers(options, self.layers)

    def is_finetuning_idle(self, options: OptionsT) -> bool:
        """Returns whether a method fine-tunes nothing that a prediction of the same client reads.

        An example is rows of a table by an input whose values never repeat in a client's data.
        """
        return False

    def method(self, options: OptionsT) -> type[Method]:
        """Returns the method that options name."""
        return self.methods[options.method]

    def ignored_options(self, values: Mapping[str, Any]) -> set[str]:
        """Returns the options of methods and servers that a run with these values does not read.

        Args:
            values: Options by name, as in a run's `config.json`. If options of an older version
                are no longer valid, the result is empty.
        """
        from fedpersonal.suite.tasks.idle import idle_options

        declared = self.options.declarations()
        try:
            return idle_options(
                self, self.options(**{n: v for n, v in values.items() if n in declared})
            )
        except UserError:
            return set()

    def title(self, data: Mapping[str, Any]) -> str:
        """Returns the prediction problem in words with counts of the data, for a run's page.

        Args:
            data: The entry on the data in the run's `config.json`; empty if it has no counts.
        """
        return fill_counts(self.predicts, data)

    def is_public(self, options: Mapping[str, Any]) -> bool:
        """Returns whether the items and texts of a run's data are public."""
        return self.sources is not None and self.sources.is_public(options)

    def read(self, options: OptionsT) -> SourceT:
        """Reads the data; imports no TensorFlow, so that errors in the data show at once."""
        raise NotImplementedError

    def meanings_of(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the meanings of a run's metrics that differ from the usual ones.

        Args:
            settings: The run's options, and the name of its data as `dataset`.
        """
        return self.meanings

    def replace_presets(
        self, source: SourceT, options: OptionsT, set_by: Mapping[str, str]
    ) -> tuple[OptionsT, list[str]]:
        """Replaces values of presets that do not fit the data.

        Args:
            source: The data.
            options: The options.
            set_by: Option's name to the preset that has set it: a file of flags, or a size.

        Returns:
            The options, and a line for each replaced option.
        """
        return options, []

    def warnings(self, source: SourceT, options: OptionsT) -> list[str]:
        """Returns warnings about data that do not fit the options, printed before slow work."""
        return []

    def split_warnings(self, source: SourceT, data: DataT) -> list[str]:
        """Returns warnings about the split data."""
        return []

    def split(self, source: SourceT, options: OptionsT) -> DataT:
        """Splits the data for an experiment."""
        raise NotImplementedError

    def sizes(self, data: DataT) -> dict[str, Any]:
        """Returns the sizes that the model is built from, such as the number of items, as JSON."""
        raise NotImplementedError

    def build_model(
        self, sizes: SimpleNamespace, options: OptionsT, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the model that trains.

        Args:
            sizes: The sizes of the data, as from `sizes`.
            options: The options of the run.
            local_layers: The local layers of the method.
        """
        raise NotImplementedError

    def build(self, data_sizes: Mapping[str, Any], options: OptionsT) -> TaskBuild:
        """Builds the model that trains, its algorithm, and its evaluator."""
        from fedpersonal.evaluation.evaluate import Evaluator

        method, sizes = self.method(options), SimpleNamespace(**data_sizes)
        model = self.build_model(sizes, options, method.local_layers(options, self.layers))
        names = tuple(dict.fromkeys(v.layer for v in model.variables))
        parts = {
            part: tuple(n for n in layers if n in names)
            for part, layers in vars(self.layers).items()
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
            clients_per_shard=self.clients_per_evaluation_shard,
            seed=options.seed,
        )
        return TaskBuild(model, algorithm, layers, evaluator)

    def for_model(self, model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
        """Returns a data set with the inputs that a model has."""
        features = {name: dataset.features[name] for name in model.input_spec}
        if self.has_per_client_rows and "user" in features and not model.per_client_tables:
            features["user"] = np.zeros_like(features["user"])
        return dataclasses.replace(dataset, features=features)

    def training_clients(
        self, model: PartitionedModel, train: ClientDataset | LazyClients, options: OptionsT
    ) -> ClientDataset | LazyClients:
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
        """Returns the support and query sets with the inputs that the model has."""
        return self.for_model(model, part.support), self.for_model(model, part.query)

    def evaluated_model(
        self, sizes: SimpleNamespace, options: OptionsT, model: PartitionedModel
    ) -> PartitionedModel:
        """Returns the model to evaluate: the one that trains, unless overridden.

        Args:
            sizes: The sizes of the data, as from `sizes`.
            options: The options of the run.
            model: The model that trains.
        """
        return model

    def central_batching(self, options: OptionsT, num_clients: int) -> tuple[int, int]:
        """Returns the batch size of a server with all data, and its rounds per pass over them.

        A round has as many examples as a federated round has on average.
        """
        clients = min(options.clients_per_round, num_clients)
        return options.client_batch_size, max(1, round(num_clients / clients))

    def validate(
        self, experiment: Experiment[OptionsT, DataT]
    ) -> Callable[[TrainedModel], ClientResults]:
        """Returns a function that evaluates a model between rounds."""
        return experiment.evaluation(experiment.data.validation, start="kept", with_before=False)

    def test(
        self, experiment: Experiment[OptionsT, DataT], trained: TrainedModel
    ) -> EvaluationReport:
        """Evaluates a trained model on the test clients, once."""
        return EvaluationReport(experiment.evaluation(experiment.data.test)(trained))

    def validation_metrics(self, data: DataT) -> Sequence[str]:
        """Returns validation metrics other than the loss and the model's metrics."""
        return ()

    def baselines(
        self, experiment: Experiment[OptionsT, DataT], part: EvaluationSet
    ) -> Mapping[str, Baseline]:
        """Returns baselines, which train no model, by their names.

        Args:
            experiment: The experiment.
            part: The clients to predict: the experiment's `validation` or `test` clients.
        """
        return {}

    def recommend(
        self, experiment: Experiment[OptionsT, DataT], trained: TrainedModel, results: ClientResults
    ) -> Recommendations | None:
        """Returns recommendations to a few test clients; None for tasks without items.

        Args:
            experiment: The task's data and model.
            trained: The trained model.
            results: The test clients' results.
        """
        return None

    def boundary(
        self, experiment: Experiment[OptionsT, DataT]
    ) -> tuple[list[Crossing], list[dict[str, Any]]]:
        """Returns the values that cross between server and clients, and entries for other ones."""
        return experiment.trainer.crossings, []

    def unprotected_outputs(self, experiment: Experiment[OptionsT, DataT]) -> list[str]:
        """Returns the task's outputs that differential privacy does not protect, in words."""
        return []

    def describe(self, experiment: Experiment[OptionsT, DataT]) -> dict[str, Any]:
        """Returns further entries of the summary that do not depend on the test."""
        return {}

    def row_labels(self, experiment: Experiment[OptionsT, DataT]) -> Mapping[str, Sequence[str]]:
        """Returns labels of the rows of tables, by the input that looks them up.

        Here they are users, if the server has all clients' data and a row for each user.
        """
        has_rows = self.has_per_client_rows and experiment.method.has_table
        return {"user": experiment.data.train.client_ids.tolist()} if has_rows else {}

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        test = summary["test"]
        return [
            f"{population_text(test, self.client)}, {test['num_examples']:,} {self.examples}: "
            f"{metrics_text(test, self.metrics, self.client)}"
        ]


def _import_task(module: str) -> Task:
    return importlib.import_module(module).TASK


def _unfit_methods(task: Task, names: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Returns the methods that are not among `names`, and why each does not fit the task."""
    reasons = {
        name: f"the method does not fit the model of {task.name}, which has no layers for it of "
        f"the kind {' or '.join(method.missing_parts(task.layers))}"
        for name, method in methods().items()
        if name not in names
    }
    return tuple(reasons.items())


def fill_counts(text: str, counts: Mapping[str, Any]) -> str:
    """Returns a text with counts in place of names in braces; missing counts are left out."""

    def count(match: re.Match[str]) -> str:
        value = counts.get(match[1])
        return f"{value:,} " if isinstance(value, int) else ""

    return re.sub(r"\{(\w+)\} ", count, text)
