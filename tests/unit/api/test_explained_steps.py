"""`--explain_step` and `--check_step`: what a user sees of the plan before the first step."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
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
