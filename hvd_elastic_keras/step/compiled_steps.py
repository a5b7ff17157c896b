"""Keeps the compiled steps of a model from one `fit` to the next, as Keras keeps its functions."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import keras

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables
from hvd_elastic_keras.step.atomic import AtomicStep
from hvd_elastic_keras.step.deterministic_step import DeterministicStep
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.micro_batches.traced import Tracing
from hvd_elastic_keras.step.step_options import PLAIN, StepOptions
from hvd_elastic_keras.step.trials.cut_trial import micro_batch_for_cut
from hvd_elastic_keras.step.trials.metric_additivity import metrics_that_do_not_add_up
from hvd_elastic_keras.step.trials.together_trial import why_not_together
from hvd_elastic_keras.step.trials.told_of_cut import Cut
from hvd_elastic_keras.step.world import world_of_process

ATTRIBUTE = "_elastic_steps"


def compiled_step(
    model: keras.Model,
    variables: ModelVariables,
    source: Input,
    *,
    train: bool,
    cut_is_chosen: bool = True,
    seed: int = 0,
    deterministic: bool = False,
    options: StepOptions = PLAIN,
) -> CompiledStep:
    """The step of a model for an input: that of an earlier call if nothing has changed since.

    Keras makes a new `train_function` after `compile`; with it, the kept steps become void.

    Args:
      cut_is_chosen: whether the user has said how large a micro-batch is.
      seed: stateful random operations follow from it.

    Raises:
      ConfigurationError: the loss of a batch does not follow from those of its micro-batches, or
        they are to be computed together, which would change the result.
    """
    if deterministic or source.micro_batch_size >= source.global_batch_size:
        options = dataclasses.replace(options, together=1)
    cut = Cut(source.global_batch_size, source.micro_batch_size, cut_is_chosen or not train)
    key = (
        *(train, deterministic, options, cut, seed),
        repr(source.batch_spec),
        tuple(id(v) for v in variables.all),
    )
    steps = _steps_of(model)
    if key not in steps:
        kind = DeterministicStep if deterministic else AtomicStep
        steps[key] = _compiled(
            kind, model, variables, source, train=train, cut=cut, seed=seed, options=options
        )
    return steps[key]


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step, and what people should be told of it before the training begins.

    Attributes:
      shared: whether workers share it; if not, each computes whole batches.
    """

    step: AtomicStep
    told: tuple[str, ...]
    shared: bool


def _compiled(
    kind: type[AtomicStep],
    model: keras.Model,
    variables: ModelVariables,
    source: Input,
    *,
    train: bool,
    cut: Cut,
    seed: int,
    options: StepOptions,
) -> CompiledStep:
    layout = Layout(source.batch_spec)
    first = source.first_batch()
    unshared: list[keras.Metric] = []
    if cut.cuts:
        unshared = metrics_that_do_not_add_up(
            model, variables, source.batch_spec, first, train=train
        )

    def make(tracing: Tracing) -> MicroBatch:
        left_out = unshared if train else ()
        tracing = dataclasses.replace(tracing, together=options.together != 1)
        return MicroBatch(model, variables, layout, train=train, left_out=left_out, tracing=tracing)

    fitting = micro_batch_for_cut(make, variables, first, cut, seed)
    if options.together != 1 and (why := why_not_together(fitting.micro_batch, first)):
        if options.must_be_together:
            raise ConfigurationError(
                f"--micro_batches=together was given, but {why}. Leave it out: then micro-batches "
                "are computed one after the other."
            )
        logging.info("micro-batches are computed one after the other: %s", why)
        options = dataclasses.replace(options, together=1)
    told = list(fitting.told)
    names = ", ".join(m.name for m in unshared)
    if unshared and train:
        told.append(
            f"the state of these metrics does not add up over parts of a batch: {names}. They are "
            "left out of the training logs."
        )
    trackers = [] if train else [m for m in fitting.apart if m is not None and m not in unshared]
    if not train and (unshared or trackers):
        names = ", ".join(m.name for m in (*unshared, *trackers))
        told.append(
            f"these metrics of a batch do not follow from its parts: {names}. Each evaluation is "
            "computed whole on every worker."
        )
    shared = train or not (unshared or trackers)
    step = kind(
        model,
        fitting.micro_batch,
        layout,
        world_of_process(),
        train=train,
        shared=shared,
        options=options,
    )
    return CompiledStep(step, tuple(told), shared)


def _steps_of(model: keras.Model) -> dict[Any, CompiledStep]:
    function = model.train_function
    kept = model.__dict__.get(ATTRIBUTE)
    if function is None or kept is None or kept[0] is not function:
        kept = (function, {})
        # Not an attribute that Keras tracks.
        object.__setattr__(model, ATTRIBUTE, kept)
    return kept[1]  # type: ignore[no-any-return]
