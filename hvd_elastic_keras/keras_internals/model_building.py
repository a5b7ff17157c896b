"""Checks a model and builds its variables, beyond the public interface of Keras.

`reset_metrics_at_start` resets the metrics that plain Keras would reset before the first epoch.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError, DataError, is_of_user
from hvd_elastic_keras.keras_internals import early_optimizers
from hvd_elastic_keras.keras_internals.build_by_trace import (
    built_by_trace,
    has_own_step,
    nothing_applied,
)
from hvd_elastic_keras.keras_internals.model_errors import remedy
from hvd_elastic_keras.keras_internals.model_variables import (
    layers_of,
    optimizers_of,
    variables_of,
)

LONGEST_MESSAGE = 400
"""The most characters that are quoted: a message may list all labels of a batch."""
MOST_ATTEMPTS = 16
"""The most attempts to let a model make its variables. Each attempt may make some of them."""

_METRICS_BUILT_EARLY = "_elastic_built_early"
"""Attribute of the metrics given to `compile`: plain Keras would build them in the first step."""


def check_compiled(model: Any) -> None:
    """Raises `ConfigurationError` if this is not a compiled Keras model."""
    if not isinstance(model, keras.Model):
        raise ConfigurationError(_no_model(model))
    if not model.compiled or model.optimizer is None:
        raise ConfigurationError(
            "The model is not compiled. Call model.compile(optimizer=..., loss=...), or define "
            "loss() and optimizer() in the model module."
        )


def _no_model(given: Any) -> str:
    """Returns the message for an object that is not a model."""
    if isinstance(given, type) or inspect.isroutine(given):
        kind = "class" if isinstance(given, type) else "function"
        name = given.__name__
        call = f"{name}()" if name.isidentifier() else "what it returns"
        return f"model is the {kind} {name}, expected a keras.Model: give {call}."
    kind = f"{type(given).__module__}.{type(given).__name__}"
    old = " of Keras 3: make it with `import keras`" if kind.startswith("tf_keras") else ""
    return f"model is a {kind}, expected a keras.Model{old}."


def check_fit(model: Any) -> None:
    """Raises `ConfigurationError` if `ElasticCallback` cannot take over this model's `fit`."""
    check_compiled(model)
    if model._distribute_strategy is not None:
        raise ConfigurationError(
            f"The model was made under {type(model._distribute_strategy).__name__}, expected no "
            "tf.distribute strategy: the workers of the job share the batches. Leave it out."
        )
    if type(model).make_train_function is not keras.Model.make_train_function:
        raise ConfigurationError(
            f"{type(model).__name__} overrides make_train_function, which is not called by several "
            "workers. Override train_step instead."
        )


def check_functions_are_compiled() -> None:
    """Raises `ConfigurationError` if TensorFlow does not compile functions in this process."""
    if tf.config.functions_run_eagerly():
        raise ConfigurationError(
            "tf.config.run_functions_eagerly(True) was called, but workers that share a step "
            "compile it. Leave the call out, or run the script by itself: python SCRIPT."
        )


def has_batch_norm(model: keras.Model) -> bool:
    """Whether a result depends on the other examples of its micro-batch.

    Synchronised layers do not count: they normalise over the whole batch.

    Layers within layers count, wherever a model keeps them. Some models have them only once built.
    """
    kind = keras.layers.BatchNormalization
    return any(isinstance(la, kind) and not la.synchronized for la in layers_of(model))


def num_batch_norms(model: keras.Model) -> int:
    """Returns the number of layers that normalise over a batch or a micro-batch."""
    kind = keras.layers.BatchNormalization
    return sum(isinstance(layer, kind) for layer in layers_of(model))


def has_fixed_batch_size(model: keras.Model) -> bool:
    """Whether an input has a fixed batch size, which stateful layers need."""
    return any(i.shape[0] is not None for i in getattr(model, "inputs", None) or ())


