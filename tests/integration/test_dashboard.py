"""The dashboard and the report in a real browser."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import requests

pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import alert_is_present
from selenium.webdriver.support.wait import WebDriverWait
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hvd_elastic_keras.common import files, protocol
from hvd_elastic_keras.observe import report_page
from tests.harness.browser import LIMIT_S, browser, messages_of, need_browser
from tests.harness.faults import Fault
from tests.harness.idle_master import IdleMaster
from tests.harness.job import Job

POLL_S = 0.05
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
MANY_STEPS, MANY_ROUNDS = 6000, 600


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    need_browser()
    with browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes long polls short, so that simulated workers can enter one after the other."""
    monkeypatch.setattr(protocol, "LONG_POLL_S", 0.1)


def text_of(driver: webdriver.Chrome, name: str) -> str:
    """Returns the present text of an element of the page."""
    script = "return document.getElementById(arguments[0])?.innerText || ''"
    return str(driver.execute_script(script, name))


def wait_for(driver: webdriver.Chrome, condition: Callable[[], Any], what: str) -> Any:
    waiting = WebDriverWait(driver, LIMIT_S, POLL_S)
    return waiting.until(lambda _: condition(), f"no {what}: {messages_of(driver)}")


def wait_for_text(driver: webdriver.Chrome, name: str, pattern: str) -> str:
    def found() -> str:
        return text_of(driver, name) if re.search(pattern, text_of(driver, name)) else ""

    return str(wait_for(driver, found, pattern))


def click(driver: webdriver.Chrome, name: str) -> None:
    driver.find_element(By.ID, name).click()


def accept(driver: webdriver.Chrome) -> None:
    """Confirms the page's question."""
    WebDriverWait(driver, LIMIT_S, POLL_S).until(alert_is_present())
    driver.switch_to.alert.accept()


def count(driver: webdriver.Chrome, selector: str) -> int:
    return len(driver.find_elements(By.CSS_SELECTOR, selector))


