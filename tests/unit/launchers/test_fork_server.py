"""Processes that a fork server makes, beside those for which Python is started: no difference.

In place of TensorFlow and Keras there are small packages of the same names, in which one can see
when they are imported, and what they have read of the environment then.
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

from hvd_elastic_keras.common import env
from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerExit
from hvd_elastic_keras.launchers.fork_server import ForkServer, ForkServerError, Start
from hvd_elastic_keras.launchers.local import KEEPER, LocalLauncher, kept_workers
from tests.harness.job import REPOSITORY, lives

LIMIT_S = 30.0
LIBRARIES = {
    "tensorflow/__init__.py": "import logging, os\n"
    "ONEDNN = os.environ.get('TF_ENABLE_ONEDNN_OPTS')\n"
    "os.environ['TF2_BEHAVIOR'] = '1'\nos.environ.pop('TO_BE_REMOVED', None)\n"
    "if not logging.root.handlers:\n"
    "    logging.getLogger('tensorflow').addHandler(logging.StreamHandler())\n",
    "tensorflow/late.py": "VALUE = 5\n",
    "keras/__init__.py": "import os, tensorflow, keras.backend\nPROCESS = os.getpid()\n",
    "keras/backend.py": "import os\ndef backend():\n    return os.environ.get('KERAS_BACKEND', "
    "'tensorflow')\n",
}
MODULES = ("numpy", "tensorflow", "keras")
FACTS = """
import json, os, sys
def environment():
    own = ("TMPDIR", "HVD_ELASTIC_KEEPER_PID")
    return {k: v for k, v in os.environ.items() if k not in own}
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags),
    "globals": sorted(set(globals()) - {"environment"}), "file": __file__, "name": __name__,
    "spec": __spec__,
    "builtins": type(__builtins__).__name__, "loader": type(__loader__).__name__,
    "is_main": sys.modules["__main__"].__dict__ is globals(), "annotations": __annotations__,
    "files": sorted(os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in (0, 1, 2)),
    "open": len(os.listdir("/proc/self/fd")), "leads_session": os.getsid(0) == os.getpid(),
    "environment": environment(),
    "is_there": [name in sys.modules for name in ("tensorflow", "keras", "tensorflow.late")],
    "output": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "directory": os.getcwd(),
}
import tempfile
facts["temporary"] = tempfile.gettempdir() == os.environ["TMPDIR"]
import tensorflow.late
from keras import backend
facts["spec_of_keras"] = sys.modules["keras"].__spec__.name
facts["environment_then"] = environment()
facts["late"] = tensorflow.late.VALUE
facts["meta_path"] = [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path]
class Pickled: pass
import pickle
facts["pickled"] = type(pickle.loads(pickle.dumps(Pickled()))) is Pickled
print(json.dumps(facts))
"""


class Workers:
    """A launcher whose workers run `script` with `arguments`, and what they have printed."""

    def __init__(self, directory: Path, script: Path, *arguments: str) -> None:
        self.lines: list[tuple[str, str]] = []
        self.exits: list[WorkerExit] = []
        self.directory = directory
        self.command = [str(script), *arguments]
        self.variables = env.worker_variables(1, keeps_threads=False)
        self.server: ForkServer | None = None

    async def forked(self) -> None:
        """From now on, a fork server makes the workers."""
        self.server = ForkServer(self.command, MODULES, self.variables)
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

    def imported_by_server(self, process: int) -> bool:
        """Whether that has imported the libraries, and not a worker by itself."""
        return self.server is not None and process == self.server.process_id


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Workers]]:
    """Makes workers of the text of a script."""
    packages = tmp_path / "packages"
    for name, text in LIBRARIES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{REPOSITORY}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("TF_ENABLE_ONEDNN_OPTS", "KERAS_BACKEND", "TF2_BEHAVIOR"):
        monkeypatch.delenv(name, raising=False)
    made: list[Workers] = []

    def of(text: str, *arguments: str) -> Workers:
        script = tmp_path / "code" / "train.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text(text)
        made.append(Workers(tmp_path, script, *arguments))
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


def in_one_process(workers: Workers) -> tuple[WorkerExit, list[str]]:
    """The end of a forked worker, and the words that it has printed."""

    async def run() -> tuple[WorkerExit, list[str]]:
        await workers.forked()
        end, said = await workers.end_of("w0")
        return end, said.split()

    return asyncio.run(run())


def test_a_script_sees_what_it_sees_when_python_is_started_for_it(
    scripts: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TO_BE_REMOVED", "1")
    (end, plain), (same_end, forked) = both(scripts(FACTS, "--rate=0.1", "two words"))
    facts = json.loads(plain)
    assert facts["argv"][1:] == ["--rate=0.1", "two words"]
    assert facts["environment_then"].keys() ^ facts["environment"].keys() == {
        *("TF2_BEHAVIOR", "TO_BE_REMOVED")
    }
    for one, other in (('"w1"', '"w0"'), ("w1.log", "w0.log")):
        forked = forked.replace(one, other)
    assert json.loads(forked) == facts
    assert end == same_end == WorkerExit("", 0)


@pytest.mark.parametrize(
    "script",
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
def test_a_script_ends_as_if_python_were_started_for_it(
    scripts: Callable[..., Workers], script: str
) -> None:
    plain, forked = both(scripts(script))
    assert forked == plain


@pytest.mark.parametrize(
    "change",
    [
        "os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'",
        "os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')",
        "os.environ.update(TF_ENABLE_ONEDNN_OPTS='0')",
        "os.environ |= {'TF_ENABLE_ONEDNN_OPTS': '0'}",
        "import numpy; os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'",
    ],
)
def test_what_a_script_sets_before_it_imports_tensorflow_counts(
    scripts: Callable[..., Workers], change: str
) -> None:
    text = f"import os\n{change}\nimport tensorflow, keras\nprint(tensorflow.ONEDNN, keras.PROCESS)"
    workers = scripts(text)
    end, (onednn, process) = in_one_process(workers)
    assert (end.return_code, onednn) == (0, "0")
    assert not workers.imported_by_server(int(process))


def test_a_variable_that_is_taken_away_counts_too(
    scripts: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    text = "import os\nos.environ.pop('TF_ENABLE_ONEDNN_OPTS')\nimport tensorflow\n"
    assert in_one_process(scripts(f"{text}print(tensorflow.ONEDNN)"))[1] == ["None"]


@pytest.mark.parametrize(
    "change",
    [
        "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'",
        "os.environ['KERAS_BACKEND'] = 'tensorflow'",
        "os.environ['HOME'] = os.environ['HOME']",
        "import numpy, tensorflow.late; os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'",
        "import importlib; importlib.import_module('keras.backend')",
        "from importlib import util; assert util.find_spec('keras').origin.endswith('.py')",
        "from importlib import util; util.find_spec('tensorflow.late'); import tensorflow.late",
        "from concurrent.futures import ThreadPoolExecutor as Pool; import importlib\n"
        "list(Pool(2).map(importlib.import_module, ['keras', 'tensorflow', 'keras.backend']))",
    ],
)
def test_what_changes_nothing_costs_no_imports(
    scripts: Callable[..., Workers], change: str
) -> None:
    workers = scripts(f"import os\n{change}\nimport keras\nprint(keras.PROCESS)")
    end, (process,) = in_one_process(workers)
    assert end.return_code == 0
    assert workers.imported_by_server(int(process))


@pytest.mark.parametrize("library", ["keras", "numpy", "msgspec"])
def test_a_script_may_bring_its_own_version_of_a_library(
    scripts: Callable[..., Workers], tmp_path: Path, library: str
) -> None:
    own = tmp_path / "vendored" / library
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("PROCESS = 'vendored'\n")
    path = f"import sys\nsys.path.insert(0, {str(own.parent)!r})\n"
    text = f"{path}import {library}, tensorflow\nprint({library}.PROCESS)"
    assert in_one_process(scripts(text))[1] == ["vendored"]


HOOK = """
import importlib.abc, sys
class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("keras", "tensorflow"):
            print("hooked", name)
