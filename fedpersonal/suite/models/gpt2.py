"""A pretrained GPT-2 with its tokenizer, in the folder format of HuggingFace."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.sources import check_count
from fedpersonal.errors import UserError, one_line
from fedpersonal.files import TEMPORARY_SUFFIX, atomic_write, read_json

if TYPE_CHECKING:
    import tensorflow as tf
    from tokenizers import Tokenizer, models
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

_SERVES = "give a local folder, such as `fedpersonal pretrain` makes"
_CONFIG, _H5, _SAFETENSORS = "config.json", "tf_model.h5", "model.safetensors"
_SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
# Options that the TensorFlow class accepts in a config, but ignores.
_UNSUPPORTED = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")
_MAIN_LAYER = "/transformer/"


@dataclasses.dataclass(frozen=True, eq=False)
class BaseModel:
    """A pretrained, frozen GPT-2.

    Attributes:
        name: The folder's name, or the name on the hub.
        source: The folder or name from which it was loaded.
        config: The sizes and options of the model.
        weights: A float32 array for each variable of a `TFGPT2MainLayer`, by its name below that
            layer, such as "wte/embeddings" or "h_._0/attn/c_attn/weight", in the order in which
            the layer creates its variables.
        tokenizer: The tokenizer, with `config.vocab_size` tokens.
    """

    name: str
    source: str
    config: GPT2Config
    weights: dict[str, np.ndarray]
    tokenizer: GPT2TokenizerFast


def load_base_model(source: str | os.PathLike, *, revision: str | None = None) -> BaseModel:
    """Loads a GPT-2 from a folder or from the HuggingFace hub.

    Args:
        source: A folder with config.json, tokenizer.json (or vocab.json and merges.txt), and
            tf_model.h5 (or model.safetensors). If there is no such folder, a name on the hub, such
            as "distilgpt2", whose files are downloaded into HuggingFace's cache.
        revision: The commit, tag or branch on the hub; None for the newest files there.

    Raises:
        UserError: If there is no such folder and the hub does not have the model or cannot be
            reached, a file is missing or unreadable, the files do not match, the model is not a
            GPT-2, or the source is a folder and there is a revision.
    """
    source = os.fspath(source)
    if os.path.isdir(source):
        if revision is not None:
            raise UserError(
                f"{source} is a folder, which has no revision {revision!r}: only models on the hub "
                "have revisions."
            )
        folder = pathlib.Path(source)
        name = folder.resolve().name
    elif os.path.exists(source):
        raise UserError(f"{source}: a base model is a folder, this is a file")
    else:
        folder, name = _download(source, revision), source
    weights_file = _find_files(folder)
    config = _read_config(folder / _CONFIG)
    tokenizer = _read_tokenizer(folder)
    _check_fit(f"{folder}: the tokenizer", tokenizer, _CONFIG, config)
    return BaseModel(name, source, config, _read_weights(weights_file, config), tokenizer)


def save_base_model(
    folder: str | os.PathLike,
    model: TFGPT2LMHeadModel,
    tokenizer: GPT2TokenizerFast,
    *,
    notes: Mapping[str, object] | None = None,
) -> None:
    """Writes a model as `load_base_model` reads it; the folder appears whole or not at all.

    Args:
        folder: The folder to create. It must not exist yet, or be empty.
        model: The model.
        tokenizer: Its tokenizer.
        notes: Values for further JSON files in the folder, by file name.

    Raises:
        UserError: As in `check_is_free`, or if the tokenizer is not the model's.
    """
    _check_fit("the tokenizer", tokenizer, "the model", model.config)
    check_is_free(folder)
    folder = pathlib.Path(folder).resolve()
    temporary = folder.with_name(folder.name + TEMPORARY_SUFFIX)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        model.save_pretrained(temporary, safe_serialization=False)
        tokenizer.save_pretrained(temporary)
        for name, value in (notes or {}).items():
            with atomic_write(temporary / name) as file:
                json.dump(value, file, indent=2, allow_nan=False)
                file.write("\n")
        for path in temporary.iterdir():
            with open(path, "rb") as written:
                os.fsync(written.fileno())
        os.replace(temporary, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_is_free(folder: str | os.PathLike) -> None:
    """Checks that `save_base_model` can create a folder, and creates the folders above it.

    Raises:
        UserError: If it is a file, is not empty, or the folder above cannot be written to.
    """
    folder = pathlib.Path(folder).resolve()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} exists already; remove it or name another folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{folder}: cannot be written: {error.filename} is not a folder") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be written: no permission to write to {folder.parent}")


def _download(name: str, revision: str | None) -> pathlib.Path:
    """Downloads a model's files from the hub and returns their folder; raises `UserError`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import disable_progress_bars
    from requests import RequestException

    if not sys.stderr.isatty():
        disable_progress_bars()
    files = [_CONFIG, "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"]
    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=[*files, _H5])
        if not pathlib.Path(folder, _H5).exists():
            snapshot_download(name, revision=revision, allow_patterns=[_SAFETENSORS])
        return pathlib.Path(folder)
    except HFValidationError:
        problem = "there is no such folder, nor can the hub have it"
    except RevisionNotFoundError:
        problem = f"the hub has no revision {revision!r} of it"
    except RepositoryNotFoundError:
        problem = "neither a folder nor a model on the hub"
    except (OSError, RequestException):
        problem = "there is no such folder, and the hub cannot be reached for it"
    raise UserError(f"{name}: {problem}; {_SERVES}")


