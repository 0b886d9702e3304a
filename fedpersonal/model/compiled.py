"""Built Keras models as builders of copies, and the arguments of their `compile`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError, with_count
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
from fedpersonal.randomness import Purpose, generator


class CompileOptions(NamedTuple):
    """Arguments of `compile`, as the user gave them; the optimizer is not used here."""

    loss: Loss | None
    metrics: Metrics | None
    ignored: tuple[str, ...]


class ReadyModel(NamedTuple):
    """A built model, and a builder of its copies.

    Attributes:
        build_model: Returns a new copy, uncompiled.
        start: Initial values of a copy's variables; empty if the model has not created them yet.
        compiled: The arguments of its `compile`, or None.
        weights: The weights of the model itself.
    """

    build_model: Callable[[], keras.Model]
    start: Start
    compiled: CompileOptions | None
    weights: Sequence[tf.Variable]


# Per thread, the calls that it records; and the number of threads that record.
_recording, _lock = threading.local(), threading.Lock()
_count = 0


@contextlib.contextmanager
def recorded_compile() -> Iterator[dict[int, CompileOptions]]:
    """Yields a mapping of model ids to the arguments of `compile`, which is recorded but not run.

    Running it would create variables, and metrics created outside of a graph would not work in it.
    Models of other threads are compiled as usual.
    """
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            keras.Model.compile = _record_or_compile
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
def _record_or_compile(self: keras.Model, *args: object, **kwargs: object) -> None:
    calls = getattr(_recording, "calls", None)
    if calls is None:
        _compile(self, *args, **kwargs)
    else:
        calls[id(self)] = _compile_options(_signature.bind(self, *args, **kwargs).arguments)


def _compile_options(arguments: Mapping[str, object]) -> CompileOptions:
    ignored = [key for key in ("loss_weights",) if arguments.get(key)]
    loss = arguments.get("loss")
    losses = list(loss.values()) if isinstance(loss, dict) else loss
    if isinstance(losses, (list, tuple)):
        if len(losses) > 1:
            raise UserError(f"the model is compiled with {len(losses)} losses; it needs one.")
        loss = losses[0] if losses else None
    metrics = arguments.get("metrics")
    if arguments.get("weighted_metrics"):
        # Without example weights, weighted metrics equal ordinary ones.
        weighted = tf.nest.flatten(arguments["weighted_metrics"])
        every = [*tf.nest.flatten(metrics or []), *weighted]
        metrics = [metric for metric in every if metric is not None]
    return CompileOptions(loss, metrics, tuple(ignored))


def choose_loss_and_metrics(
    loss: Loss | None, metrics: Metrics | None, compiled: CompileOptions | None
) -> tuple[Loss, Metrics]:
    """Returns the loss and metrics given, or else those of `compile`, or else `mse` and none.

    Raises:
        UserError: If the model is compiled with arguments that cannot be used here.
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


def prepare_copies(model: keras.Model, created: Sequence[Created] | None = None) -> ReadyModel:
    """Returns a builder of copies of a model, and the values that make the copies equal to it.

    A copy made from a model's configuration has its weights in the same order, so copies start
    from exactly the model's weights.

    Args:
        model: The model.
        created: The model's variables, if they were recorded when they were created. Copies then
            initialize those without a `start` at random.

    Raises:
        UserError: If Keras cannot copy the model, such as most models that subclass
            `tf.keras.Model`, or the copy differs from it, such as when a layer was changed after
            it was created.
    """
    arguments = compile_arguments(model)
    compiled = None if arguments is None else _compile_options(arguments)
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
    except Exception as error:  # A layer's code may raise anything.
        raise _not_copied(model, f"{error}".splitlines()[0]) from error
    if not model.built:
        raise UserError(
            f"{model.name!r} has no weights yet: make tf.keras.Input its first layer, or give a "
            "function that builds it, with one."
        )
    weights, copied_weights = weights_of(model), weights_of(copied)
    if [w.shape for w in copied_weights] != [w.shape for w in weights]:
        raise _not_copied(model, "a copy does not have its weights")
    _check_copy(model, copied)
    recorded = {one.variable.ref(): one.start for one in created or ()}
    values = [w.numpy() if created is None else recorded.get(w.ref()) for w in weights]
    start_values = {one.ref(): value for one, value in zip(copied_weights, values)}
    start = starts(Created(v, key, start_values.get(v.ref())) for v, key in copies)
    return ReadyModel(copy, start, compiled, weights)


def _check_copy(model: keras.Model, copied: keras.Model) -> None:
    """Raises a UserError if a copy with the model's weights would train differently.

    A layer's configuration lacks functions given to `add_loss` and attributes set on the layer
    after it was created. It contains attributes that were set too late for Keras to use them.
    """
    for weight, copied_weight in zip(weights_of(model), weights_of(copied)):
        name = weight.name.split(":")[0]
        if weight.trainable != copied_weight.trainable:
            raise _not_copied(model, f"trainable was set on variable {name!r}, not on its layer")
        if _described(weight.constraint) != _described(copied_weight.constraint):
            raise _not_copied(model, f"a constraint was set after {name!r} was made")
        copied_weight.assign(weight)
    shared = {id(layer) for layer in list_layers(model)}
    for layer in list_layers(copied):
        if hasattr(layer, "finalize_state") and id(layer) not in shared:
            layer.finalize_state()  # An adapted layer derives its state from its weights.
    for places in _PLACES:
        try:
            calls = [_call(one, places) for one in (model, model, copied)]
            break
        except Exception:  # The model may require other ids or sizes, which are unknown here.
            continue
    else:
        return
    first, second, of_copy = calls
    if len(first) != len(of_copy):
        raise _not_copied(
            model,
            f"it adds {with_count(len(first) - 1, 'values')} to the loss, its copy "
            f"{len(of_copy) - 1}: a function was given to add_loss, or a regularizer was set "
            "on a layer after it was created",
        )
    if _are_equal(first, second) and not _are_equal(first, of_copy):
        raise _not_copied(model, "a layer was changed after it was made, and its copy was not")


# Sizes tried for input dimensions that a model leaves open; convolutions may need the larger.
_PLACES = (4, 32)


def _call(model: keras.Model, places: int) -> list[np.ndarray]:
    """Returns a model's output for fixed inputs, followed by the losses that it adds."""
    random = generator(Purpose.TRIAL, 0)

    def sample(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [places if size is None else size for size in spec.shape]
        return tf.cast(random.uniform(size=[2, *shape[1:]]), spec.dtype)

    inputs, options = tf.nest.map_structure(sample, model.save_spec())
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