def check_any_batch_size(model: keras.Model) -> None:
    """Raises `ConfigurationError` if an input has a fixed batch size."""
    if has_fixed_batch_size(model):
        shape = next(i.shape for i in model.inputs if i.shape[0] is not None)
        raise ConfigurationError(
            f"The model has an input of shape {shape}, with a fixed batch size, expected one that "
            "accepts any: workers predict for their own rows. Use keras.Input(shape=...) without a "
            "batch size."
        )


_OWN_CODE = ("KeyError: ", "AttributeError: ", "NameError: ", "IndexError: ", "ImportError: ")
"""Beginnings of errors that Keras itself does not raise."""
_NOT_BUILT = "Unable to automatically build the model"
_OF_NODES = ("Graph execution error", "Detected at node", 'File "')
"""Beginnings of lines that say where an error in a graph is, not what it is."""


def weighs_losses_by_size(model: keras.Model) -> bool:
    """Returns whether the step depends on whether it is traced for one size of batches.

    Keras tracks the loss of each of several outputs. It weighs batches by their size if that is
    known while the step is traced, and equally if not.
    """
    compiled = getattr(model, "_compile_loss", None)
    return compiled is not None and len(compiled.metrics) > 1


def build(
    model: keras.Model,
    batch_spec: Any,
    batch: Any = None,
    *,
    full_spec: Any = None,
    evaluates: bool = False,
) -> None:
    """Creates all variables of model, metrics and optimizers.

    Plain Keras makes them while it traces the step: in this order, and each optimizer for the
    variables that it is first applied to. Random initial weights may depend on the order. So a
    model with a `train_step` of its own is traced here, too.

    Args:
      batch_spec: specs of a batch of any size; None where batches have nothing.
      batch: examples, for models that cannot be built without any. None: the model is built to be
        called, too, whatever its step does.
      full_spec: specs of a batch if all batches are of the same size, as plain Keras then traces
        the step. They are used if the model is not built for batches of any size.
      evaluates: whether the model will be evaluated.

    Raises:
      DataError: the model does not accept such examples.
      Exception: code of the user has raised it.
    """
    evaluates = evaluates and batch is not None
    if has_fixed_batch_size(model):
        batch_spec = _of_fixed_size(model, batch_spec)
    before = _variables_of_unbuilt(model)
    with early_optimizers.built_early(model):
        try:
            _build(model, batch_spec, batch, full_spec=full_spec, evaluates=evaluates)
        except Exception:
            # If the model is built, a loss or a metric has failed. A layer that has failed within
            # its own `build` would make its variables twice.
            after = _variables_of_unbuilt(model)
            may_try = not model.built and all(n <= before.get(k, 0) for k, n in after.items())
            if full_spec is not None and may_try:
                with contextlib.suppress(Exception):  # the first error tells more
                    _build(model, full_spec, batch, evaluates=evaluates)
                    return
            raise


def _variables_of_unbuilt(model: keras.Model) -> dict[int, int]:
    """Returns how many variables of their own the layers have that are not built, by their ids."""
    return {
        id(layer): len(layer._trainable_variables) + len(layer._non_trainable_variables)
        for layer in layers_of(model)
        if not layer.built
    }


def _of_fixed_size(model: keras.Model, batch_spec: Any) -> Any:
    """Returns the specs of a batch of the size that a model accepts."""
    size = next(i.shape[0] for i in model.inputs if i.shape[0] is not None)

    def fixed(spec: Any) -> Any:
        is_open = isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] is None
        return tf.TensorSpec([size, *spec.shape[1:]], spec.dtype) if is_open else spec

    return tf.nest.map_structure(fixed, batch_spec)


