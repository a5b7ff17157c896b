"""Slots that a scheduler revokes and grants, by command and over HTTP, while a job trains."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.harness.faults import Fault
from tests.harness.job import Event, Job, assert_same_weights

Weights = dict[str, np.ndarray]
GATE = Fault("gate", "train", 0, step=10, action="wait")
LATER_GATE = Fault("later_gate", "train", 0, step=14, action="wait")


def post_slots(job: Job, body: bytes, token: str | None = None) -> tuple[int, dict[str, Any]]:
    """Posts to the HTTP API; returns status and content of the answer."""
    endpoint = json.loads((job.job_dir / "master.json").read_text())
    response = requests.post(
        f"http://{endpoint['address']}/v1/slots",
        data=body,
        headers={"Authorization": f"Bearer {token or endpoint['token']}"},
        timeout=10.0,
        proxies={"http": ""},
    )
    return response.status_code, response.json()


def slots_of(job: Job) -> list[dict[str, Any]]:
    slots: list[dict[str, Any]] = json.loads(job.ctl("status", "--json"))["slots"]
    return slots


def finish_without_failure(job: Job, expected: Weights) -> None:
    """Asserts an undisturbed run: no failure, no restart, no lost step, the same weights."""
    job.finish()
    assert all(e["steps_lost"] == 0 for e in job.events("round_running"))
    assert [e for e in job.events("worker_exited") if e["failed"]] == []
    assert "restart" not in job.output
    assert_same_weights(job.weights(), expected)


def exited(job: Job, worker_id: str) -> Event:
    return job.wait_for("worker_exited", lambda e: e["worker_id"] == worker_id)


def test_a_slot_is_revoked_in_the_middle_of_an_epoch_and_granted_again(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=4", plan=[GATE, LATER_GATE]) as job:
        job.wait_for_fault("gate")
        *stay, junior = job.wait_for_round(4)["members"]
        text = job.ctl("revoke", "--slots=1", "--deadline_s=60")
        assert text == f"{junior} will leave after the current step, or is killed after 60 s\n"
        assert "slots 3 granted, 4 used" in job.ctl("status")
        job.plan.open_gate("gate")
        smaller = job.wait_for_round(3)
        assert (smaller["members"], smaller["micro_batches"]) == (stay, [3, 3, 2])
        assert smaller["step"] == 11  # all workers finished the step that was running
        left = exited(job, junior)
        assert (left["cause"], left["failed"]) == ("left: slot revoked", False)  # exit code 0
        job.wait_for_fault("later_gate")
        assert slots_of(job) == [{"host": "localhost", "granted": 3, "used": 3}]
        assert job.ctl("grant", "--host=localhost", "--slots=1") == "w4 is starting\n"
        job.wait_for("round_opened", lambda e: e["reason"] == "w4 joins")
        job.plan.open_gate("later_gate")
        larger = job.wait_for_round(4, after=2)
        assert (larger["members"], larger["micro_batches"]) == ([*stay, "w4"], [2, 2, 2, 2])
        finish_without_failure(job, expected_weights)
        # No process was restarted: w0 to w3 at the start, w4 for the granted slot.
        started = [e["worker_id"] for e in job.events("worker_started")]
        assert started == ["w0", "w1", "w2", "w3", "w4"]
        revoked = job.events("slots_revoked")[0]
        assert (revoked["host"], revoked["slots"], revoked["deadline_s"], revoked["workers"]) == (
            ("localhost", 1, 60.0, [junior])
        )
        assert job.events("slots_granted")[1]["workers"] == ["w4"]
        names = ", ".join(stay)
        assert f"round 2: 4 → 3 workers ({names}), 3+3+2 micro-batches: {junior} leaves" in (
            job.output
        )
        assert f"round 3: 3 → 4 workers ({names}, w4), 2+2+2+2 micro-batches: w4 joins" in (
            job.output
        )


@pytest.mark.slow
def test_after_a_revocation_a_killed_worker_is_replaced_up_to_the_granted_slots(
    tmp_path: Path, expected_weights: Weights
) -> None:
    kill = Fault("kill", "train", 0, step=14)
    with Job(tmp_path, "--num_workers=4", plan=[GATE, kill]) as job:
        job.wait_for_fault("gate")
        members = job.wait_for_round(4)["members"]
        text = job.ctl("revoke", "--slots=2")
        assert text == f"{members[3]}, {members[2]} will leave after the current step\n"
        job.plan.open_gate("gate")
        smaller = job.wait_for_round(2)
        assert smaller["members"] == members[:2]
        assert smaller["reason"] == f"{', '.join(sorted(members[2:]))} leave (slots revoked)"
        job.finish()
        assert job.plan.happened("kill")
        failed = [e["worker_id"] for e in job.events("worker_exited") if e["failed"]]
        assert failed == members[:1]
        assert len(job.events("worker_started")) == 5, "one replacement, for one of two slots"
        assert "(restart 1 of 10)" in job.output
        assert_same_weights(job.weights(), expected_weights)


@pytest.mark.slow
def test_a_revoked_worker_that_hangs_is_killed_at_the_deadline_and_the_others_go_on(
    tmp_path: Path, expected_weights: Weights
) -> None:
    with Job(tmp_path, "--num_workers=4", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        *stay, junior = job.wait_for_round(4)["members"]
        job.signal(junior, signal.SIGSTOP)
        asked_at = time.time()
        status, reply = post_slots(job, b'{"revoke": 1, "host": "localhost", "deadline_s": 3}')
        assert (status, reply["accepted"], reply["workers"]) == (200, True, [junior])
        job.plan.open_gate("gate")
        killed = exited(job, junior)
        assert killed["cause"] == "was killed: it had not left within 3 s"
        assert 3.0 <= killed["time"] - asked_at < 6.0
        smaller = job.wait_for_round(3)
        assert smaller["members"] == stay
        assert smaller["time"] - killed["time"] < 6.0
        assert f"{junior} has not left within 3 s (slot revoked): it is killed" in job.output
        finish_without_failure(job, expected_weights)
        assert len(job.events("worker_started")) == 4, "nobody replaces it"


BAD_REQUESTS = [
    (b'{"revoke": 3}', 409, "3 were to be revoked, but there are only 2 slots"),
    (b'{"revoke": 1}', 409, "2 slots minus 1 is below min_workers=2"),
    (b'{"grant": 2}', 409, "2 slots plus 2 is above max_workers=3"),
    (b'{"revoke": 1, "host": "elsewhere"}', 409, "There is no host 'elsewhere'"),
    (b'{"revoke": 0}', 400, "revoke 0 was given, expected at least 1 slot"),
    (b'{"grant": -1}', 400, "grant -1 was given, expected at least 1 slot"),
    (b'{"revoke": 1, "grant": 1}', 400, "Revoke and grant were given"),
    (b"{}", 400, "Neither revoke nor grant was given"),
    (b'{"revoke": 1, "deadline_s": 0}', 400, "deadline_s 0 was given"),
    (b'{"revoke": "one"}', 400, "expected a SlotsRequest in JSON such as"),
    (b'{"revoke": 1', 400, "expected a SlotsRequest in JSON such as"),
]


def test_bad_requests_are_answered_clearly_and_change_nothing(
    tmp_path: Path, expected_weights: Weights
) -> None:
    flags = ("--num_workers=2", "--min_workers=2", "--max_workers=3")
    with Job(tmp_path, *flags, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.wait_for_round(2)
        job.wait_for("checkpoint_saved")  # in the background
        before = job.events(), job.output
        for body, expected_status, words in BAD_REQUESTS:
            status, reply = post_slots(job, body)
            assert (status, reply["accepted"]) == (expected_status, False), body
            assert words in reply["text"]
        status, reply = post_slots(job, b'{"revoke": 1}', token="guessed")
        assert (status, reply["accepted"]) == (401, False)
        assert "token" in reply["text"]
        refused = job.ctl("revoke", "--slots=1", exit_code=1)
        assert refused == "2 slots minus 1 is below min_workers=2; nothing was changed.\n"
        assert "no host 'x'" in job.ctl("grant", "--slots=1", "--host=x", exit_code=1)
        assert "at least 1" in job.ctl("grant", "--slots=0", exit_code=2)
        assert (job.events(), job.output) == before
        assert slots_of(job) == [{"host": "localhost", "granted": 2, "used": 2}]
        job.plan.open_gate("gate")
        finish_without_failure(job, expected_weights)
        assert len(job.events("round_running")) == 1


@pytest.mark.slow
def test_the_curl_line_of_the_documentation_revokes_a_slot(
    tmp_path: Path, expected_weights: Weights
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "slots.md").read_text()
    found = re.search(r"^\$ (curl (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert found, "the page shows how to call the API"
    for tool in ("curl", "jq"):
        if subprocess.run(["which", tool], capture_output=True, check=False).returncode:
            pytest.skip(f"{tool} is not installed")
    with Job(tmp_path, "--num_workers=2", plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.wait_for_round(2)
        result = subprocess.run(
            ["bash", "-c", found[1].replace("jobs/demo", str(job.job_dir))],
            capture_output=True,
            text=True,
            check=True,
            timeout=20.0,
        )
        assert json.loads(result.stdout)["accepted"], result.stdout
        job.plan.open_gate("gate")
        job.wait_for_round(1)
        finish_without_failure(job, expected_weights)
