"""The models of FedPerC and its baselines, around a frozen base (Silva et al., section 3)."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.formats import Column
from fedpersonal.data.tables import read_table
from fedpersonal.errors import UserError
from fedpersonal.files import report_write_errors
from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models import (
    adapters as adapted_language_model,
)
from fedpersonal.suite.models import (
    language as generated_prefix_model,
)
from fedpersonal.suite.models import (
    language as head_language_model,
)
from fedpersonal.suite.models import (
    language as prefix_language_model,
)
from fedpersonal.suite.models.gpt2 import BaseModel, load_base_model
from fedpersonal.suite.models.language import (
    count_utterance_tokens,
    frozen_values,
    perplexity,
    sum_utterance_losses,
)
from fedpersonal.suite.models.pretrained_texts import pretrained_share, read_digests
from fedpersonal.suite.models.pretraining import ModelSizes, pretrain_into
from fedpersonal.suite.readers.utterances import Utterances
from fedpersonal.suite.tasks.utterances.source import SOURCES, Dialogues

if TYPE_CHECKING:
    from fedpersonal.evaluation.evaluate import Evaluator
    from fedpersonal.evaluation.results import ClientResults

HEAD = "wte/embeddings"
_LAYER = f"{prefix_language_model.NAME}/{prefix_language_model.BASE}"

# With 256 or 512 a round takes about as long, with 1,024 a tenth longer.
_CHUNK_PLACES = 384

# Results of base models by their weights and texts: evaluating takes a third of a short run.
_base_results: dict[tuple[Any, ...], ClientResults] = {}


def write_frozen_base(base: BaseModel, folder: str | os.PathLike) -> FrozenVariables:
    """Writes a base model's weights where workers can map them; see `FrozenVariables.write`."""
    return FrozenVariables.write(folder, frozen_values(_LAYER, base.weights))


def build_language_model(
    kind: str,
    base: BaseModel,
    frozen: FrozenVariables,
    *,
    local_layers: Sequence[str],
    num_contexts: int,
    history_length: int,
    is_fresh: bool = False,
    parts: Mapping[str, str] | None = None,
    prefix_length: int = 1,
    lora_rank: int = 8,
    lora_matrices: str = "qkv",
    num_users: int | None = None,
    vector_size: int = 0,
) -> PartitionedModel:
    """Returns a model around a frozen base.

    Args:
        kind: `prefix`, `projected`, `generated`, `split_head`, `shared_head` or `adapted`.
        base: The base model.
        frozen: The base model's weights, from `write_frozen_base`.
        local_layers: The local layers.
        num_contexts: The number of contexts.
        history_length: Tokens from which a `generated` prefix is made.
        is_fresh: Whether heads start at random, instead of as the base model's head.
        parts: Part of an `adapted` model to `shared` or `personal`.
        prefix_length: Vectors of a prefix that is not `generated`.
        lora_rank: The rank of LoRA's factors.
        lora_matrices: The matrices of a block that have LoRA's factors: `qkv` or `all`.
        num_users: Users with rows in a server's tables, for `prefix` or `adapted` models; None
            without such tables.
        vector_size: The size of a user's vector, from which a `projected` prefix is made.
    """
    start = base.weights[HEAD][base.config.bos_token_id]
    if is_fresh:
        initial = head_language_model.random_head_initializer(base.config)
    else:
        (full_name,) = frozen_values(_LAYER, {HEAD: base.weights[HEAD]})
        initial = head_language_model.copy_head_initializer(
            lambda: tf.transpose(frozen.tensor(full_name))
        )
    input_spec = dict(prefix_language_model.INPUT_SPEC)
    lookups = {prefix_language_model.PERSONAL: "user", prefix_language_model.CONTEXT: "context"}
    sizes: dict[str, Any] = {"num_contexts": num_contexts, "start": start}
    model: Callable[..., tf.keras.Model] = prefix_language_model.PrefixLanguageModel
    user_tables: list[str] = []
    if kind == "prefix":
        sizes.update(prefix_length=prefix_length, num_users=num_users or 1)
        user_tables = [prefix_language_model.PERSONAL]
    elif kind == "projected":
        sizes.update(prefix_length=prefix_length, projects=True)
        del input_spec["user"], lookups[prefix_language_model.PERSONAL]
        input_spec["vector"] = tf.TensorSpec([None, vector_size], tf.float32)
    elif kind == "adapted":
        model = adapted_language_model.AdaptedLanguageModel
        sizes = {"parts": parts, "start": start}
        sizes.update(prefix_length=prefix_length, num_users=num_users or 1)
        sizes.update(lora_rank=lora_rank, lora_matrices=lora_matrices)
        del input_spec["context"]
        user_tables = adapted_language_model.local_layers(parts or {})
        lookups = dict.fromkeys(user_tables, "user")
    elif kind == "generated":
        model = generated_prefix_model.GeneratedPrefixModel
        input_spec["history"] = tf.TensorSpec([None, history_length], tf.int32)
    elif kind == "split_head":
        model = head_language_model.HeadModel
        sizes = {"num_contexts": num_contexts, "initial": initial}
        lookups = {head_language_model.CONTEXT_HEAD: "context"}
        del input_spec["user"]
    elif kind == "shared_head":
        model, sizes, lookups = head_language_model.HeadModel, {"initial": initial}, {}
        input_spec = {"text": input_spec["text"]}
    return PartitionedModel(
        lambda: model(base.config, **sizes),
        local_layers=local_layers,
        frozen_layers=(prefix_language_model.BASE,),
        frozen=frozen,
        loss=sum_utterance_losses,
        metrics=[perplexity()],
        lookups=lookups,
        per_client_tables=user_tables if num_users else [],
        input_spec=input_spec,
        label_spec=tf.TensorSpec([None, None], tf.int32),
        example_weight=count_utterance_tokens,
        unit="tokens",
        sequence_length=lambda features, labels: tf.cast(count_utterance_tokens(labels), tf.int32),
        chunk_places=_CHUNK_PLACES,
    )


