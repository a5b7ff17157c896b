"""Workers wait at the beginning of a phase until chaos has broken them, and never for long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hvd_elastic_keras.chaos.breaker import Holds
from hvd_elastic_keras.common import phase_hold
from hvd_elastic_keras.common.phase_hold import PhaseHold

LIMIT_S = 60.0


def come_to(job_dir: Path, worker_id: str, phase: str) -> threading.Thread:
    """A worker comes to a phase."""
    worker = PhaseHold(job_dir, worker_id)
    thread = threading.Thread(target=worker.begins, args=(phase,), daemon=True)
    thread.start()
    return thread


def wait_for(holds: Holds, held: dict[str, str]) -> None:
    waited = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if holds.held() == held:
            return
        waited.wait(0.01)
    raise AssertionError(f"{holds.held()} wait, not {held}")


@pytest.fixture(autouse=True)
def wait_as_long_as_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_hold, "HOLD_S", LIMIT_S)


def test_a_worker_waits_at_a_wanted_phase_until_it_is_let_go(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    holds.want({"syncing": ()})
    worker = come_to(tmp_path, "w0", "syncing")
    wait_for(holds, {"w0": "syncing"})
    assert worker.is_alive()
    holds.let_go("w0")
    worker.join(LIMIT_S)
    assert not worker.is_alive()


def test_others_and_other_phases_are_not_held(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    holds.want({"syncing": ("w1",), "evaluating": ()})
    for name, phase in (("w0", "syncing"), ("w1", "training")):
        worker = come_to(tmp_path, name, phase)
        worker.join(LIMIT_S)
        assert not worker.is_alive()
    assert holds.held() == {}


def test_whoever_waits_for_what_is_not_wanted_any_more_goes_on(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    holds.want({"syncing": (), "evaluating": ()})
    syncs, evaluates = come_to(tmp_path, "w0", "syncing"), come_to(tmp_path, "w1", "evaluating")
    wait_for(holds, {"w0": "syncing", "w1": "evaluating"})
    holds.want({"evaluating": ()})
    syncs.join(LIMIT_S)
    assert (syncs.is_alive(), evaluates.is_alive()) == (False, True)
    holds.close()
    evaluates.join(LIMIT_S)
    assert not evaluates.is_alive()
    assert list(tmp_path.iterdir()) == []


def test_who_has_waited_in_vain_waits_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase_hold, "HOLD_S", 0.0)
    Holds(tmp_path).want({"syncing": ()})
    worker = PhaseHold(tmp_path, "w0")
    worker.begins("syncing")
    mark = tmp_path / phase_hold.DIRECTORY / "w0"
    assert mark.exists()
    mark.unlink()
    worker.begins("syncing")
    assert not mark.exists()
