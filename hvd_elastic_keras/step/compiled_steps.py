"""Keeps the compiled steps of a model from one `fit` to the next, as Keras keeps its functions."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import msgspec

from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables, variables_of
from hvd_elastic_keras.keras_internals.trainable import Trainable
from hvd_elastic_keras.step.atomic import AtomicStep
from hvd_elastic_keras.step.deterministic_partitioned_step import DeterministicPartitionedStep
from hvd_elastic_keras.step.deterministic_step import DeterministicStep
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.micro_batches.traced import Tracing
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_options import PLAIN, StepOptions
from hvd_elastic_keras.step.trials.cut_trial import micro_batch_for_cut
from hvd_elastic_keras.step.trials.findings import StepFindings, shape_of
from hvd_elastic_keras.step.trials.metric_additivity import (
    Unshared,
    metrics_that_do_not_add_up,
)
from hvd_elastic_keras.step.trials.together_trial import why_not_together
from hvd_elastic_keras.step.trials.told_of_cut import (
    Cut,
    about_evaluation,
    about_training_logs,
)
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
    known: StepFindings | None = None,
) -> CompiledStep:
    """The step of a model for an input: that of an earlier call if nothing has changed since.

    Keras makes a new `train_function` after `compile`; with it, the kept steps become void. Until
    then it goes on with the graph that it has traced, whatever has become of `trainable` and other
    attributes meanwhile, and so do these.

    Args:
      cut_is_chosen: whether the user has said how large a micro-batch is.
      seed: stateful random operations follow from it.
      known: what another worker has found about it. If it can be true, nothing is tried.

    Raises:
      ConfigurationError: the loss of a batch does not follow from those of its micro-batches, or
        they are to be computed together, which would change the result.
    """
    is_partitioned = env.is_step_partitioned()
    if is_partitioned and source.micro_batch_size >= source.global_batch_size:
        options = dataclasses.replace(options, together=None)
    elif deterministic or source.micro_batch_size >= source.global_batch_size:
        options = dataclasses.replace(options, together=1)
    cut = Cut(source.global_batch_size, source.micro_batch_size, cut_is_chosen or not train)
    key = (train, deterministic, options, cut, seed, repr(source.batch_spec))
    steps = _kept_with(model)
    kept = steps.made.get(key)
    if kept is None and is_partitioned:
        step = DeterministicPartitionedStep if deterministic else PartitionedStep
        with steps.as_first_traced(model):
            steps.made[key] = _partitioned(
                step, model, variables, source, train=train, seed=seed, options=options
            )
    elif kept is None or (known and known.comparable != kept.findings.comparable):
        kind = DeterministicStep if deterministic else AtomicStep
        with steps.as_first_traced(model):
            making = _Making(model, variables, source, train=train, cut=cut, seed=seed)
            steps.made[key] = making.step(kind, options, known)
    return steps.made[key]


def variables_kept(model: keras.Model) -> ModelVariables:
    """The variables of a training: those of the kept steps, and what the model has got since."""
    kept, present = _kept_with(model), variables_of(model)
    if kept.variables is None or not kept.made:
        kept.variables = present
        return present
    known = {id(v) for v in kept.variables.all}
    new = [v for v in present.all if id(v) not in known]
    return dataclasses.replace(kept.variables, given=(*kept.variables.given, *new))


def trainable_in_steps(model: keras.Model) -> Trainable | None:
    """Which layers train in the steps of a model, once for the steps of a `train_function`."""
    kept = _kept_with(model)
    told, kept.is_told = kept.is_told, True
    return None if told else kept.trainable


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step, and what it goes by."""

    step: AtomicStep | PartitionedStep
    findings: StepFindings


def _partitioned(
    kind: type[PartitionedStep],
    model: keras.Model,
    variables: ModelVariables,
    source: Input,
    *,
    train: bool,
    seed: int,
    options: StepOptions,
) -> CompiledStep:
    """The user's own graph, of which nothing has to be found."""
    step = kind(
        model,
        variables,
        Layout(source.batch_spec),
        world_of_process(),
        train=train,
        num_rows=source.global_batch_size,
        seed=seed,
        options=options,
    )
    return CompiledStep(step, StepFindings(0, 0, told=step.told))


