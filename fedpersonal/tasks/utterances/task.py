"""Language modelling of utterances in contexts as a task: data, model, tests by samples."""

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
from fedpersonal.evaluation.guess import strongest
from fedpersonal.methods.method import Layers
from fedpersonal.runs.tested import TestReport
from fedpersonal.tasks.figures import tested_text
from fedpersonal.tasks.task import EvaluationSet, Task
from fedpersonal.tasks.utterances.data import (
    UtteranceData,
    add_history_of,
    add_own_history,
    finetuning_sets,
    split_utterances,
)
from fedpersonal.tasks.utterances.methods import EMBEDDING, METHODS, Alternating
from fedpersonal.tasks.utterances.source import SOURCES, Dialogues, UtteranceOptions, UtteranceRun

if TYPE_CHECKING:
    from fedpersonal.evaluation.guess import Guess
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.federated.boundary import Crossing
    from fedpersonal.federated.noisy_mean import NoisyMean
    from fedpersonal.methods.method import Method
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.clients import ReadWhenDrawn
    from fedpersonal.training.trained import Kept, TrainedModel

    UtteranceExperiment = Experiment["UtteranceRun", UtteranceData]

# After fine-tuning on so many utterances of each client; None for all that it has.
SAMPLES = (1, 5, 15, None)
BASE_ALONE = "the base model alone"
# Larger than any norm, and small enough for float32.
_NO_BOUND = 1e30


