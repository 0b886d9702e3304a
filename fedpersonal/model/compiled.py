"""A ready-made Keras model as a builder, and what a model was compiled with."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError, counted
from fedpersonal.model.keras import (
    compile_arguments,
    copy_layer,
    keras,
    list_layers,
    restore_argument_names,
    weights_of,
)
from fedpersonal.model.metrics import Loss, Metrics
from fedpersonal.model.unsupported import check_methods
from fedpersonal.model.variables import Created, Start, creation_key, starts


class CompileOptions(NamedTuple):
    """What `compile` was called with, as the user gave it; the optimizer is of no use here."""

    loss: Loss | None
    metrics: Metrics | None
    ignored: tuple[str, ...]


class ReadyModel(NamedTuple):
    """A builder of copies of a model.

    Attributes:
        build_model: Returns a new copy, uncompiled.
        start: What a copy's variables start from; empty where the model has not made them yet.
        compiled: What it was compiled with, or None.
        weights: The model's own.
    """

    build_model: Callable[[], keras.Model]
    start: Start
    compiled: CompileOptions | None
    weights: Sequence[tf.Variable]


# Threads that record now, and how many they are in all.
_recording, _lock = threading.local(), threading.Lock()
_count = 0


@contextlib.contextmanager
def recorded_compile() -> Iterator[dict[int, CompileOptions]]:
    """Has `compile` only note what it is given, under the model's id: nothing of it is used.

    It would make variables, and metrics made outside of a graph would not work in it. Other
    threads' models are compiled as ever.
    """
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            keras.Model.compile = _note_or_compile
    former, calls = getattr(_recording, "calls", None), dict[int, CompileOptions]()
    _recording.calls = calls
    try:
        yield calls
    finally:
        _recording.calls = former
        with _lock:
            _count -= 1
            if not _count:
                keras.Model.compile = _compile


_compile = keras.Model.compile
_signature = inspect.signature(_compile)


@functools.wraps(_compile)
def _note_or_compile(self: keras.Model, *args: object, **kwargs: object) -> None:
    calls = getattr(_recording, "calls", None)
    if calls is None:
        _compile(self, *args, **kwargs)
    else:
        calls[id(self)] = _options(_signature.bind(self, *args, **kwargs).arguments)


def _options(given: Mapping[str, object]) -> CompileOptions:
    ignored = [key for key in ("loss_weights",) if given.get(key)]
    loss = given.get("loss")
    losses = list(loss.values()) if isinstance(loss, dict) else loss
    if isinstance(losses, (list, tuple)):
        if len(losses) > 1:
            raise UserError(f"the model is compiled with {len(losses)} losses; it needs one.")
        loss = losses[0] if losses else None
    metrics = given.get("metrics")
    if given.get("weighted_metrics"):
        # Without weights of examples they are metrics as any other.
        listed = [*tf.nest.flatten(metrics or []), *tf.nest.flatten(given["weighted_metrics"])]
        metrics = [metric for metric in listed if metric is not None]
    return CompileOptions(loss, metrics, tuple(ignored))


def choose_loss_and_metrics(
    loss: Loss | None, metrics: Metrics | None, compiled: CompileOptions | None
) -> tuple[Loss, Metrics]:
    """Returns loss and metrics as they are given, or else compiled, or else `mse` and none.

    A UserError says that the model is compiled with more than can be taken from there.
    """
    if compiled is not None:
        if compiled.ignored and (loss is None or metrics is None):
            raise UserError(
                f"the model is compiled with {' and '.join(compiled.ignored)}, which are not used "
                "here: give loss and metrics to PartitionedModel."
            )
        if loss is None and compiled.loss is None:
            raise UserError(
                "the model is compiled without a loss: give one to compile, or to PartitionedModel."
            )
        loss = compiled.loss if loss is None else loss
        metrics = compiled.metrics if metrics is None else metrics
    return "mse" if loss is None else loss, () if metrics is None else metrics


def take_apart(model: keras.Model, created: Sequence[Created] | None = None) -> ReadyModel:
    """Returns a builder of copies of a model, and what makes them equal to it.

    Weights keep their order in a copy made of a model's configuration, so copies start from them
    exactly; where `created` tells of them, a copy draws those that have no start there.

    Raises:
        UserError: If Keras cannot copy it, as most models that subclass `tf.keras.Model`, or the
            copy is another model, as where a layer was changed after it was made.
    """
    arguments = compile_arguments(model)
    compiled = None if arguments is None else _options(arguments)
    check_methods(model)
    restore_argument_names(model)
    copies: list[tuple[tf.Variable, tuple]] = []

    def record(next_creator, **options):
        copies.append((next_creator(**options), creation_key(options)))
        return copies[-1][0]

    def copy() -> keras.Model:
        return keras.models.clone_model(model, clone_function=copy_layer)

    try:
        with tf.variable_creator_scope(record):
            copied = copy()
    except Exception as error:  # Whatever a layer's own code raises.
        raise _not_copied(model, f"{error}".splitlines()[0]) from error
    if not model.built:
        raise UserError(
            f"{model.name!r} has no weights yet: make tf.keras.Input its first layer, or give a "
            "function that builds it, with one."
        )
    weights, of_copy = weights_of(model), weights_of(copied)
    if [w.shape for w in of_copy] != [w.shape for w in weights]:
        raise _not_copied(model, "a copy does not have its weights")
    _check_copy(model, copied)
    known = {one.variable.ref(): one.start for one in created or ()}
    values = [w.numpy() if created is None else known.get(w.ref()) for w in weights]
    of_weights = {one.ref(): value for one, value in zip(of_copy, values)}
    start = starts(Created(v, key, of_weights.get(v.ref())) for v, key in copies)
    return ReadyModel(copy, start, compiled, weights)


def _check_copy(model: keras.Model, copied: keras.Model) -> None:
    """Raises a UserError if a copy, given the model's weights, would be trained as another model.

    A layer's configuration has none of the functions given to `add_loss`, nor what was set on the
    layer once it was made; and it has what was set too late for Keras to heed.
    """
    for weight, of_copy in zip(weights_of(model), weights_of(copied)):
        name = weight.name.split(":")[0]
        if weight.trainable != of_copy.trainable:
            raise _not_copied(model, f"trainable was set on variable {name!r}, not on its layer")
        if _described(weight.constraint) != _described(of_copy.constraint):
            raise _not_copied(model, f"a constraint was set after {name!r} was made")
        of_copy.assign(weight)
    shared = {id(layer) for layer in list_layers(model)}
    for layer in list_layers(copied):
        if hasattr(layer, "finalize_state") and id(layer) not in shared:
            layer.finalize_state()  # What an adapted layer makes of its weights.
    for places in _PLACES:
        try:
            calls = [_call(one, places) for one in (model, model, copied)]
            break
        except Exception:  # It takes other ids or sizes: nothing is known of them here.
            continue
    else:
        return
    own, again, of_copy = calls
    if len(own) != len(of_copy):
        raise _not_copied(
            model,
            f"it adds {counted(len(own) - 1, 'values')} to the loss, its copy {len(of_copy) - 1}: "
            "a function was given to add_loss, or a regularizer set on a layer that had been made",
        )
    if _are_equal(own, again) and not _are_equal(own, of_copy):
        raise _not_copied(model, "a layer was changed after it was made, and its copy was not")


# Sizes of inputs whose size a model leaves open; convolutions may need the larger.
_PLACES = (4, 32)


def _call(model: keras.Model, places: int) -> list[np.ndarray]:
    """Returns the output of a model for inputs that are the same each time, and what it adds."""
    random = generator(Purpose.TRIAL, 0)

    def draw(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [places if size is None else size for size in spec.shape]
        return tf.cast(random.uniform(size=[2, *shape[1:]]), spec.dtype)

    inputs, options = tf.nest.map_structure(draw, model.save_spec())
    output = model(*inputs, **{**options, "training": False})
    return [np.concatenate([np.ravel(part) for part in tf.nest.flatten(output)]), *model.losses]


def _are_equal(values: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return all(np.allclose(*pair, 1e-4, 1e-6, equal_nan=True) for pair in zip(values, others))


def _described(constraint: Any) -> tuple[str, str]:
    name = getattr(constraint, "__qualname__", type(constraint).__qualname__)
    return name, f"{constraint.get_config() if hasattr(constraint, 'get_config') else ''}"


def _not_copied(model: keras.Model, reason: str) -> UserError:
    return UserError(
        f"{model.name!r} cannot be copied ({reason}). Give a function that builds it instead: "
        "PartitionedModel(lambda: build(), ...)."
    )
