"""The launcher may open all files that the system permits; its workers as many as before."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from pathlib import Path

from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerExit
from hvd_elastic_keras.launchers.local import LocalLauncher
from hvd_elastic_keras.settings import env

WAITS = [sys.executable, "-c", "import signal; print('waits', flush=True); signal.pause()"]


def test_the_soft_limit_becomes_the_hard_one() -> None:
    code = (
        "import resource as r\n"
        "from hvd_elastic_keras.launchers.open_files import raise_limit\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 128))\n"
        "print(raise_limit(), r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(64, 128) (128, 128)\n"


def test_workers_get_the_limits_that_were_there_before(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario() -> None:
        ended, waits = asyncio.Event(), asyncio.Event()
        launcher = LocalLauncher(
            lambda _: WAITS,
            tmp_path,
            tmp_path / "workers",
            lambda worker_id: env.WorkerEnvironment("", "", worker_id, str(tmp_path)),
            lambda worker_id, line: waits.set(),
            variables=env.worker_variables(1, keeps_threads=False),
            file_limits=(100, hard),
        )

        def on_exit(event: WorkerExit) -> None:
            ended.set()

        pid = launcher.launch("w0", LOCALHOST, on_exit).pid
        await waits.wait()
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (100, hard)
        launcher.kill("w0")
        await ended.wait()

    asyncio.run(asyncio.wait_for(scenario(), 60.0))


def test_a_limit_that_is_too_low_for_the_workers_is_told_with_what_they_need() -> None:
    with_limit = (
        "import resource; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard));"
        "from hvd_elastic_keras.launchers.open_files import too_few_for;"
        "print(repr(too_few_for(10))); print(too_few_for(1000))"
    )
    result = subprocess.run(
        [sys.executable, "-c", with_limit], capture_output=True, text=True, check=True
    )
    few, many = result.stdout.splitlines()
    assert few == "''"
    assert many.startswith("warning: this process may open 400 files, and 1,000 workers")
    assert "need 6,256" in many