sys.meta_path.insert(0, Hook())
import keras
"""
OWN_MODULE = """
import sys, types
sys.modules["keras"] = types.SimpleNamespace(PROCESS="own")
import tensorflow, keras
print(keras.PROCESS)
"""
POOL = """
import multiprocessing, os
def prepare():
    os.environ["SET_IN_CHILD"] = "1"
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1, prepare) as pool:
        print(pool.map(len, ["ab"]))
    import tensorflow
    print("trains")
"""
LAZY = """
import importlib.util, os, sys
spec = importlib.util.find_spec("tensorflow")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["tensorflow"] = module
spec.loader.exec_module(module)
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import tensorflow
print(tensorflow.ONEDNN)
"""
LOGS = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import tensorflow
logging.getLogger("tensorflow").warning("once")
"""
ELSEWHERE = """
import os
os.chdir(os.path.dirname(os.path.abspath(__file__)))
os.umask(0o77)
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import tensorflow
print(os.getcwd(), os.path.basename(__file__))
"""
DATA = """
import pkgutil
from importlib import metadata, resources
print(len(pkgutil.get_data("tensorflow", "late.py")), metadata.version("numpy"))
print(resources.files("keras").joinpath("backend.py").is_file())
"""


@pytest.mark.parametrize(
    "script",
    [HOOK, OWN_MODULE, POOL, LAZY, LOGS, ELSEWHERE, DATA],
    ids=["hook", "own module", "pool", "lazy", "logs", "elsewhere", "data"],
)
def test_scripts_that_do_unusual_things_before_they_import_do_the_same(
    scripts: Callable[..., Workers], script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workers = scripts(script)
    workers.command = ["code/train.py"]
    (end, plain), (same_end, forked) = both(workers)
    assert end == same_end == WorkerExit("", 0), (plain, forked)
    # What comes before Python is started anew, comes twice.
    assert forked.endswith(plain)


def test_workers_draw_different_numbers_if_nobody_sets_a_seed(
    scripts: Callable[..., Workers],
) -> None:
    async def run() -> list[str]:
        workers = scripts(
            "import numpy, os, random, tempfile, uuid\n"
            "print(numpy.random.rand(), random.random(), uuid.uuid4(), tempfile.mktemp())"
        )
        await workers.forked()
        return [word for n in range(2) for word in (await workers.end_of(f"w{n}"))[1].split()]

    words = asyncio.run(run())
    assert len(set(words)) == 8


def test_where_keras_runs_on_something_else_nothing_is_forked(
    scripts: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")

    async def run() -> None:
        workers = scripts("import keras; print(keras.PROCESS)")
        workers.server = ForkServer(
            workers.command, MODULES, env.worker_variables(1, keeps_threads=False)
        )
        assert not await workers.server.ready()
        end, process = await workers.end_of("w0")
        assert end.return_code == 0
        assert not workers.imported_by_server(int(process))

    asyncio.run(run())


@pytest.mark.parametrize("modules", [["no_such_module"], ["tensorflow", "numpy.no_such_module"]])
def test_imports_that_fail_leave_it_to_the_workers(
    scripts: Callable[..., Workers], modules: Sequence[str]
) -> None:
    async def run() -> None:
        workers = scripts("print('here')")
        workers.server = ForkServer(workers.command, modules, workers.variables)
        assert not await workers.server.ready()
        assert await workers.end_of("w0") == (WorkerExit("w0", 0), "here\n")

    asyncio.run(run())


def test_other_threads_for_its_operations_need_a_server_of_their_own(
    scripts: Callable[..., Workers],
) -> None:
    async def run() -> None:
        workers = scripts("import keras; print(keras.PROCESS)")
        await workers.forked()
        assert workers.server is not None
        assert workers.server.suits(workers.variables)
        assert workers.server.suits({**workers.variables, env.WORKER_ID: "w5", "TMPDIR": "/tmp"})
        assert not workers.server.suits(env.worker_variables(2, keeps_threads=True))

    asyncio.run(run())


@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_without_the_server_workers_start_as_before(
    scripts: Callable[..., Workers], ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvd_elastic_keras.launchers.fork_server.FORKED_WITHIN_S", 0.2)

    async def run() -> None:
        workers = scripts("print('here')")
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


def test_a_worker_is_killed_with_what_it_has_started(scripts: Callable[..., Workers]) -> None:
    async def run() -> None:
        workers = scripts(
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
    scripts: Callable[..., Workers], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def run() -> None:
        workers = scripts(
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
    server = ForkServer(sys.argv[2:], [sys.argv[1]], os.environ)
    if sys.argv[1] == "keras":
        assert await server.ready()
    else:
        open(os.environ["GATE"]).close()  # it imports just now
    print(server.process_id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(run())
"""


@pytest.mark.parametrize("library", ["keras", "endless"])
def test_a_server_ends_with_its_launcher(
    scripts: Callable[..., Workers], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = scripts("").command
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "packages" / "endless.py").write_text(
        "import os, threading\nopen(os.environ['GATE'], 'w').close()\nthreading.Event().wait()\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_LAUNCHER, library, *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(killed.stdout)).wait(LIMIT_S)


def test_a_worker_that_comes_after_the_next_launcher_does_not_begin(
    scripts: Callable[..., Workers], tmp_path: Path
) -> None:
    async def run() -> None:
        begun = tmp_path / "begun"
        workers = scripts(f"open({str(begun)!r}, 'w')")
        await workers.forked()
        assert workers.server is not None
        parts = [str(tmp_path / name) for name in ("w0.json", "w0.log", "no such directory")]
        start = Start(workers.command, {**workers.variables, "TMPDIR": "/tmp"}, [*KEEPER, *parts])
        with (tmp_path / "errors").open("w") as errors:
            said = workers.server.first_line(start, errors.fileno())
        assert said == "error another launcher has started this worker meanwhile\n"
        server = psutil.Process(workers.server.process_id)
        await workers.until(lambda: not server.children(recursive=True))
        assert not begun.exists()

    asyncio.run(run())


def test_a_server_that_is_ended_makes_nothing(scripts: Callable[..., Workers]) -> None:
    async def run() -> None:
        workers = scripts("")
        await workers.forked()
        assert workers.server is not None
        workers.server.close()
        with pytest.raises(ForkServerError):
            workers.server.fork(Start(workers.command, {}), 1, 2)

    asyncio.run(run())
