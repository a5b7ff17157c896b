"""`--explain_step` and `--check_step`: what a user sees of the plan before the first step."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import ElasticCallback, Trainer, TrainingConfig
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.step.partition import rules
from hvd_elastic_keras.step.partition.rules.states import PARTIAL, Decision, View
from tests.harness.small_classifier import arrays, classifier


class SquareOfLoss(keras.Model):
    """Needs the loss of the whole batch before its gradients."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return keras.ops.square(loss)


def model(*inner: Any) -> keras.Model:
    plain = classifier(*inner)
    found = SquareOfLoss(plain.inputs, plain.outputs)
    found.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return found


def shown(monkeypatch: pytest.MonkeyPatch, options: str, *inner: Any) -> str:
    monkeypatch.setenv("HVD_ELASTIC_OPTIONS", options)
    keras.utils.set_random_seed(1)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        model(*inner).fit(**arrays(), verbose=0, callbacks=[ElasticCallback()])
    return output.getvalue()


def test_nothing_is_shown_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "step:" not in shown(monkeypatch, "{}")


def test_each_collective_is_shown_with_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, '{"explain_step": true}').splitlines()
    assert lines[0].startswith("step: ")
    assert lines[0].endswith(" in 2 rounds"), lines
    assert "step: round 1: allreduce before what follows Sum" in lines[1]
    assert all(line.startswith("step: round ") for line in lines[1:]), lines


def test_a_trainer_explains_a_step_with_horovods_optimizer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = arrays()
    plain = classifier()
    plain.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), plain.loss)
    before = plain.get_weights()
    config = TrainingConfig(global_batch_size=8, micro_batch_size=2, epochs=1)
    Trainer(plain, (data["x"], data["y"]), config=config).explain_step()
    assert capsys.readouterr().out.startswith("step: ")
    for value, expected in zip(plain.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)


class Constants(keras.Model):
    """Its logs hold a constant from outside of the step."""

    def train_step(self, data: Any) -> Any:
        """As Keras."""
        return {**super().train_step(data), "constant": LARGE}


LARGE = tf.range(300.0)


def test_a_constant_from_outside_of_a_step_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_ELASTIC_OPTIONS", '{"micro_batches": "loop", "on_nonfinite": "skip"}')
    plain = classifier()
    found = Constants(plain.inputs, plain.outputs)
    found.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = found.fit(**arrays(), verbose=0, callbacks=[ElasticCallback()]).history
    np.testing.assert_array_equal(history["constant"][0], np.arange(300.0))


@pytest.mark.parametrize("kind", [keras.layers.BatchNormalization, keras.layers.Identity])
def test_a_step_is_checked_before_it_is_taken(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = shown(monkeypatch, '{"check_step": true}', kind()).splitlines()
    assert line.startswith("step: checked: 3 workers compute the numbers of one worker in all of ")
    assert int(line.split()[-2].replace(",", "")) > 50


def test_a_step_that_would_be_wrong_is_refused_with_the_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_summands(v: View) -> Decision:
        if PARTIAL in v.ins:
            return v.run(*v.ins, out=PARTIAL)
        return rules.elementwise.elementwise(v)

    def with_square(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        loss = keras.Model.compute_loss(self, *args, **kwargs)
        # No gradient needs the whole loss, which would then be squared.
        return loss + keras.ops.stop_gradient(keras.ops.square(loss))

    monkeypatch.setattr(SquareOfLoss, "compute_loss", with_square)
    monkeypatch.setitem(rules.RULES, "Square", of_summands)
    with pytest.raises(ConfigurationError) as caught:
        shown(monkeypatch, '{"check_step": true}')
    assert "Square" in str(caught.value)
    assert "Train with one worker meanwhile" in str(caught.value)