def _build(
    model: keras.Model, batch_spec: Any, batch: Any, *, full_spec: Any = None, evaluates: bool
) -> None:
    had_metrics = _has_built_metrics(model)
    specs = [spec for spec in (batch_spec, full_spec) if spec is not None]
    traced = has_own_step(model) and not model.run_eagerly
    traced = traced and any(built_by_trace(model, spec, evaluates=evaluates) for spec in specs)
    if not traced or batch is None:
        _build_by_call(model, batch_spec, batch)
    note_metrics_built_early(model, had_metrics)
    if not traced:
        for optimizer in optimizers_of(model):
            if not optimizer.built:
                optimizer.build(model.trainable_variables)


def _has_built_metrics(model: keras.Model) -> bool:
    return model._compile_metrics is not None and bool(model._compile_metrics.built)


def _build_by_call(model: keras.Model, batch_spec: Any, batch: Any) -> None:
    """Builds a model by `call`, or by trying its `train_step` if `call` does not do."""
    symbolic = tf.nest.map_structure(
        lambda s: None if s is None else keras.KerasTensor(_dimensions(s), s.dtype.name),
        batch_spec,
    )
    has_call = type(model).call is not keras.Model.call
    had_metrics = _has_built_metrics(model)
    is_tried = batch is not None and not has_call and not model.trainable_variables
    if is_tried:
        _build_by_step(model, batch)
    try:
        if has_call:
            model._symbolic_build(data_batch=symbolic)
    except Exception as error:  # layers and losses may raise anything
        if batch is None or not (has_own_step(model) or model.run_eagerly):
            refusal = _refusal(batch_spec, error)
            if refusal is None:
                raise _first(error) from None
            raise refusal from error
        _check_own_step(model, batch, first_sentence(error))
        is_tried = True
    compiled = model._compile_metrics
    if batch is not None and compiled is not None and not compiled.built:
        _build_by_step(model, batch)
        if not compiled.built and has_own_step(model):
            # A step that changes weights by itself and then uses them fails without their values.
            with contextlib.suppress(DataError):
                _check_own_step(model, batch, "")
        is_tried = True
    if is_tried and compiled is not None and compiled.built and not had_metrics:
        for metric in compiled.metrics:  # the step that was tried has changed them
            metric.reset_state()


def _check_own_step(model: keras.Model, batch: Any, keras_says: str) -> None:
    """Lets `train_step` make missing variables, with a whole batch. Weights keep their values.

    Raises:
      DataError: `train_step` cannot take the batch either.
      Exception: `train_step` has raised it, and no library that it calls.
    """
    try:
        with variables_of(model).unchanged(), nothing_applied(optimizers_of(model)):
            model.train_step(batch)
    except ConfigurationError:
        raise
    except Exception as error:  # the user's code may raise anything
        if is_of_user(error):
            raise
        raise DataError(
            f"Neither the model nor its train_step takes the first batch, which is "
            f"{describe(tf.nest.map_structure(_spec_of, batch))}. Of the model, Keras says: "
            f"{keras_says} train_step ends with {type(error).__name__}: {first_sentence(error)} "
            "Change the data, or what the model or train_step expects."
        ) from error


def _spec_of(leaf: Any) -> Any:
    return None if leaf is None else tf.type_spec_from_value(leaf)


def _refusal(batch_spec: Any, error: Exception) -> ConfigurationError | None:
    """Returns the error if Keras cannot build a model for such batches, with its likely cause.

    Returns None for an error that the user's own code has raised: the script may expect it, and
    its traceback tells more.
    """
    keras_says = first_sentence(error)
    if keras_says.startswith("Could not interpret"):
        return ConfigurationError(
            f"The model is not compiled as it should be. Keras says: {keras_says} Change what "
            "model.compile() gets."
        )
    if "No loss to compute" in keras_says:
        return ConfigurationError(
            "The model is compiled without a loss, and no layer adds one. Call model.compile("
            "optimizer=..., loss=...), or define loss() in the model module."
        )
    change = remedy(keras_says, batch_spec)
    if keras_says.startswith(_OWN_CODE):
        return DataError(
            f"The model's own code fails on the data. A batch is {describe(batch_spec)}. It says: "
            f"{keras_says} Change call(), or the data that it gets."
        )
    if change is None and is_of_user(_first(error)):
        return None
    change = change or "Change the data or the model's Input."
    return DataError(
        f"The model does not accept the data. A batch is {describe(batch_spec)}; expected "
        "(inputs, targets) or (inputs, targets, sample_weight) of the shapes of the "
        f"model's inputs and outputs. Keras says: {keras_says} {change}"
    )


