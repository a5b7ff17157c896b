"""Processes that a fork server makes, beside those for which Python is started: no difference.

In place of TensorFlow and Keras there are small packages of the same names, in which one can see
when they are imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerExit
from hvd_elastic_keras.launchers.fork_server import ForkServer, ForkServerError, Request
from hvd_elastic_keras.launchers.kept_workers import KEEPER, kept_workers
from hvd_elastic_keras.launchers.local import LocalLauncher
from hvd_elastic_keras.settings import env
from tests.harness.job import REPOSITORY, lives

LIMIT_S = 100.0
MODULE = "program_of_workers"
LIBRARIES = {
    "tensorflow/__init__.py": "import os\nos.environ['TF2_BEHAVIOR'] = '1'\n",
    "tensorflow/late.py": "VALUE = 5\n",
    "keras/__init__.py": "import os, tensorflow\nPROCESS = os.getpid()\n",
}
MODULES = ("numpy", "tensorflow", "keras")
FACTS = """
import json, os, sys, tensorflow.late
own = ("TMPDIR", "HVD_ELASTIC_KEEPER_PID", "KERAS_BACKEND")
facts = {
    "argv": sys.argv, "path": sys.path, "flags": repr(sys.flags),
    "file": __file__, "name": __name__, "spec": __spec__.name,
    "loader": type(__loader__).__name__,
    "is_main": sys.modules["__main__"].__dict__ is globals(),
    "files": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in (0, 1, 2)),
    "open": len(os.listdir("/proc/self/fd")), "leads_session": os.getsid(0) == os.getpid(),
    "environment": {k: v for k, v in os.environ.items() if k not in own},
    "output": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "directory": os.getcwd(), "late": tensorflow.late.VALUE,
}
import tempfile
facts["temporary"] = tempfile.gettempdir() == os.environ["TMPDIR"]
class Pickled: pass
import pickle
facts["pickled"] = type(pickle.loads(pickle.dumps(Pickled()))) is Pickled
print(json.dumps(facts))
"""


class Workers:
    """A launcher whose workers run a module with `arguments`, and what they have printed."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.lines: list[tuple[str, str]] = []
        self.exits: list[WorkerExit] = []
        self.directory = directory
        self.command = ["-m", MODULE, *arguments]
        self.variables = env.worker_variables(1, keeps_threads=False)
        self.server: ForkServer | None = None

    async def forked(self) -> None:
        """From now on, a fork server makes the workers."""
        self.server = ForkServer(self.variables, MODULES)
        assert await self.server.ready()

    @property
    def launcher(self) -> LocalLauncher:
        return LocalLauncher(
            lambda _: [sys.executable, *self.command],
            self.directory / "logs",
            self.directory / "workers",
            lambda worker_id: env.WorkerEnvironment("m:1", "token", worker_id, "/job"),
            lambda worker_id, line: self.lines.append((worker_id, line)),
            variables=self.variables,
            fork_server=self.server,
        )

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, (self.lines, self.exits)
            await asyncio.sleep(0.005)

    async def end_of(self, worker_id: str) -> tuple[WorkerExit, str]:
        """Runs a worker to its end; also returns what stands in its log."""
        self.launcher.launch(worker_id, LOCALHOST, self.exits.append)
        await self.until(lambda: self.exits)
        return self.exits.pop(), (self.directory / "logs" / f"{worker_id}.log").read_text()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Workers]]:
    """Makes workers of the text of a module."""
    packages = tmp_path / "packages"
    for name, text in LIBRARIES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{REPOSITORY}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("TF2_BEHAVIOR", raising=False)
    made: list[Workers] = []

    def of(text: str, *arguments: str) -> Workers:
        (packages / f"{MODULE}.py").write_text(text)
        made.append(Workers(tmp_path, *arguments))
        return made[-1]

    yield of
    for workers in made:
        if workers.server:
            workers.server.close()


def both(workers: Workers) -> list[tuple[WorkerExit, str]]:
    """The ends and logs of a worker for which Python is started, and of one that is forked."""

    async def run() -> list[tuple[WorkerExit, str]]:
        plain = await workers.end_of("w0")
        await workers.forked()
        forked = await workers.end_of("w1")
        return [(WorkerExit("", e.return_code, e.reason), said) for e, said in (plain, forked)]

    return asyncio.run(run())


def test_a_module_sees_what_it_sees_when_python_is_started_for_it(
    programs: Callable[..., Workers],
) -> None:
    (end, plain), (same_end, forked) = both(programs(FACTS, "--rate=0.1", "two words"))
    facts = json.loads(plain)
    assert facts["argv"][1:] == ["--rate=0.1", "two words"]
    for one, other in (('"w1"', '"w0"'), ("w1.log", "w0.log")):
        forked = forked.replace(one, other)
    assert json.loads(forked) == facts
    assert end == same_end == WorkerExit("", 0)


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no data')",
        "def f():\n    raise ValueError('bad')\n\nf()",
        "import tensorflow\n1 / 0",
        "print(",
        "import os; print('unwritten', end=''); os._exit(4)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit, threading\natexit.register(print, 'at exit')\n"
        "t = threading.Timer(0.05, print, ['in a thread'])\nt.start()",
        "import multiprocessing as m\ndef f(x):\n    return x + 1\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('spawn').Pool(1) as pool:\n        print(pool.map(f, [1, 2]))",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(5)'], check=True)",
    ],
)
def test_a_module_ends_as_if_python_were_started_for_it(
    programs: Callable[..., Workers], text: str
) -> None:
    (end, plain), (same_end, forked) = both(programs(text))
    assert same_end == end
    # Before the last line, a traceback names those who called the module.
    assert forked.splitlines()[-1:] == plain.splitlines()[-1:]


