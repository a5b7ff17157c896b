"""A headless Chromium with its driver for tests; both are Debian's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

REQUIRED = "HVD_ELASTIC_TEST_BROWSER"
"""Set to "required" where tests must not be skipped because a machine has no browser."""
PROGRAMS = {"chromium": "chromium", "chromedriver": "chromium-driver"}
"""The programs needed, and the Debian package of each."""
LIMIT_S = 100
WIDTH, HEIGHT = 1280, 800


def need_browser() -> None:
    """Skips a test, with a reason, where there is no browser."""
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if not missing:
        return
    why = f"there is no browser: apt-get install {' '.join(missing)}"
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(why)
    pytest.skip(why)


@contextlib.contextmanager
def browser(scratch: Path) -> Iterator[webdriver.Chrome]:
    """Yields a browser, which is gone after the block."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (
        "--headless=new",
        "--no-sandbox",  # as root
        "--disable-dev-shm-usage",  # it is small in containers
        "--disable-gpu",
        "--force-prefers-reduced-motion",
        f"--user-data-dir={scratch / 'chromium'}",
        f"--window-size={WIDTH},{HEIGHT}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(executable_path=str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(LIMIT_S)
        driver.set_script_timeout(LIMIT_S)
        yield driver
    finally:
        driver.quit()


def messages_of(driver: webdriver.Chrome) -> list[str]:
    """Returns what the page has written to the console, its errors included."""
    return [str(entry["message"]) for entry in driver.get_log("browser")]