# The sizes and the training steps of base models that are pretrained here. There are few generated
# texts. TV shows and Reddit have 14 million tokens, of which the steps read 3.5 passes.
_LARGE, _SMALL = ModelSizes(), ModelSizes(vocab_size=800, num_layers=2, dim=64, positions=40)
_PRETRAINING = {
    "generated": (_SMALL, 400),
    "file": (_LARGE, 1200),
    "tv_shows": (_LARGE, 24_000),
    "reddit": (_LARGE, 24_000),
}
_BATCH_SIZE, _RATE = 32, 2e-3
# A larger share of a user's sentences in the pretraining texts is no coincidence.
_MOSTLY = 0.5
# The settings of adapting a base model to the texts of users who do not take part.
_ADAPTING_STEPS, _ADAPTING_RATE = 400, 5e-4


def find_base_model(
    source: str | None,
    dialogues: Dialogues,
    *,
    revision: str | None = None,
    adapted: bool = False,
    cache_dir: str,
    progress: bool = True,
) -> BaseModel:
    """Loads a named or cached base model, or pretrains one.

    It is pretrained on texts of users who do not take part, and for TV shows also on Reddit
    comments next to their file, if there are any: on no text of users who take part.

    Args:
        source: A folder, or a name on the hub; None to pretrain.
        dialogues: The utterances.
        revision: As in `load_base_model`.
        adapted: Whether a model that is pretrained here is trained further on texts of users who do
            not take part, and on no other texts.
        cache_dir: The folder of pretrained models.
        progress: Whether to report on stderr.

    Raises:
        UserError: If the model cannot be loaded, or there are too few texts to train one.
    """
    if source:
        if adapted:
            raise UserError(
                f"--base_model_adapted needs a base model that is pretrained here, without "
                f"--base_model={source}"
            )
        return load_base_model(source, revision=revision)
    if revision is not None:
        raise UserError(
            f"--base_model_revision={revision} needs --base_model, a name on the hub: without one, "
            "a base model is pretrained here"
        )
    sizes, steps = _PRETRAINING[dialogues.kind]
    files = [pathlib.Path(path) for path in (dialogues.path, _more_texts(dialogues)) if path]
    settings: dict[str, Any] = {
        "sizes": dataclasses.asdict(sizes),
        "steps": steps,
        "batch_size": _BATCH_SIZE,
        "learning_rate": _RATE,
        **dialogues.describe(),
        "files": [[file.name, file.stat().st_size] for file in files],
    }
    cache = _Cache(pathlib.Path(cache_dir), dialogues.kind, progress)

    def all_texts() -> list[str]:
        texts = dialogues.other_texts().tolist()
        for more in files[1:]:
            texts += list(read_table(more, [Column("text")], bad_rows="count").columns["text"])
        if not texts:
            raise UserError(
                f"{dialogues.path}: all users take part, so none is left to pretrain a base model "
                "on: give --base_model, or fewer users by --num_users."
            )
        return texts

    base = cache.find(settings, all_texts, start=sizes, steps=steps, learning_rate=_RATE)
    if not adapted:
        return base
    settings = {**settings, "adapting": {"steps": _ADAPTING_STEPS, "learning_rate": _ADAPTING_RATE}}
    return cache.find(
        settings,
        lambda: dialogues.other_texts().tolist(),
        start=base,
        steps=_ADAPTING_STEPS,
        learning_rate=_ADAPTING_RATE,
    )


