"""A step that goes by what another worker has found is the step of that worker."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("horovod.tensorflow")

import numpy as np
from hvd_elastic_keras.step.trials import findings

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.api import assemble
from hvd_elastic_keras.step import compiled_steps
from tests.harness.keras_models import all_cases
from tests.harness.keras_models.case import CUT, TARGETS, Case, X, regressor
from tests.harness.keras_models.case import arrays as case_arrays
from tests.harness.keras_models.losses import Penalty
from tests.harness.small_classifier import Largest, arrays, classifier, sgd

CASES = all_cases()
NAMES = (
    "layers add a mean, a sum and a value per example",
    "a variational autoencoder without call",
    "a step of one's own, eagerly",
    "a loss ignores a class",
    "functions as metrics",
)


class Others:
    """The other workers: the first of them tells what it has found."""

    def __init__(self) -> None:
        self.known = ""

    def findings(self, mine: str = "") -> str:
        self.known = self.known or mine
        return self.known


def trained(case: Case, others: Others, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Weights and history of a worker that has these others."""
    monkeypatch.setattr(assemble.SoloSession, "findings", lambda _, mine="": others.findings(mine))
    keras.utils.set_random_seed(7)
    model = case.model()
    arguments = {"epochs": 1, "verbose": 0, **case.data()}
    callbacks = [*arguments.pop("callbacks", []), ElasticCallback(micro_batch_size=case.cut)]
    history = model.fit(callbacks=callbacks, **arguments).history
    return {**history, **{str(i): w for i, w in enumerate(model.get_weights())}}


@pytest.mark.parametrize("name", NAMES)
def test_who_is_told_tries_nothing_and_comes_to_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others()
    first = trained(CASES[name], others, monkeypatch)
    assert findings.decode(others.known).training is not None
    no_trial = mock.Mock(side_effect=AssertionError("a trial"))
    for trial in ("micro_batch_for_cut", "metrics_that_do_not_add_up", "why_not_together"):
        monkeypatch.setattr(compiled_steps, trial, no_trial)
    told = trained(CASES[name], others, monkeypatch)
    assert told.keys() == first.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(told[key], value, err_msg=key)


def test_an_eager_step_tells_what_another_one_can_believe(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        lambda: regressor(keras.layers.Dense(4), Penalty("sum"), run_eagerly=True),
        case_arrays(X, TARGETS),
    )
    others = Others()
    first = trained(case, others, monkeypatch)
    monkeypatch.setattr(
        compiled_steps, "micro_batch_for_cut", mock.Mock(side_effect=AssertionError)
    )
    told = trained(case, others, monkeypatch)
    np.testing.assert_array_equal(told["loss"], first["loss"])


def test_who_makes_no_trials_tells_people_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others()
    for _ in range(2):  # the first finds it, the second may be rank 0
        trained(CASES["a loss ignores a class"], others, monkeypatch)
    texts = findings.decode(others.known).training.told  # type: ignore[union-attr]
    assert len(texts) == 1
    assert "a loss with a mask" in texts[0]
    shown = capsys.readouterr().out
    assert shown.count(texts[0]) == 2


def test_metrics_without_shares_are_averaged_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        lambda: classifier(metrics=["accuracy", Largest()], optimizer=sgd()),
        lambda: arrays(validation_data=(arrays()["x"], arrays()["y"])),
        cut=CUT,
    )
    others = Others()
    first = trained(case, others, monkeypatch)
    assert findings.decode(others.known).training.means  # type: ignore[union-attr]
    told = trained(case, others, monkeypatch)
    assert told.keys() == first.keys() >= {"largest", "val_largest"}
    assert told["largest"] == first["largest"]
    assert told["val_loss"] == first["val_loss"]


def test_findings_about_another_model_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others()
    trained(CASES["functions as metrics"], others, monkeypatch)
    about_another = others.known
    case = CASES["layers add a mean, a sum and a value per example"]
    found = trained(case, others, monkeypatch)
    assert others.known == about_another
    expected = trained(case, Others(), monkeypatch)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
