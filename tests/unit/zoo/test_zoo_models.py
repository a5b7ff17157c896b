"""Each model of the zoo learns: trained for some steps on its data that need no download."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

import tensorflow as tf

from hvd_elastic_keras import Trainer, TrainingConfig
from hvd_elastic_keras.api.model_module import ModelModule
from hvd_elastic_keras.data.sources.source import split_preprocess

KNOWN = ("batch normalization",)
"""What may be told before the first step."""


@dataclasses.dataclass(frozen=True)
class Case:
    """How a model is trained here, in short.

    Attributes:
      config: the configuration whose data need no download.
      changed: values of it that make it smaller.
      num_examples: of the front of the data.
      falls_to: the loss of the last epoch is at most this part of that of the first.
    """

    config: str
    changed: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_examples: int = 256
    global_batch_size: int = 64
    epochs: int = 4
    falls_to: float = 0.8


MODELS = {
    "resnet20": Case("digits", {"model_size": 8, "blocks_per_stage": 1}),
    "mnist_cnn": Case("digits", {"learning_rate": 5e-3}),
    "causal_lm": Case("python_manual", {"num_blocks": 1, "warmup_steps": 2}, epochs=5),
    "deepfm": Case("made_up", {"learning_rate": 1e-2}, num_examples=1024, falls_to=0.9),
    "text_transformer": Case("docstrings", {"dropout": 0.0, "learning_rate": 5e-3}, epochs=6),
    "unet": Case(
        "digit_scenes",
        {"num_train": 256, "filters": (8, 16), "learning_rate": 1e-2},
        global_batch_size=32,
        epochs=5,
    ),
    "wide_deep": Case("made_up", {"learning_rate": 1e-2}, num_examples=1024),
}


def module_of(name: str, case: Case) -> ModelModule:
    config = importlib.import_module(f"model_zoo.{name}.configs.{case.config}").get_config()
    with config.ignore_type():
        config.update(case.changed)
    return ModelModule(name, config=config, seed=1, data_dir="")


class Front:
    """The first examples of a source."""

    def __init__(self, source: Any, count: int) -> None:
        self._source, self._count = source, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._source[index]


def front(data: Any, count: int) -> Any:
    source, preprocess = split_preprocess(data)
    if preprocess is None:
        return tf.nest.map_structure(lambda a: a[:count], data)
    return Front(source, count), preprocess


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_zoo_learns_within_some_steps(name: str, told: list[str]) -> None:
    case = MODELS[name]
    module = module_of(name, case)
    data = front(module.dataset("train"), case.num_examples)
    config = TrainingConfig(
        global_batch_size=case.global_batch_size,
        micro_batch_size=case.global_batch_size // 2,
        epochs=case.epochs,
        seed=1,
    )
    trainer = Trainer(module.model(), data, config=config)
    losses = trainer.fit().history["loss"]
    assert losses[-1] < case.falls_to * losses[0]
    assert [text for text in told if not any(known in text for known in KNOWN)] == []
