"""Which GPUs a worker sees."""

from __future__ import annotations

import pytest

from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions

GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def gpu_variables(slot: int, count: int, *, joined: bool = False) -> dict[str, str]:
    options = JobOptions(otherwise={"gpus_per_worker": count})
    place = env.WorkerEnvironment("", "", "w0", "", options=options, slot=slot, joined=joined)
    return {k: v for k, v in place.to_variables().items() if k in (*GROWTH, env.VISIBLE_GPUS)}


@pytest.mark.parametrize(
    ("of_user", "slot", "count", "expected"),
    [
        (None, 0, 1, "0"),
        (None, 3, 1, "3"),
        (None, 2, 2, "4,5"),
        ("", 1, 1, "-1"),
        ("4,-1,5", 1, 1, "-1"),
        ("4,5,6", 1, 1, "5"),
        ("GPU-a,GPU-b,GPU-c,GPU-d", 1, 2, "GPU-c,GPU-d"),
        ("4,5,6", 1, 2, "6"),
        ("4,5", 2, 1, "-1"),
    ],
)
def test_a_worker_sees_those_of_its_place_of_what_the_user_may_see(
    monkeypatch: pytest.MonkeyPatch, of_user: str | None, slot: int, count: int, expected: str
) -> None:
    monkeypatch.delenv(env.VISIBLE_GPUS, raising=False)
    if of_user is not None:
        monkeypatch.setenv(env.VISIBLE_GPUS, of_user)
    assert gpu_variables(slot, count) == {**GROWTH, env.VISIBLE_GPUS: expected}


def test_without_the_option_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.VISIBLE_GPUS, "1")
    assert gpu_variables(3, 0) == {}


def test_a_joiner_keeps_what_a_batch_system_has_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.VISIBLE_GPUS, "3")
    assert gpu_variables(1, 1, joined=True) == GROWTH
    monkeypatch.setenv(env.VISIBLE_GPUS, "")
    assert gpu_variables(1, 1, joined=True) == {**GROWTH, env.VISIBLE_GPUS: "-1"}
    monkeypatch.delenv(env.VISIBLE_GPUS)
    assert gpu_variables(1, 1, joined=True) == {**GROWTH, env.VISIBLE_GPUS: "1"}
