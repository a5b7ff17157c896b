"""A job that evaluates or predicts (`--job`), from its specification to its loop.

The job is one phase in the loop of a training (`loop/training_loop.py`). An evaluation takes the
same steps as an evaluation within a training. The steps of a prediction write files.
"""

from __future__ import annotations

import functools
import itertools
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.api.first_steps import TRIED_EXAMPLES, try_first_examples
from hvd_elastic_keras.api.inference_loop import Worked, run_loop
from hvd_elastic_keras.api.model_module import (
    ModelModule,
    check_reproducible,
    front,
    is_dataset,
    load_module,
    load_split,
    set_up,
)
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import DataError, ElasticError, ModelModuleError
from hvd_elastic_keras.common.predictions import Output, PartFiles, Range, names_in, structure_of
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.examples.structure import Layout
from hvd_elastic_keras.data.input.interfaces import full_spec
from hvd_elastic_keras.data.input.pipeline import Pipeline
from hvd_elastic_keras.data.sources.source import DataLike, as_source
from hvd_elastic_keras.keras_internals import model_building, release
from hvd_elastic_keras.keras_internals.model_building import describe, first_sentence
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.loop.progress_display import numbers_of
from hvd_elastic_keras.observe.console import formatted_metrics
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.settings.job_spec import EVALUATE, JobSpec
from hvd_elastic_keras.settings.training_config import BatchCut
from hvd_elastic_keras.state.checkpoint import manager
from hvd_elastic_keras.step.predict_step import Predictor, as_array
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.session import Session, SoloSession

SEED_NAME = "seed_generator_state"
DRAWS = (
    "warning: predict_step draws random numbers, so that predictions depend on which worker "
    "computes them, and come out differently each time."
)
RESULTS_VERSION = 1


class InferenceJob:
    """A model with its weights, and the data for its evaluation or predictions.

    Args:
      data: data of the split.
      session: session of this worker.

    Raises:
      ConfigurationError: the model does not fit the data or the weights.
    """

    def __init__(
        self, spec: JobSpec, module: ModelModule, data: DataLike, session: Session
    ) -> None:
        self._membership = Membership.of_process(session)
        release.check()
        self.spec = spec
        self.evaluates = spec.job == EVALUATE
        self.model = module.model(compiled=self.evaluates)
        self.pipeline = _pipeline(spec, data)
        self.predictor: Predictor | None = None
        self.outputs: Any = None
        """The model's outputs for the first examples."""
        if self.evaluates:
            model_building.check_compiled(self.model)
            full = full_spec(self.pipeline)
            model_building.build(self.model, self.pipeline.batch_spec, full_spec=full)
        else:
            model_building.check_any_batch_size(self.model)
            self.predictor = Predictor(self.model, Layout(self.pipeline.batch_spec))
            self.outputs = self._first_outputs(self.predictor)
        self.weights = manager.load_initial_weights(self.model, Path(spec.checkpoint), "checkpoint")

    def run(self) -> None:
        """Runs the job to its end with all other workers; see `TrainingLoop.run` for errors."""
        worked = Worked(
            model=self.model,
            pipeline=self.pipeline,
            membership=self._membership,
            cut_is_chosen=bool(self.spec.training.micro_batch_size),
            seed=self.spec.training.seed,
            began=time.monotonic(),
        )
        if self.predictor is None:
            run_loop(worked, self._write_results)
            return
        directory = Path(self.spec.output)
        outputs = self._described_outputs()
        parts = PartFiles(directory, outputs)

        def write_index(_: dict[str, Any]) -> str:
            parts.write_index(list(ranges_of(self.pipeline)), structure_of(self.outputs))
            shapes = ", ".join(
                f"{o.name} {(self.num_examples, *o.shape)} {o.dtype}" for o in outputs
            )
            return f"predicted {self.num_examples:,} examples: {shapes}"

        missing = functools.partial(self._first_missing_step, parts)
        run_loop(worked, write_index, self.predictor, parts, missing)

    @property
    def num_examples(self) -> int:
        """Number of examples in the split."""
        return self.pipeline.source.num_examples

    def _write_results(self, results: dict[str, Any]) -> str:
        environment = self._membership.environment
        content = {
            "version": RESULTS_VERSION,
            "job": self.spec.job,
            "split": self.spec.split,
            "num_examples": self.num_examples,
            "checkpoint": str(self.weights),
            "results": results,
        }
        if environment is not None:
            files.write_json(Path(environment.job_dir) / files.RESULTS, content)
        return f"evaluated {self.num_examples:,} examples: {formatted_metrics(numbers_of(results))}"

    def _first_missing_step(self, parts: PartFiles) -> int:
        """Returns the first step with predictions missing on disk; the number of steps if none."""
        steps = self.pipeline.steps_per_epoch
        for step in range(steps):
            if not all(parts.has(part) for part in ranges_of_step(self.pipeline, step)):
                return step
        return steps

    def _described_outputs(self) -> list[Output]:
        arrays = [as_array(leaf) for leaf in tf.nest.flatten(self.outputs)]
        names = names_in(structure_of(self.outputs))
        return [
            Output(name, array.shape[1:], array.dtype.name)
            for name, array in zip(names, arrays, strict=True)
        ]

    def _first_outputs(self, predictor: Predictor) -> Any:
        """Returns the outputs for the first examples. This also makes all variables of the model.

        Raises:
          DataError: the model does not accept the data, or does not return arrays with one row per
            example.
        """
        batch = structure.cut(self.pipeline.first_batch(), 0, TRIED_EXAMPLES)
        try:
            outputs = predictor.eagerly(batch)
        except ElasticError:
            raise
        except Exception as error:  # the user's layers may raise anything
            raise DataError(
                f"The model cannot predict from the first examples of "
                f'dataset(split="{self.spec.split}"), which are '
                f"{describe(self.pipeline.batch_spec)}: {type(error).__name__}: "
                f"{first_sentence(error)} Change the data or the model."
            ) from error
        count = structure.num_examples(batch)
        for leaf in tf.nest.flatten(outputs):
            if (found := len(as_array(leaf))) != count:
                raise DataError(
                    f"predict_step returned {found} rows for {count} examples, expected one for "
                    "each. Change what it returns."
                )
        return outputs

    def warn_of_draws(self) -> None:
        """Warns if predictions are random."""
        if self.predictor is None:
            return
        seeds = [v for v in variables_of(self.model).layers if v.path.endswith(SEED_NAME)]
        before = [seed.numpy() for seed in seeds]
        self.predictor.eagerly(structure.cut(self.pipeline.first_batch(), 0, 1))
        if any((seed.numpy() != b).any() for seed, b in zip(seeds, before, strict=True)):
            notices.tell(DRAWS)

    def identity(self) -> dict[str, Any]:
        """Returns everything that predictions depend on, as JSON values."""
        weights = 0
        for variable in self.model.weights:
            weights = zlib.crc32(np.ascontiguousarray(variable.numpy()).tobytes(), weights)
        return {
            "model": self.spec.model,
            "config": self.spec.config,
            "seed": self.spec.training.seed,
            "split": self.spec.split,
            "weights": f"{weights:08x}",
            "num_examples": self.num_examples,
            "first_batch": structure.fingerprint(self.pipeline.first_batch()),
            "global_batch_size": self.pipeline.global_batch_size,
            "micro_batch_size": self.pipeline.micro_batch_size,
        }