def _find_files(folder: pathlib.Path) -> pathlib.Path:
    """Returns the file of the weights; raises `UserError` if a file is missing."""
    missing = [name for name in ("vocab.json", "merges.txt") if not (folder / name).is_file()]
    weights = [folder / name for name in (_H5, _SAFETENSORS) if (folder / name).is_file()]
    if not (folder / _CONFIG).is_file():
        absent = _CONFIG
    elif missing and not (folder / "tokenizer.json").is_file():
        absent = f"tokenizer.json, nor {' and '.join(missing)}"
    elif not weights:
        absent = f"{_H5}, nor {_SAFETENSORS}"
    else:
        return weights[0]
    raise UserError(f"{folder}: there is no {absent}; {_SERVES}")


def _check_fit(what: str, tokenizer: GPT2TokenizerFast, other: str, config: GPT2Config) -> None:
    num_tokens, expected = len(tokenizer), config.vocab_size
    if num_tokens != expected:
        raise UserError(f"{what} has {num_tokens} tokens, but {other} has vocab_size={expected}")


def _read_config(path: pathlib.Path) -> GPT2Config:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config

    values = read_json(path)
    kind = values.get("model_type")
    if kind != "gpt2":
        raise UserError(f"{path}: model_type must be 'gpt2', got {one_line(repr(kind))}")
    for name, usual in vars(GPT2Config()).items():
        kinds = (int, float) if isinstance(usual, float) else (type(usual),)
        checked = isinstance(usual, (bool, float, str))
        if checked and not isinstance(values.get(name, usual), kinds):
            raise UserError(
                f"{path}: {name} must be like {usual!r}, got {one_line(repr(values[name]))}"
            )
    try:
        config = GPT2Config.from_dict(values)
    except Exception as error:  # Other entries of the config may have any type.
        raise UserError(f"{path}: cannot be read: {one_line(error)}") from None
    for name in _SIZES:
        value = getattr(config, name)
        if type(value) is not int or value < 1:
            raise UserError(
                f"{path}: {name} must be a whole number >= 1, got {one_line(repr(value))}"
            )
    width, heads = config.n_embd, config.n_head
    if width % heads:
        raise UserError(f"{path}: n_embd={width} is not a multiple of n_head={heads}")
    for name in ("bos_token_id", "eos_token_id"):
        if type(getattr(config, name)) is not int:
            raise UserError(
                f"{path}: {name} must be a token, got {one_line(repr(getattr(config, name)))}"
            )
    for name in _UNSUPPORTED:
        if getattr(config, name):
            raise UserError(f"{path}: {name}=true is not supported")
    return config


def _read_tokenizer(folder: pathlib.Path) -> GPT2TokenizerFast:
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    try:
        return GPT2TokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # The tokenizers library raises no more specific class.
        raise UserError(f"{folder}: the tokenizer cannot be read: {one_line(error)}") from error


def _read_weights(path: pathlib.Path, config: GPT2Config) -> dict[str, np.ndarray]:
    """Reads weights in the form of `BaseModel.weights`; raises `UserError`."""
    import tensorflow as tf
    from safetensors import SafetensorError
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel
    from transformers.utils import logging

    # A model far larger than the file could take hours to build; a number takes a byte or more.
    rows = config.vocab_size + config.n_positions + 2 * config.n_layer * config.n_embd
    if rows * config.n_embd > path.stat().st_size:
        raise UserError(f"{path}: it is too small for the sizes in {_CONFIG}")
    unreadable = (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError, SafetensorError)
    created = []

    def create(make, **options):
        created.append(make(**options))
        return created[-1]

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # Else it logs a warning also when all weights are loaded.
    try:
        with tf.variable_creator_scope(create):
            model, loaded = TFGPT2LMHeadModel.from_pretrained(
                str(path.parent),
                config=config,
                use_safetensors=path.name == _SAFETENSORS,
                output_loading_info=True,
            )
    except unreadable as error:
        raise UserError(f"{path}: the weights cannot be read: {one_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    if loaded["missing_keys"]:
        missing = sorted(loaded["missing_keys"])
        raise UserError(f"{path}: {len(missing)} of the weights are missing, such as {missing[0]}")
    ids = {id(variable) for variable in model.weights}
    return {weight_name(variable): variable.numpy() for variable in created if id(variable) in ids}


def weight_name(variable: tf.Variable) -> str:
    """Returns the name of a variable of the model in `BaseModel.weights`."""
    return variable.name.split(_MAIN_LAYER, 1)[1].split(":")[0]


END_OF_TEXT = "<|endoftext|>"
# A token for each byte, and the end of a text.
MIN_VOCAB_SIZE = 257


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> GPT2TokenizerFast:
    """Trains a tokenizer that can encode any text and decode it unchanged.

    Equal texts, in any order, give equal tokenizers. Raises a `UserError` without texts.

    Args:
        texts: The texts.
        vocab_size: Number of tokens, >= 257: the 256 bytes, pairs, and as the last one
            `<|endoftext|>`, which begins and ends texts. There are fewer tokens if the texts have
            fewer pairs.
    """
    from tokenizers import models, pre_tokenizers, trainers
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    vocab_size = check_count("vocab_size", vocab_size, minimum=MIN_VOCAB_SIZE)
    texts = [text for text in texts if text]
    if not texts:
        raise UserError("there is no text to train a tokenizer on")
    draft = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    model = json.loads(draft.to_str())["model"]
    # The trainer would put the end of a text first, and the tokenizer outside of the vocabulary.
    vocabulary = {**model["vocab"], END_OF_TEXT: len(model["vocab"])}
    # Newer versions of tokenizers have pairs in place of "a b".
    merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]]
    return GPT2TokenizerFast(
        tokenizer_object=_byte_level(models.BPE(vocabulary, merges)),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def _byte_level(model: models.Model) -> Tokenizer:
    """Returns a tokenizer that splits texts as GPT-2 does."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