class UtteranceTask(Task[UtteranceRun, Dialogues, UtteranceData]):
    """A frozen GPT-2 behind embeddings of its users and contexts (Silva et al., section 4)."""

    name = "tv_shows"
    own_options = UtteranceOptions
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
    own_methods = METHODS
    layers = Layers(embedding=(EMBEDDING,), head=(EMBEDDING,))
    has_own_rows = True
    evaluated_together = 0
    examples = "utterances"
    metrics = ("perplexity",)
    meanings = {
        "perplexity": "among how many equally likely tokens the model hesitates, on average: e to "
        "the power of the loss",
        "loss": "what training minimises, cross-entropy in nats a token",
    }
    predicts = (
        "Each next token of {num_utterances} utterances by {num_users} users, from the tokens "
        "before it"
    )
    sources = SOURCES

    def check(self, options: UtteranceRun) -> None:
        """Refuses what does not go with the method: matrices, vectors, or an optimizer."""
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
                f"{options.server_optimizer} would move the factor that rests."
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
        """Says how many users have zeros for a vector; mistakes in vectors show here."""
        if source.vectors is None or source.vectors.any(axis=1).all():
            return []
        count, users = (~source.vectors.any(axis=1)).sum(), len(source.vectors)
        return [f"{options.user_vectors}: {count} of {users} users have zeros for a vector."]

    def split(self, source: Dialogues, options: UtteranceRun) -> UtteranceData:
        """Splits the utterances and tokenises them for the base model."""
        from fedpersonal.tasks.utterances.models import find_base_model

        if options.evaluate_on == "unseen" and self.method(options).has_table:
            raise UserError(
                f"--method={options.method} needs --evaluate_on=seen: its server has nothing "
                "of users who never took part"
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
        """Says how many test users the base model was pretrained on."""
        from fedpersonal.tasks.utterances.models import find_pretrained_users

        assert data.base
        users = data.test.query.client_ids.tolist()
        count = len(find_pretrained_users(data.base, source.utterances, users))
        if not count:
            return []
        return [
            f"the base model {data.base.name} was pretrained on texts of {count} of {len(users)} "
            "test users, whose figures are too good: pretrain it without them "
            "(--leave_out_users), or name another --base_model"
        ]

    def sizes(self, data: UtteranceData) -> dict[str, Any]:
        """Returns the base model and the contexts."""
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
        from fedpersonal.models.gpt2 import load_base_model
        from fedpersonal.tasks.utterances.models import build_language_model, freeze

        method = self.method(options)
        base = load_base_model(sizes.base_model, revision=options.base_model_revision)
        return build_language_model(
            _model_of(method),
            base,
            freeze(base, pathlib.Path(options.base_model_dir) / "frozen"),
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
        self, model: PartitionedModel, train: ClientDataset | ReadWhenDrawn, options: UtteranceRun
    ) -> ClientDataset | ReadWhenDrawn:
        """Returns the clients that train, with a history where the model reads one."""
        if "history" in model.input_spec and isinstance(train, ClientDataset):
            train = add_own_history(
                train,
                length=model.input_spec["history"].shape[1],
                num_samples=[n for n in SAMPLES if n],
                seed=options.seed,
            )
        return super().training_clients(model, train, options)

    def for_evaluation(
        self, model: PartitionedModel, part: EvaluationSet
    ) -> tuple[ClientDataset, ClientDataset]:
        """Returns both sets, with what the support set says where the model reads a history."""
        support, query = part.support, part.query
        if "history" in model.input_spec:
            length = model.input_spec["history"].shape[1]
            query = add_history_of(query, support, length=length)
            support = add_history_of(support, support, length=length)
        return self.for_model(model, support), self.for_model(model, query)

    def validate(self, experiment: UtteranceExperiment) -> Callable[[TrainedModel], ClientResults]:
        """Returns what evaluates a model between rounds, after fine-tuning on 15 utterances."""
        part, phases = experiment.data.validation, experiment.evaluator.finetuning
        return experiment.evaluation(part, phases, start="kept", with_before=False)

    def test(self, experiment: UtteranceExperiment, trained: TrainedModel) -> TestReport:
        """Tests after fine-tuning on more and more; a client's query set is always the same."""
        from fedpersonal.runs.tested import test_summary

        data, options = experiment.data, experiment.options
        mean = self._noisy_mean(experiment)
        if mean:
            assert trained.kept_by
            known, values = trained.kept_by(data.train.client_ids.tolist())
            start = mean({name: value[known] for name, value in values.items()})
            trained = dataclasses.replace(trained, kept_by=the_same_for_all(start))
        phases = experiment.evaluator.finetuning
        by_samples = {}
        for count in (0, *SAMPLES) if phases else SAMPLES:
            sets = finetuning_sets(data.test_clients, num_samples=count or None, seed=options.seed)
            part = EvaluationSet(*sets, seen=data.test.seen)
            brings_kept = True if mean else None
            if count == 0:  # Nobody rebuilds anything, from what would be its whole support set.
                brings_kept = brings_kept or experiment.has_kept(part)
            evaluate = experiment.evaluation(
                part,
                phases if count != 0 else (),
                brings_kept=brings_kept,
                with_before=False,
            )
            by_samples["all" if count is None else str(count)] = evaluate(trained)
        tests = {name: test_summary(own, own.overall()) for name, own in by_samples.items()}
        results = by_samples["all"]
        tokens = {"num_tokens": results.after["perplexity"][:, 1].astype(np.int64)}
        return TestReport(results, columns=tokens, description={"by_samples": tests})

    def guesses(self, experiment: UtteranceExperiment, part: EvaluationSet) -> dict[str, Guess]:
        """The frozen base model by itself, which no client has trained."""
        from fedpersonal.evaluation.guess import Guess
        from fedpersonal.tasks.utterances.models import evaluate_alone

        assert experiment.data.base and experiment.model.frozen  # Since `split` and `build_model`.
        results = evaluate_alone(
            experiment.data.base, experiment.model.frozen, part.query, experiment.evaluator
        )
        clients = results.per_client()
        names = ("loss", "perplexity")
        found = Guess(results.overall(), {name: clients[f"{name}_after"] for name in names})
        return {BASE_ALONE: found}

    def _noisy_mean(self, experiment: UtteranceExperiment) -> NoisyMean | None:
        """Returns what averages the trained users' embeddings, where unseen users start there."""
        from fedpersonal.federated.noisy_mean import NoisyMean

        options = experiment.options
        is_small = _model_of(experiment.method) == "prefix"
        start = options.unseen_start or ("noisy_mean" if is_small else "mean")
        if experiment.data.test.seen or not experiment.algorithm.keeps or start == "fresh":
            return None
        if experiment.algorithm.personal:  # Copies start at what the server sends.
            return None
        # Others are too large for a bound that hides one user's, and the paper has no noise there.
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
        """Returns what crosses; the noisy mean and the frozen weights do, too."""
        mean, num_bytes = self._noisy_mean(experiment), _frozen_bytes(experiment.model)
        frozen = {
            "direction": "once",
            "name": "frozen weights, read from a file once a run",
            "dtype": "float32",
            "shape": [num_bytes // 4],
            "num_bytes": num_bytes,
        }
        return [*experiment.trainer.crossings, *(mean.crossings if mean else [])], [frozen]

    def outside_privacy(self, experiment: UtteranceExperiment) -> list[str]:
        """Names the base model, and the mean that unseen users start from."""
        options, mean = experiment.options, self._noisy_mean(experiment)
        return [
            "the base model" + (", pretrained on other users" if not options.base_model else ""),
            *(["what users' vectors were learnt from"] if options.user_vectors else []),
            *(["the mean of what users keep, from which unseen users start"] if mean else []),
        ]

    def describe(self, experiment: UtteranceExperiment) -> dict[str, Any]:
        """Says whom the summary is of, and what a client holds."""
        model = experiment.model
        return {
            "evaluate_on": experiment.options.evaluate_on,
            "base_model": self.sizes(experiment.data)["base_model"],
            "local_bytes_per_client": 4 * sum(v.size for v in model.local_variables),
            "frozen_bytes": _frozen_bytes(model),
        }

    def names(self, experiment: UtteranceExperiment) -> dict[str, Sequence[str]]:
        """Names the contexts, and the users whose parts are rows of the server's tables."""
        return {"context": experiment.data.context_names.tolist(), **super().names(experiment)}

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        best = strongest(summary["test"]["guesses"], "perplexity")
        who = tested_text(summary["test"], f"{summary['evaluate_on']} user")
        lines = [f"{who}: perplexity of what they say in the test, lower is better:"]
        lines += [f"  {best[1]:.2f} by {best[0]}"] if best else []
        for samples, results in summary["by_samples"].items():
            number = "one other utterance" if samples == "1" else f"{samples} other utterances"
            stage = (
                f"after each has trained on {number}"
                if samples != "0"
                else "before any of them trains"
            )
            lines.append(f"  {results['perplexity']:.2f} {stage}")
        return lines


def _model_of(method: type[Method]) -> str:
    """Returns the kind of a method's model; methods of other tasks come without one."""
    return getattr(method, "model", "prefix")


def _frozen_bytes(model: PartitionedModel) -> int:
    return model.frozen.num_bytes if model.frozen else 0


def the_same_for_all(values: Mapping[str, np.ndarray]) -> Callable[[Sequence[str]], Kept]:
    """Returns what gives values to clients as if each had kept them."""

    def kept_by(client_ids: Sequence[str]) -> Kept:
        count = len(client_ids)
        repeated = {name: np.repeat(v[np.newaxis], count, axis=0) for name, v in values.items()}
        return np.ones(count, bool), repeated

    return kept_by


TASK = UtteranceTask()
