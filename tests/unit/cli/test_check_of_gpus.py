"""What `doctor` says of GPUs, from what the driver, TensorFlow and Horovod tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_keras.cli.checks.finding import OK, WARNING
from hvd_elastic_keras.cli.checks.machine import gpus, gpus_here, gpus_of_machine


@pytest.fixture(autouse=True)
def all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_machine_without_gpus_is_fine() -> None:
    assert gpus(present=0, seen=0, nccl=False).level == OK


def test_gpus_that_tensorflow_does_not_see_are_a_warning_with_the_remedy() -> None:
    finding = gpus(present=4, seen=0, nccl=False)
    assert finding.level == WARNING
    assert "4, of which TensorFlow sees none" in finding.line
    assert "tensorflow[and-cuda]" in finding.remedy


def test_gpus_that_are_hidden_by_a_variable_are_told_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    finding = gpus(present=4, seen=0, nccl=False)
    assert finding.level == WARNING
    assert "CUDA_VISIBLE_DEVICES=-1" in finding.found
    assert finding.remedy == "Unset CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(("nccl", "way"), [(False, "by Gloo"), (True, "by NCCL")])
def test_the_way_of_the_collectives_is_told(nccl: bool, way: str) -> None:
    finding = gpus(present=2, seen=2, nccl=nccl)
    assert finding.level == OK
    assert "TensorFlow sees 2" in finding.found
    assert way in finding.found


def test_the_driver_is_asked_how_many_there_are(tmp_path: Path) -> None:
    assert gpus_of_machine(tmp_path / "no driver") == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert gpus_of_machine(tmp_path) == 2


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        ((), None, 0),
        ((), "0,1", 0),
        (("nvidia0", "nvidia1", "nvidiactl"), None, 2),
        (("nvidia0", "nvidia1"), "1", 1),
        (("nvidia0", "nvidia1"), "", 0),
        (("kfd",), None, None),
        (("dxg",), "0,1", 2),
    ],
)
def test_what_workers_can_have_is_what_there_is_and_may_be_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[str, ...],
    visible: str | None,
    expected: int | None,
) -> None:
    for name in devices:
        (tmp_path / name).touch()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus_here(tmp_path / "no driver", tmp_path) == expected
