"""The task of language modelling of utterances in contexts: data, model, and tests by samples."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import strongest
from fedpersonal.methods.method import Layers
from fedpersonal.suite.tasks.figures import population_text
from fedpersonal.suite.tasks.task import EvaluationSet, Task
from fedpersonal.suite.tasks.utterances.data import (
    UtteranceData,
    add_sampled_history,
    add_support_history,
    finetuning_sets,
    split_utterances,
)
from fedpersonal.suite.tasks.utterances.methods import EMBEDDING, METHODS, Alternating
from fedpersonal.suite.tasks.utterances.source import (
    SOURCES,
    Dialogues,
    UtteranceOptions,
    UtteranceRun,
)
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.federated.boundary import Crossing
    from fedpersonal.federated.noisy_mean import NoisyMean
    from fedpersonal.methods.method import Method
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.clients import LazyClients
    from fedpersonal.training.trained import Kept, TrainedModel

    UtteranceExperiment = Experiment["UtteranceRun", UtteranceData]

# The numbers of utterances of a client to fine-tune on before the test; None for all.
SAMPLES = (1, 5, 15, None)
BASE_ALONE = "the base model alone"
# Larger than any norm, and small enough for float32.
_NO_BOUND = 1e30


class UtteranceTask(Task[UtteranceRun, Dialogues, UtteranceData]):
    """A frozen GPT-2 with embeddings of users and contexts (Silva et al., section 4)."""

    name = "tv_shows"
    usage = """FedPerC and its rivals on utterances of characters, or of Reddit's users.