def make_inference(spec: JobSpec, session: Session) -> InferenceJob:
    """Loads the model module and makes the job of a worker.

    Raises:
      ConfigurationError: the module does not keep its contract.
    """
    set_up()
    module = load_module(spec)
    job = InferenceJob(spec, module, _data_of(module, spec), session)
    notices.report_to(None)  # the check has already shown the same notices
    return job


def check(spec: JobSpec) -> dict[str, Any]:
    """Does everything a worker does before it joins, except tracing, and describes the job.

    Raises:
      ConfigurationError: something is wrong, with the remedy.
    """
    set_up()
    module = load_module(spec)
    data = _data_of(module, spec)
    # This comes before the job reads from the dataset, which may have another order for each
    # iterator.
    first = front(data) if is_dataset(data) else None
    job = InferenceJob(spec, module, data, SoloSession())
    if job.evaluates:
        try_first_examples(job.model, job.pipeline, f'dataset(split="{spec.split}")')
    job.warn_of_draws()
    notices.report_to(None)  # the second load would repeat the same notices
    again = front(_data_of(module, spec))
    check_reproducible(front(data) if first is None else first, again, spec.split)
    return {
        "checkpoint_step": None,
        "parameters": int(job.model.count_params()),
        "micro_batch_size": job.pipeline.micro_batch_size,
        "steps_per_epoch": job.pipeline.steps_per_epoch,
        "num_examples": job.num_examples,
        "num_validation_examples": 0,
        "weights": str(job.weights),
        "identity": None if job.evaluates else job.identity(),
    }


def ranges_of(pipeline: Pipeline) -> Iterator[Range]:
    """Yields the ranges of examples with a file of their own: the micro-batches of all steps."""
    for step in range(pipeline.steps_per_epoch):
        yield from ranges_of_step(pipeline, step)


def ranges_of_step(pipeline: Pipeline, step: int) -> Iterator[Range]:
    """Yields the ranges of one step."""
    part = pipeline.partition.step_share(step, 0, pipeline.num_micro_batches)
    bounds = [part.start + int(offset) for offset in part.offsets]
    yield from ((low, high) for low, high in itertools.pairwise(bounds) if low < high)


def _data_of(module: ModelModule, spec: JobSpec) -> DataLike:
    data = load_split(module, spec.split)
    if data is None:
        raise ModelModuleError(
            f'dataset(split="{spec.split}") of {module.name} returned None, so that there is '
            f"nothing to {spec.job} with. Give another --split, or return data for this one."
        )
    return data


def _pipeline(spec: JobSpec, data: DataLike) -> Pipeline:
    source = as_source(
        data,
        seed=spec.training.seed,
        shuffle=False,
        name=f'dataset(split="{spec.split}")',
        num_examples=spec.num_examples.get(spec.split),
        must_repeat=True,
    )
    size = spec.training.global_batch_size
    # Inference uses the moving averages of batch normalisation, so any cut will do.
    cut = BatchCut(spec.training.micro_batch_size or None).of(size, has_batch_norm=False)
    return Pipeline(source, size, cut)