def fits_a_phone(driver: webdriver.Chrome) -> bool:
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        script = "return document.documentElement.scrollWidth <= window.innerWidth"
        return bool(driver.execute_script(script))
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def write_long_history(job_dir: Path) -> None:
    """Writes the events of a job that has been running for a long time."""
    lines: list[dict[str, Any]] = []
    for step in range(MANY_STEPS):
        metrics = {"loss": 1 / (1 + step), "<b>metric</b>": 0.5}
        lines.append(
            {
                "event": "steps_taken",
                **{"training": 1, "epoch": 0, "step": step, "metrics": metrics},
                **{"examples_per_s": 100.0, "step_s": 0.1},
            }
        )
        if step % (MANY_STEPS // MANY_ROUNDS) == 0:
            number = step // (MANY_STEPS // MANY_ROUNDS) + 1
            lines.append(
                {
                    "event": "round_running",
                    **{"round": number, "training": 1, "world_size": 2, "members": ["w0", "w1"]},
                    **{"micro_batches": [4, 4], "reason": "<i>because</i>", "step": step},
                    **{"stall_s": 0.2, "steps_lost": 0},
                }
            )
    write_events(job_dir, lines)


def write_events(job_dir: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(
        json.dumps({"seq": n + 1, "time": 1.7e9 + n, **line}) + "\n" for n, line in enumerate(lines)
    )
    (job_dir / files.EVENTS).write_text(text)


def test_a_kill_is_seen_on_the_page_of_a_job_and_in_its_report(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    plan = [
        Fault(name, "train", 0, step=n, action="wait") for name, n in (("gate", 9), ("end", 20))
    ]
    flags = ("--num_workers=2", "--max_restarts=0", "--dashboard", "--report", "--tensorboard")
    with Job(tmp_path, *flags, plan=plan) as job:
        job.wait_for_fault("gate")
        (address,) = re.findall(r"dashboard: (http://\S+)", job.output)
        assert job.ctl("dashboard").strip() == address
        page, _, reads = job.ctl("dashboard", "--read_only").strip().partition("#")
        assert page == address.partition("#")[0]
        header = {"Authorization": f"Bearer {reads}"}
        metrics = requests.get(urljoin(page, "/metrics"), headers=header, timeout=60)
        assert "hvd_elastic_world_size 2.0" in metrics.text
        stop = requests.post(urljoin(page, "/v1/stop"), headers=header, timeout=60)
        assert stop.status_code == 403
        driver.get(address)
        wait_for_text(driver, "workers", r"w0[^w]*w1")
        assert job.token() not in driver.current_url
        assert text_of(driver, "name") == "fault_model"
        job.signal("w1", signal.SIGKILL)
        wait_for_text(driver, "timeline", "w1 was killed by SIGKILL")
        job.wait_for("round_opened", lambda e: e["round"] == 2)
        assert messages_of(driver) == []
        job.plan.open_gate("gate")
        wait_for_text(driver, "timeline", "round 2: 2 → 1 worker")
        job.plan.open_gate("end")
        job.finish()
        assert "report: " in job.output
        rounds = len(job.events("round_running"))
    driver.get((job.job_dir / files.REPORT).as_uri())
    wait_for(driver, lambda: count(driver, "canvas") >= 4, "chart")
    main = text_of(driver, "main")
    assert "w1 was killed by SIGKILL" in main
    assert main.count("→") == rounds - 1
    assert (text_of(driver, "status"), messages_of(driver)) == ("finished", [])
    assert fits_a_phone(driver)
    shown = EventAccumulator(str(job.job_dir / files.TENSORBOARD)).Reload()
    assert [point.value for point in shown.Scalars("job/workers")] == [2.0, 1.0]


def test_the_page_asks_for_the_token_and_then_does_what_ctl_does(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    with IdleMaster(tmp_path) as master:
        driver.get(f"http://{master.controller.address}/dashboard")
        for given, refused in (("wrong", "not the token of this job"), ("", "")):
            wait_for(driver, driver.find_element(By.ID, "token").is_displayed, "question")
            assert not driver.find_element(By.ID, "main").is_displayed()
            driver.find_element(By.ID, "token").send_keys(given or master.controller.token)
            driver.find_element(By.CSS_SELECTOR, "#login button").click()
            wait_for_text(driver, "refused", refused)
        wait_for_text(driver, "workers", r"w0[^w]*w1")
        click(driver, "add")
        wait_for_text(driver, "said", "1 more is starting")
        wait_for_text(driver, "workers", "w2")
        log = tmp_path / files.LOGS / "w2.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("imports\n<b>reads</b> its data")
        driver.find_element(By.XPATH, "//tr[td='w2']//button[.='log']").click()
        wait_for_text(driver, "log-lines", "^imports\n<b>reads</b> its data$")
        click(driver, "close-log")
        assert not driver.find_element(By.ID, "log").is_displayed()
        driver.find_element(By.XPATH, "//tr[td='w2']//button[.='remove']").click()
        accept(driver)
        wait_for_text(driver, "said", "w2 ends at once")
        click(driver, "revoke")
        accept(driver)
        wait_for_text(driver, "said", "w1 will leave")
        wait_for_text(driver, "timeline", "1 slot of localhost taken back")
        driver.get("about:blank")


def test_a_long_job_is_shown_as_fast_and_as_safely_as_a_short_one(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    write_long_history(tmp_path)
    with IdleMaster(tmp_path) as master:
        endpoint = files.read_endpoint(tmp_path)
        driver.get(endpoint.dashboard)
        wait_for_text(driver, "timeline", "<i>because</i>")
        wait_for(driver, lambda: count(driver, "canvas") == 4, "chart")
        assert count(driver, "#timeline li") == 200
        points = driver.execute_script("return course.curves.steps.length")
        assert 2000 <= points <= 4000
        assert fits_a_phone(driver)
        assert messages_of(driver) == []
        assert master.status() is not None
        driver.get("about:blank")


def test_the_report_asks_nobody_for_anything(driver: webdriver.Chrome, tmp_path: Path) -> None:
    write_long_history(tmp_path)
    target = tmp_path / "report.html"
    report_page.write(tmp_path, target)
    driver.get(target.as_uri())
    wait_for(driver, lambda: count(driver, "canvas") == 6, "chart")
    assert count(driver, "i:not(.bar i):not(.legend i)") == 0, "texts are no HTML"
    script = "return performance.getEntriesByType('resource').length"
    assert (driver.execute_script(script), messages_of(driver)) == (0, [])


def test_the_report_of_what_is_no_training_shows_what_is_known(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    of_all = {"event": "steps_taken", "training": 1, "epoch": None, "step_s": 0.25}
    commits = {**of_all, "unit": "commit", "metrics": {}, "examples_per_s": None}
    evaluated = {**of_all, "metrics": {"loss": 0.5}, "examples_per_s": 640.0}
    for steps, expected, canvases in (
        (commits, r"8\s*commits\s*4\s*commits/s", 2),
        (evaluated, r"0\.5\s*loss\s*8\s*steps\s*640\s*examples/s", 4),
    ):
        write_events(tmp_path, [{**steps, "step": 4}, {**steps, "step": 8}])
        target = tmp_path / "report.html"
        report_page.write(tmp_path, target)
        driver.get(target.as_uri())
        wait_for(driver, lambda n=canvases: count(driver, "canvas") == n, "chart")
        wait_for_text(driver, "main", expected)
        assert messages_of(driver) == []