def find_pretrained_users(
    base: BaseModel, utterances: Utterances, users: Collection[str]
) -> list[str]:
    """Returns the users most of whose sentences were among the base model's pretraining texts.

    A smaller share may be a coincidence, as several users may say the same sentence.

    Args:
        base: The base model; a model that this library did not pretrain has no digests.
        utterances: The utterances.
        users: Names of users to check.
    """
    digests = read_digests(base.source)
    if not len(digests):
        return []
    bounds = zip(utterances.client_ids, utterances.offsets, utterances.offsets[1:])
    texts = {user: utterances.texts[first:last] for user, first, last in bounds}
    return [user for user in users if pretrained_share(texts[user], digests) > _MOSTLY]


@dataclasses.dataclass(frozen=True)
class _Cache:
    """Folders of pretrained models, named by a hash of their settings."""

    folder: pathlib.Path
    kind: str
    progress: bool

    def find(
        self, settings: dict[str, Any], texts: Callable[[], list[str]], **work: Any
    ) -> BaseModel:
        """Loads the model of these settings; trains it first if there is none."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        folder = self.folder / f"{self.kind}_{digest}"
        if not folder.is_dir():
            with _locked(folder):
                if not folder.is_dir():  # Else another run has made it meanwhile.
                    self._make(folder, texts(), settings=settings, **work)
        return load_base_model(folder)

    def _make(self, folder: pathlib.Path, texts: list[str], **work: Any) -> None:
        if self.progress:
            print(f"pretraining a small base model, once: {folder}", file=sys.stderr, flush=True)
        pretrain_into(folder, texts, batch_size=_BATCH_SIZE, seed=0, progress=self.progress, **work)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds a lock, so that only one run at a time makes the folder."""
    path = folder.with_name(f"{folder.name}.lock")
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def evaluate_base_model(
    base: BaseModel, frozen: FrozenVariables, query: ClientDataset, evaluator: Evaluator
) -> ClientResults:
    """Evaluates a base model without any added part, with its embedding of a text's first token.

    Runs of one process that share the base model and the texts evaluate it once.

    Args:
        base: The base model.
        frozen: The base model's weights.
        query: The query sets.
        evaluator: The evaluator of the model around the base.
    """
    from fedpersonal.suite.models.language import PERSONAL

    key = (*sorted(frozen.paths.values()), query.fingerprint())
    if key in _base_results:
        return _base_results[key]
    contexts = int(query.features["context"].max(initial=0)) + 1
    sizes: dict[str, Any] = {"local_layers": (), "num_contexts": contexts, "history_length": 0}
    model = build_language_model("prefix", base, frozen, **sizes)
    # The model equals the base if the prefix of a text is multiplied by 1.
    weights = {
        name: np.ones_like(value) if PERSONAL in name else value
        for name, value in model.initial_global_values().items()
    }
    features = {name: query.features[name] for name in model.input_spec}
    features["user"] = np.zeros_like(features["user"])
    query = dataclasses.replace(query, features=features)
    alone = dataclasses.replace(evaluator, model=model)
    results = alone.pack(query.head(0), query, (), has_kept=False, with_before=False)(weights)
    return _base_results.setdefault(key, results)


def _more_texts(dialogues: Dialogues) -> str | None:
    if dialogues.path is None or dialogues.kind != "tv_shows":
        return None
    paths = (pathlib.Path(dialogues.path).with_name(name) for name in SOURCES.files["reddit"])
    return next((str(path) for path in paths if path.exists()), None)
