"""The course of a job, as pages and Prometheus get it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import yaml

from hvd_elastic_keras.common import control, events
from hvd_elastic_keras.observe import job_course, pages
from hvd_elastic_keras.observe.job_course import JobCourse

DEPLOY = Path(__file__).resolve().parents[3] / "hvd_elastic_keras" / "deploy"


def round_running(number: int, *members: str, steps_lost: int = 0) -> events.RoundRunning:
    return events.RoundRunning(
        round=number,
        training=1,
        world_size=len(members),
        members=list(members),
        micro_batches=[8 // len(members)] * len(members),
        reason="w1 was killed by SIGKILL" if number > 1 else "all have come",
        step=10 * number,
        stall_s=0.25,
        steps_lost=steps_lost,
    )


def steps_taken(step: int, loss: float = 0.5) -> events.StepsTaken:
    metrics = {"loss": loss, "accuracy": 0.75}
    return events.StepsTaken(
        training=1, epoch=2, step=step, metrics=metrics, examples_per_s=640.0, step_s=0.1
    )


def exited(*, evicted: bool) -> events.WorkerExited:
    return events.WorkerExited(
        worker_id="w1", pid=1, cause="x", failed=True, evicted=evicted, step=20
    )


def of(*entries: events.Entry) -> JobCourse:
    course = JobCourse()
    for number, entry in enumerate(entries):
        course.hear(1000.0 + number, entry)
    return course


STATUS = control.JobStatus(
    phase="running",
    detail="",
    training=1,
    round=2,
    step=21,
    target_workers=2,
    slots=(),
    min_workers=1,
    max_workers=16,
    restarts_used=1,
    max_restarts=10,
    spent_s={"training": 40.5, "re-forming": 0.5},
    workers=tuple(
        control.WorkerStatus(
            worker_id=worker_id,
            phase=phase,
            rank=rank,
            host="localhost",
            pid=1,
            seniority=0,
            training=1,
            step=21,
            heartbeat_age_s=0.1,
        )
        for worker_id, phase, rank in (("w0", "training", 0), ("w2", "starting", None))
    ),
)


def test_what_is_new_since_a_version_is_told_and_nothing_else() -> None:
    course = of(round_running(1, "w0", "w1"), steps_taken(11))
    known = course.version
    assert [p["step"] for p in course.since(0)["steps"]] == [11]
    course.hear(1003.0, steps_taken(12))
    course.hear(1004.0, round_running(2, "w0", steps_lost=1))
    new = course.since(known)
    assert [p["step"] for p in new["steps"]] == [12]
    assert [s["size"] for s in new["sizes"]] == [1]
    (change,) = new["changes"]
    assert (change["size_before"], change["round"]["steps_lost"]) == (2, 1)
    assert "2 → 1 worker (w0) from step 20: w1 was killed by SIGKILL" in change["text"]
    assert course.since(course.version) == {"steps": [], "epochs": [], "sizes": [], "changes": []}


def test_micro_batches_are_those_of_the_newest_shares() -> None:
    course = of(round_running(1, "w0", "w1"))
    assert course.shares == {"w0": 4, "w1": 4}
    course.hear(0.0, events.SharesBalanced(step=3, micro_batches=[6, 2], slowness={}))
    assert course.shares == {"w0": 6, "w1": 2}


def test_a_long_job_takes_no_more_room() -> None:
    course = JobCourse()
    for step in range(5 * job_course.MOST_POINTS):
        course.hear(float(step), steps_taken(step))
        course.hear(float(step), exited(evicted=False))
    found = course.since(0)
    assert job_course.MOST_POINTS / 2 <= len(found["steps"]) <= job_course.MOST_POINTS
    assert found["steps"][0]["step"] == 0
    assert found["steps"][-1]["step"] >= 5 * job_course.MOST_POINTS - 8
    assert len(found["changes"]) == job_course.MOST_CHANGES


def test_prometheus_gets_the_job_in_its_format() -> None:
    course = of(
        round_running(1, "w0", "w1"),
        exited(evicted=True),
        exited(evicted=False),
        round_running(2, "w0", steps_lost=3),
        steps_taken(21, loss=0.125),
    )
    lines = pages.exposition(STATUS, course).decode().splitlines()
    assert "# TYPE hvd_elastic_rounds_total counter" in lines
    assert "# TYPE hvd_elastic_world_size gauge" in lines
    assert {
        "hvd_elastic_world_size 1.0",
        "hvd_elastic_slots 2.0",
        'hvd_elastic_workers{state="training"} 1.0',
        'hvd_elastic_workers{state="starting"} 1.0',
        "hvd_elastic_restarts 1.0",
        "hvd_elastic_step 21.0",
        "hvd_elastic_epoch 3.0",
        "hvd_elastic_examples_per_second 640.0",
        "hvd_elastic_loss 0.125",
        'hvd_elastic_metric{name="accuracy"} 0.75',
        "hvd_elastic_rounds_total 2.0",
        "hvd_elastic_worker_failures_total 2.0",
        "hvd_elastic_evictions_total 1.0",
        "hvd_elastic_steps_lost_total 3.0",
        "hvd_elastic_stall_seconds_total 0.5",
        'hvd_elastic_goodput_seconds{part="training"} 40.5',
        'hvd_elastic_goodput_seconds{part="re-forming"} 0.5',
    } <= set(lines)


def test_of_a_loop_of_ones_own_prometheus_gets_the_speed_of_its_commits_alone() -> None:
    commits = events.StepsTaken(
        training=1,
        epoch=None,
        step=21,
        unit="commit",
        metrics={},
        examples_per_s=None,
        step_s=0.25,
    )
    course = of(round_running(1, "w0", "w1"), commits)
    text = pages.exposition(STATUS, course).decode()
    assert "hvd_elastic_step_seconds 0.25" in text
    for name in ("hvd_elastic_epoch", "hvd_elastic_examples_per_second", "hvd_elastic_loss"):
        assert name not in text
    (point,) = course.since(0)["steps"]
    assert (point["unit"], point["examples_per_s"], point["step_s"]) == ("commit", None, 0.25)


def test_prometheus_gets_what_there_is_before_the_first_step() -> None:
    text = pages.exposition(STATUS, JobCourse()).decode()
    assert "hvd_elastic_rounds_total 0.0" in text
    assert "hvd_elastic_loss" not in text


def test_alerts_and_the_dashboard_of_grafana_ask_for_metrics_that_there_are() -> None:
    course = of(round_running(1, "w0", "w1"), steps_taken(21))
    text = pages.exposition(STATUS, course).decode()
    known = set(re.findall(r"^(hvd_elastic_\w+)", text, re.MULTILINE))
    rules = (DEPLOY / "kubernetes" / "monitoring.yaml").read_text()
    for asked in (rules, (DEPLOY / "grafana" / "job.json").read_text()):
        names = set(re.findall(r"\bhvd_elastic_\w+", asked)) - {"hvd_elastic_keras"}
        assert names
        assert names <= known


def test_an_alert_can_see_that_the_loss_is_not_a_number() -> None:
    course = of(round_running(1, "w0", "w1"), steps_taken(21, loss=math.nan))
    assert "hvd_elastic_loss NaN" in pages.exposition(STATUS, course).decode()


def test_the_files_for_prometheus_fit_those_of_the_job() -> None:
    files = DEPLOY / "kubernetes"
    monitor, policy, _ = yaml.safe_load_all((files / "monitoring.yaml").read_text())
    _, job, policy_of_job = yaml.safe_load_all((files / "master.yaml").read_text())
    template = job["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": port["containerPort"]}]
    labels = template["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy_of_job["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