class _Making:
    """Makes the step of a model for an input."""

    def __init__(
        self,
        model: keras.Model,
        variables: ModelVariables,
        source: Input,
        *,
        train: bool,
        cut: Cut,
        seed: int,
    ) -> None:
        self._model = model
        self._variables = variables
        self._layout = Layout(source.batch_spec)
        self._first = source.first_batch()
        self._train = train
        self._cut = cut
        self._seed = seed
        self._has_parts = cut.cuts or isinstance(source, PerWorkerInput)

    def step(
        self, kind: type[AtomicStep], options: StepOptions, known: StepFindings | None
    ) -> CompiledStep:
        """By what is known, or else by what trials find."""
        together = options.together != 1
        micro_batch, found = self._known(known, together) or self._tried(together)
        if together and found.not_together is None:
            why = why_not_together(
                micro_batch, self._variables, self._first, self._cut.micro_batch_size
            )
            found = msgspec.structs.replace(found, not_together=why)
        if together and found.not_together:
            why = found.not_together
            if options.must_be_together:
                raise ConfigurationError(
                    f"--micro_batches=together was given, but {why}. Leave it out: then "
                    "micro-batches are computed one after the other."
                )
            logging.info("micro-batches are computed one after the other: %s", why)
            options = dataclasses.replace(options, together=1)
        step = kind(
            self._model,
            micro_batch,
            self._layout,
            world_of_process(),
            train=self._train,
            shared=found.shared,
            options=options,
        )
        return CompiledStep(step, found)

    def _micro_batch(self, tracing: Tracing, together: bool) -> MicroBatch:
        return MicroBatch(
            self._model,
            self._variables,
            self._layout,
            train=self._train,
            tracing=dataclasses.replace(tracing, together=together),
        )

    def _tried(self, together: bool) -> tuple[MicroBatch, StepFindings]:
        unshared: list[Unshared] = []
        if self._has_parts:
            unshared = metrics_that_do_not_add_up(
                self._model,
                self._variables,
                self._layout.spec,
                self._first,
                train=self._train,
            )

        def make(tracing: Tracing) -> MicroBatch:
            return self._micro_batch(tracing, together)

        fitting = micro_batch_for_cut(make, self._variables, self._first, self._cut, self._seed)
        micro_batch = fitting.micro_batch
        _average_what_is_replaced(micro_batch, unshared)
        apart = [u.metric for u in unshared]
        apart += [m for m in fitting.apart if m not in apart]
        about = about_training_logs if self._train else about_evaluation
        terms, staged = shape_of(micro_batch)
        return micro_batch, StepFindings(
            terms,
            staged,
            shared=self._train or not apart,
            sums=tuple(sorted(micro_batch.tracing.sums)),
            means=micro_batch.means,
            told=(*fitting.told, *about(apart, self._cut)),
        )

    def _known(
        self, known: StepFindings | None, together: bool
    ) -> tuple[MicroBatch, StepFindings] | None:
        """As another worker has found it; None if that cannot be."""
        if known is None:
            return None
        tracing = Tracing(seed=self._seed, sums=frozenset(known.sums))
        micro_batch = self._micro_batch(tracing, together)
        if micro_batch.runs_eagerly:
            micro_batch.trial(self._first)
        if not known.are_about(micro_batch):
            return None
        micro_batch.average_instead_of_add(known.means)
        return micro_batch, known


def _average_what_is_replaced(micro_batch: MicroBatch, unshared: Sequence[Unshared]) -> None:
    """Of a maximum, say, those of the parts are averaged; to add them would make no sense."""
    replaced = {id(u.metric): u.replaced for u in unshared}
    flags: list[bool] = []
    for metric, parts in micro_batch.metrics_and_parts():
        flags += replaced.get(id(metric), [False] * len(parts))
    averaged = {number for number, flag in enumerate(flags) if flag}
    micro_batch.average_instead_of_add({*micro_batch.means, *averaged})


@dataclasses.dataclass
class _Kept:
    """What is kept of a model for as long as Keras keeps its function.

    Attributes:
      function: the model's `train_function`.
      made: the steps, by what they are for.
      variables: those that they were made with.
      trainable: whether each layer and variable was trained then.
      is_told: whether `trainable_in_steps` has told it.
    """

    function: Any
    made: dict[Any, CompiledStep] = dataclasses.field(default_factory=dict)
    variables: ModelVariables | None = None
    trainable: Trainable | None = None
    is_told: bool = False

    @contextlib.contextmanager
    def as_first_traced(self, model: keras.Model) -> Iterator[None]:
        """Lets the same layers train as in the first step that was made."""
        present = Trainable.of(model)
        if self.trainable is None or not self.made:
            self.trainable = present
        self.trainable.set()
        try:
            yield
        finally:
            present.set()


def _kept_with(model: keras.Model) -> _Kept:
    function = model.train_function
    kept = model.__dict__.get(ATTRIBUTE)
    if function is None or kept is None or kept.function is not function:
        kept = _Kept(function)
        # Not an attribute that Keras tracks.
        object.__setattr__(model, ATTRIBUTE, kept)
    return kept  # type: ignore[no-any-return]