def _dimensions(spec: Any) -> tuple[int | None, ...]:
    return tuple(spec.shape)


def _build_by_step(model: keras.Model, batch: Any) -> None:
    """Lets `train_step` make the variables of layers and metrics, without any effect.

    This is for models that define `train_step` but not `call`, and for metrics that are not built
    yet. In a scope that keeps all assignments to itself, new variables have no values yet. So the
    step fails where it uses them. The next attempt gets further.
    """
    with variables_of(model).unchanged():  # the scope knows nothing of TensorFlow's own variables
        for _ in range(MOST_ATTEMPTS):
            before = len(model.variables) + len(model.metrics_variables)
            scope = keras.StatelessScope(collect_losses=True)
            with contextlib.suppress(Exception), nothing_applied(optimizers_of(model)), scope:
                model.train_step(batch)
            if len(model.variables) + len(model.metrics_variables) == before:
                return


def describe(element_spec: Any) -> str:
    """Returns the structure of a batch for people: `((None, 8, 8, 1) float32, (None,) int64)`."""
    if element_spec is None:
        return "None"
    if isinstance(element_spec, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in element_spec.items()) + "}"
    if isinstance(element_spec, tuple | list):
        return "(" + ", ".join(describe(v) for v in element_spec) + ")"
    return f"{tuple(element_spec.shape)} {element_spec.dtype.name}"


def _first(error: BaseException) -> BaseException:
    """Returns the error that Keras met while it built a model, and put into one of its own."""
    wrapped = error.__context__ if str(error).startswith(_NOT_BUILT) else None
    return wrapped or error


def first_sentence(error: BaseException) -> str:
    """Returns the message of Keras or TensorFlow, without colours and its list of arguments.

    If Keras met an error while it built a model, and put it into an error of its own, the message
    of the first error is returned.
    """
    first = _first(error)
    if first is not error:
        return f"{type(first).__name__}: {first_sentence(first)}"
    # As text, a KeyError is the representation of its key.
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    plain = re.sub("\x1b\\[[0-9;]*m", "", text)
    plain = re.sub(r"{{function_node [^}]*}} *| *\[Op:\w+\]( name: *)?", "", plain)
    plain = re.sub(r"\[\[{{node [^}]*}}\]\]", "", plain)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_OF_NODES)]
    useful = itertools.takewhile(lambda line: not line.startswith("Arguments received"), lines)
    text = " ".join(useful).rstrip(".") + "."
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " …"


def note_metrics_built_early(model: keras.Model, was_built: bool) -> None:
    """Notes for `reset_metrics_at_start` whether the metrics of `compile` were just built."""
    compiled: Any = model._compile_metrics
    if compiled is not None:
        object.__setattr__(compiled, _METRICS_BUILT_EARLY, compiled.built and not was_built)


def reset_metrics_at_start(model: keras.Model) -> None:
    """Calls `reset_metrics` before the first epoch of a `fit`.

    Plain Keras does not reset metrics that it has not built by then. They are as they were made.
    """
    compiled: Any = model._compile_metrics
    early = bool(getattr(compiled, _METRICS_BUILT_EARLY, False))
    if not early:
        model.reset_metrics()
        return
    compiled.built = False
    try:
        model.reset_metrics()
    finally:
        compiled.built = True
        object.__setattr__(compiled, _METRICS_BUILT_EARLY, False)