def test_workers_draw_different_numbers_if_nobody_sets_a_seed(
    programs: Callable[..., Workers],
) -> None:
    async def run() -> list[str]:
        workers = programs(
            "import numpy, os, random, tempfile, uuid\n"
            "print(numpy.random.rand(), random.random(), uuid.uuid4(), tempfile.mktemp())"
        )
        await workers.forked()
        return [word for n in range(2) for word in (await workers.end_of(f"w{n}"))[1].split()]

    words = asyncio.run(run())
    assert len(set(words)) == 8


@pytest.mark.parametrize("modules", [["no_such_module"], ["tensorflow", "numpy.no_such_module"]])
def test_imports_that_fail_leave_it_to_the_workers(
    programs: Callable[..., Workers], modules: Sequence[str]
) -> None:
    async def run() -> None:
        workers = programs("print('here')")
        workers.server = ForkServer(workers.variables, modules)
        assert not await workers.server.ready()
        assert await workers.end_of("w0") == (WorkerExit("w0", 0), "here\n")

    asyncio.run(run())


@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_without_the_server_workers_start_as_before(
    programs: Callable[..., Workers], ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvd_elastic_keras.launchers.fork_server.FORKED_WITHIN_S", 0.2)

    async def run() -> None:
        workers = programs("print('here')")
        await workers.forked()
        assert workers.server is not None
        server = psutil.Process(workers.server.process_id)
        if ended == "killed":
            server.kill()
        else:
            server.suspend()
        for worker_id in ("w0", "w1"):
            assert await workers.end_of(worker_id) == (WorkerExit(worker_id, 0), "here\n")
        assert not lives(server)

    asyncio.run(run())


def test_a_worker_is_killed_with_what_it_has_started(programs: Callable[..., Workers]) -> None:
    async def run() -> None:
        workers = programs(
            "import subprocess, sys\n"
            "child = subprocess.Popen(['sleep', '1000'])\n"
            "print(child.pid, flush=True)\nchild.wait()"
        )
        await workers.forked()
        launcher = workers.launcher
        process = launcher.launch("w0", LOCALHOST, workers.exits.append).pid
        await workers.until(lambda: workers.lines)
        child = psutil.Process(int(workers.lines[0][1]))
        launcher.kill("w0")
        await workers.until(lambda: workers.exits)
        assert workers.exits == [WorkerExit("w0", -signal.SIGKILL)]
        psutil.wait_procs([child], timeout=LIMIT_S)
        assert not lives(child)
        assert not psutil.pid_exists(process)
        assert list(workers.directory.glob(f"{env.SCRATCH_PREFIX}*")) == []

    asyncio.run(run())


def test_a_worker_outlives_server_and_launcher_and_is_adopted(
    programs: Callable[..., Workers], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def run() -> None:
        workers = programs(
            f"print('first', flush=True)\nwith open({str(gate)!r}) as f:\n    print(f.read())\n"
            "import sys; sys.exit(5)"
        )
        await workers.forked()
        assert workers.server is not None
        workers.launcher.launch("w0", LOCALHOST, lambda _: None)
        await workers.until(lambda: workers.lines)
        workers.server.close()
        assert list(kept_workers(tmp_path / "workers")) == ["w0"]
        heard = len(workers.lines)
        assert workers.launcher.adopt("w0", workers.exits.append) is not None
        gate.write_text("last")
        await workers.until(lambda: workers.exits and len(workers.lines) > heard)
        assert workers.exits == [WorkerExit("w0", 5)]
        assert (tmp_path / "logs" / "w0.log").read_text() == "first\nlast\n"

    asyncio.run(run())


ENDS_WITH_LAUNCHER = """
import asyncio, os, signal, sys
from hvd_elastic_keras.launchers.fork_server import ForkServer
async def run():
    server = ForkServer(os.environ, [sys.argv[1]])
    if sys.argv[1] == "keras":
        assert await server.ready()
    elif sys.argv[1] == "endless":
        open(os.environ["GATE"]).close()  # it imports just now
    print(server.process_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""


@pytest.mark.parametrize("library", ["keras", "endless", "not_begun"])
def test_a_server_ends_with_its_launcher(
    programs: Callable[..., Workers], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("")
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "packages" / "endless.py").write_text(
        "import os, threading\nopen(os.environ['GATE'], 'w').close()\nthreading.Event().wait()\n"
    )
    (tmp_path / "packages" / "not_begun.py").write_text(
        "import threading\nthreading.Event().wait()\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_LAUNCHER, library],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(killed.stdout)).wait(LIMIT_S)


def test_a_worker_that_comes_after_the_next_launcher_does_not_begin(
    programs: Callable[..., Workers], tmp_path: Path
) -> None:
    async def run() -> None:
        begun = tmp_path / "begun"
        workers = programs(f"open({str(begun)!r}, 'w')")
        await workers.forked()
        assert workers.server is not None
        parts = [str(tmp_path / name) for name in ("w0.json", "w0.log", "no such directory")]
        request = Request(MODULE, variables={"TMPDIR": "/tmp"}, keeper=[*KEEPER, *parts])
        with (tmp_path / "errors").open("w") as errors:
            said = workers.server.first_line(request, errors.fileno())
        assert said == "error another launcher has started this worker meanwhile\n"
        server = psutil.Process(workers.server.process_id)
        await workers.until(lambda: not server.children(recursive=True))
        assert not begun.exists()

    asyncio.run(run())


def test_a_server_that_is_ended_makes_nothing(programs: Callable[..., Workers]) -> None:
    async def run() -> None:
        workers = programs("")
        await workers.forked()
        assert workers.server is not None
        workers.server.close()
        with pytest.raises(ForkServerError):
            workers.server.fork(Request(MODULE), 1, 2)

    asyncio.run(run())