fedpersonal tv_shows --flagfile=experiments/presets/tv_shows_quick.flags"""
    extra_options = UtteranceOptions
    defaults = {
        "method": "fedperc",
        "total_rounds": 40,
        "clients_per_round": 1000,
        "client_batch_size": 15,
        "client_optimizer": "adam",
        "client_learning_rate": 0.001,
        "local_steps": 10,
        "proximal": 1.0,
        "weighting": "uniform",
        "finetuning_learning_rate": 0.001,
        "finetuning_epochs": 15,
        "max_finetuning_steps": 15,
        "packing": "pooled",
        "rounds_per_eval": 5,
        "rounds_per_checkpoint": 10,
    }
    extra_methods = METHODS
    layers = Layers(embedding=(EMBEDDING,), head=(EMBEDDING,))
    has_per_client_rows = True
    clients_per_evaluation_shard = 0
    examples = "utterances"
    metrics = ("perplexity",)
    meanings = {
        "perplexity": "e to the power of the loss: the number of equally likely tokens that would "
        "be as uncertain",
        "loss": "what training minimises, cross-entropy in nats per token",
    }
    predicts = (
        "Each next token of {num_utterances} utterances by {num_users} users, from the tokens "
        "before it"
    )
    sources = SOURCES

    def check(self, options: UtteranceRun) -> None:
        """Raises a `UserError` if matrices, vectors or the optimizer do not fit the method."""
        super().check(options)
        method = self.method(options)
        if options.lora_matrices != "qkv" and "lora_b" not in getattr(method, "parts", {}):
            raise UserError(
                f"--lora_matrices={options.lora_matrices} needs a method with LoRA; "
                f"--method={options.method} has none."
            )
        if (_model_of(method) == "projected") != bool(options.user_vectors):
            raise UserError(
                f"--user_vectors={options.user_vectors} needs --method=fedperc_projected."
                if options.user_vectors
                else f"--method={options.method} needs --user_vectors, a table of users' vectors."
            )
        if issubclass(method, Alternating) and options.server_optimizer not in (None, "sgd"):
            raise UserError(
                f"--method={options.method} needs --server_optimizer=sgd: "
                f"{options.server_optimizer} would change the factor that does not train."
            )

    def read(self, options: UtteranceRun) -> Dialogues:
        """Finds the utterances that options name."""
        if importlib.util.find_spec("transformers") is None:
            raise UserError(
                f"{self.name} needs the package transformers, which is not installed: "
                "pip install 'fedpersonal[language]'."
            )
        return Dialogues(*options.find(SOURCES), options)

    def warnings(self, source: Dialogues, options: UtteranceRun) -> list[str]:
        """Returns a warning if users have zeros for a vector; also raises errors of vectors."""
        if source.vectors is None or source.vectors.any(axis=1).all():
            return []
        count, users = (~source.vectors.any(axis=1)).sum(), len(source.vectors)
        return [f"{options.user_vectors}: {count} of {users} users have zeros for a vector."]

    def split(self, source: Dialogues, options: UtteranceRun) -> UtteranceData:
        """Splits the utterances and tokenises them for the base model."""
        from fedpersonal.suite.tasks.utterances.models import find_base_model

        if options.evaluate_on == "unseen" and self.method(options).has_table:
            raise UserError(
                f"--method={options.method} needs --evaluate_on=seen: its server has no rows for "
                "unseen users"
            )
        base = find_base_model(
            options.base_model,
            source,
            revision=options.base_model_revision,
            adapted=options.base_model_adapted,
            cache_dir=options.base_model_dir,
        )
        places = options.text_length + options.prefix_length - 1
        if places > base.config.n_positions:
            raise UserError(
                f"--text_length={options.text_length} and --prefix_length={options.prefix_length} "
                f"need {places} positions; the base model {base.name} has "
                f"{base.config.n_positions}"
            )
        data = split_utterances(
            source.utterances,
            lambda texts: base.tokenizer(list(texts), verbose=False)["input_ids"],
            options,
            end=base.config.eos_token_id,
            vectors=source.vectors,
        )
        return dataclasses.replace(data, base=base)

    def split_warnings(self, source: Dialogues, data: UtteranceData) -> list[str]:
        """Returns a warning if the base model was pretrained on texts of test users."""
        from fedpersonal.suite.tasks.utterances.models import find_pretrained_users

        assert data.base
        users = data.test.query.client_ids.tolist()
        count = len(find_pretrained_users(data.base, source.utterances, users))
        if not count:
            return []
        return [
            f"the base model {data.base.name} was pretrained on texts of {count} of {len(users)} "
            "test users, whose results are too good: pretrain it without them "
            "(--leave_out_users), or name another --base_model"
        ]

    def sizes(self, data: UtteranceData) -> dict[str, Any]:
        """Returns the base model, the contexts, and the numbers of users and vectors."""
        assert data.base  # Since `split`.
        vectors = data.train.features.get("vector")
        return {
            **({} if vectors is None else {"vector_size": vectors.shape[1]}),
            "base_model": data.base.source,
            "contexts": data.context_names.tolist(),
            "num_users": data.train.num_clients,
        }

    def build_model(
        self, sizes: SimpleNamespace, options: UtteranceRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the method's model around the frozen base."""
        from fedpersonal.suite.models.gpt2 import load_base_model
        from fedpersonal.suite.tasks.utterances.models import (
            build_language_model,
            write_frozen_base,
        )

        method = self.method(options)
        base = load_base_model(sizes.base_model, revision=options.base_model_revision)
        return build_language_model(
            _model_of(method),
            base,
            write_frozen_base(base, pathlib.Path(options.base_model_dir) / "frozen"),
            local_layers=local_layers,
            num_contexts=len(sizes.contexts),
            history_length=options.history_length,
            is_fresh=getattr(method, "is_fresh", False),
            parts=getattr(method, "parts", None),
            prefix_length=options.prefix_length,
            lora_rank=options.lora_rank,
            lora_matrices=options.lora_matrices,
            num_users=sizes.num_users if method.has_table else None,
            vector_size=getattr(sizes, "vector_size", 0),
        )

    def training_clients(
        self, model: PartitionedModel, train: ClientDataset | LazyClients, options: UtteranceRun
    ) -> ClientDataset | LazyClients:
        """Returns the clients that train, with histories if the model reads them."""
        if "history" in model.input_spec and isinstance(train, ClientDataset):
            train = add_sampled_history(
                train,
                length=model.input_spec["history"].shape[1],
                num_samples=[n for n in SAMPLES if n],
                seed=options.seed,
            )
        return super().training_clients(model, train, options)

    def for_evaluation(
        self, model: PartitionedModel, part: EvaluationSet
    ) -> tuple[ClientDataset, ClientDataset]:
        """Returns both sets, with the support set as history if the model reads one."""
        support, query = part.support, part.query
        if "history" in model.input_spec:
            length = model.input_spec["history"].shape[1]
            query = add_support_history(query, support, length=length)
            support = add_support_history(support, support, length=length)
        return self.for_model(model, support), self.for_model(model, query)

    def validate(self, experiment: UtteranceExperiment) -> Callable[[TrainedModel], ClientResults]:
        """Returns a function that evaluates a model after fine-tuning on 15 utterances."""
        part, phases = experiment.data.validation, experiment.evaluator.finetuning
        return experiment.evaluation(part, phases, start="kept", with_before=False)

    def test(self, experiment: UtteranceExperiment, trained: TrainedModel) -> EvaluationReport:
        """Tests after fine-tuning on support sets of several sizes, with the same query sets."""
        from fedpersonal.training.tested import test_summary

        data, options = experiment.data, experiment.options
        mean = self._noisy_mean(experiment)
        if mean:
            assert trained.kept_by
            has_kept, values = trained.kept_by(data.train.client_ids.tolist())
            start = mean({name: value[has_kept] for name, value in values.items()})
            trained = dataclasses.replace(trained, kept_by=kept_by_all(start))
        phases = experiment.evaluator.finetuning
        by_samples = {}
        for count in (0, *SAMPLES) if phases else SAMPLES:
            sets = finetuning_sets(data.test_clients, num_samples=count or None, seed=options.seed)
            part = EvaluationSet(*sets, seen=data.test.seen)
            brings_kept = True if mean else None
            if count == 0:  # Clients must not rebuild variables from their whole support sets.
                brings_kept = brings_kept or experiment.has_kept(part)
            evaluate = experiment.evaluation(
                part,
                phases if count != 0 else (),
                brings_kept=brings_kept,
                with_before=False,
            )
            by_samples["all" if count is None else str(count)] = evaluate(trained)
        tests = {n: test_summary(sample, sample.overall()) for n, sample in by_samples.items()}
        results = by_samples["all"]
        tokens = {"num_tokens": results.after["perplexity"][:, 1].astype(np.int64)}
        return EvaluationReport(results, columns=tokens, description={"by_samples": tests})

    def baselines(
        self, experiment: UtteranceExperiment, part: EvaluationSet
    ) -> dict[str, Baseline]:
        """Returns the metrics of the frozen base model, which no client has trained."""
        from fedpersonal.evaluation.baselines import Baseline
        from fedpersonal.suite.tasks.utterances.models import evaluate_base_model

        assert experiment.data.base and experiment.model.frozen  # Since `split` and `build_model`.
        results = evaluate_base_model(
            experiment.data.base, experiment.model.frozen, part.query, experiment.evaluator
        )
        clients = results.per_client()
        names = ("loss", "perplexity")
        values = {name: clients[f"{name}_after"] for name in names}
        return {BASE_ALONE: Baseline(results.overall(), values)}

    def _noisy_mean(self, experiment: UtteranceExperiment) -> NoisyMean | None:
        """Returns the aggregator of kept values from whose mean unseen users start, if any."""
        from fedpersonal.federated.noisy_mean import NoisyMean

        options = experiment.options
        is_small = _model_of(experiment.method) == "prefix"
        start = options.unseen_start or ("noisy_mean" if is_small else "mean")
        if experiment.data.test.seen or not experiment.algorithm.keeps or start == "fresh":
            return None
        if experiment.algorithm.personal:  # Copies start from the server's variables.
            return None
        # Larger parts would need too much noise to hide one user, and the paper adds none to them.
        is_noisy = start == "noisy_mean"
        return NoisyMean(
            experiment.model,
            clip_norm=options.clip_norm if is_noisy else _NO_BOUND,
            noise_multiplier=options.noise_multiplier if is_noisy else 0.0,
            seed=options.seed,
        )

    def boundary(
        self, experiment: UtteranceExperiment
    ) -> tuple[list[Crossing], list[dict[str, Any]]]:
        """Returns the crossing values, with the noisy mean, and an entry for frozen weights."""
        mean, num_bytes = self._noisy_mean(experiment), _frozen_bytes(experiment.model)
        frozen = {
            "direction": "once",
            "name": "frozen weights, read from a file once a run",
            "dtype": "float32",
            "shape": [num_bytes // 4],
            "num_bytes": num_bytes,
        }
        return [*experiment.trainer.crossings, *(mean.crossings if mean else [])], [frozen]

    def unprotected_outputs(self, experiment: UtteranceExperiment) -> list[str]:
        """Returns the base model, and the mean from which unseen users start, in words."""
        options, mean = experiment.options, self._noisy_mean(experiment)
        return [
            "the base model" + (", pretrained on other users" if not options.base_model else ""),
            *(["the data from which users' vectors were learnt"] if options.user_vectors else []),
            *(["the mean of users' local variables, where unseen users start"] if mean else []),
        ]

    def describe(self, experiment: UtteranceExperiment) -> dict[str, Any]:
        """Returns the evaluated users, the base model, and the sizes of a client's variables."""
        model = experiment.model
        return {
            "evaluate_on": experiment.options.evaluate_on,
            "base_model": self.sizes(experiment.data)["base_model"],
            "local_bytes_per_client": 4 * sum(v.size for v in model.local_variables),
            "frozen_bytes": _frozen_bytes(model),
        }

    def row_labels(self, experiment: UtteranceExperiment) -> dict[str, Sequence[str]]:
        """Returns labels for contexts, and for users with rows in the server's tables."""
        return {"context": experiment.data.context_names.tolist(), **super().row_labels(experiment)}

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        best = strongest(summary["test"]["guesses"], "perplexity")
        population = population_text(summary["test"], f"{summary['evaluate_on']} user")
        lines = [f"{population}: perplexity of test utterances, lower is better:"]
        lines += [f"  {best[1]:.2f} by {best[0]}"] if best else []
        for samples, results in summary["by_samples"].items():
            number = "one other utterance" if samples == "1" else f"{samples} other utterances"
            stage = (
                f"after each user's fine-tuning on {number}"
                if samples != "0"
                else "before fine-tuning"
            )
            lines.append(f"  {results['perplexity']:.2f} {stage}")
        return lines


def _model_of(method: type[Method]) -> str:
    """Returns the kind of a method's model; methods of other tasks have none."""
    return getattr(method, "model", "prefix")


def _frozen_bytes(model: PartitionedModel) -> int:
    return model.frozen.num_bytes if model.frozen else 0


def kept_by_all(values: Mapping[str, np.ndarray]) -> Callable[[Sequence[str]], Kept]:
    """Returns a function that returns the same values for each client, as if kept by it."""

    def kept_by(client_ids: Sequence[str]) -> Kept:
        count = len(client_ids)
        repeated = {name: np.repeat(v[np.newaxis], count, axis=0) for name, v in values.items()}
        return np.ones(count, bool), repeated

    return kept_by


TASK = UtteranceTask()
