"""One real job: starts it, follows its events, sends signals, and checks what it leaves behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import psutil

from hvd_elastic_keras.common import files, host_port
from hvd_elastic_keras.settings import env
from tests.harness import faults, warm_launcher, warm_server

if TYPE_CHECKING:
    from typing_extensions import Self

REPOSITORY = Path(__file__).resolve().parents[2]
FAULT_MODEL = REPOSITORY / "tests" / "harness" / "fault_model.py"
RUN, WARM_RUN = "hvd_elastic_keras.run", "tests.harness.warm_run"
POLL_S = 0.01
LIMIT_S = 100.0
SMALL = ("--global_batch_size=64", "--micro_batch_size=8", "--epochs=3")
"""24 steps in 3 epochs, 8 micro-batches in a step."""
Event = dict[str, Any]


def lives(process: psutil.Process) -> bool:
    """Returns whether a process has not ended.

    An orphan that has ended is a zombie until init reaps it.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Job:
    """A job started as a user would. Use it in a `with` block: nothing outlives the block.

    Only its imports and those of its workers are those of all jobs: see `warm_launcher.py`,
    `warm_server.py` and `ColdJob`.
    """

    limit_s = LIMIT_S
    """Seconds to wait for something before the test fails."""
    imports_anew = False
    """Whether launcher and workers do their own imports, or the fork server of their job does."""
    stdout: int | None = None
    stderr: int | None = None
    """Open files for the launcher's output, if not the file of `output`."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        plan: list[faults.Fault] | None = None,
        command: tuple[str, ...] | None = None,
    ) -> None:
        self.job_dir = directory / "job"
        self.plan = faults.FaultPlan(directory / "faults")
        self.plan.write(plan or [])
        self._output = directory / "output.txt"
        self._temporary = directory / "tmp"
        self._command = command or (f"--model={FAULT_MODEL}", *SMALL)
        # Later flags win over earlier ones; a script must come last.
        self._arguments = [f"--job_dir={self.job_dir}", *flags]
        self._process: subprocess.Popen[bytes] | warm_launcher.Launcher | None = None
        self._entries: list[Event] = []
        self._read = 0
        """Bytes of `events.jsonl` that are already in `_entries`."""

    def __enter__(self) -> Self:
        self.start_launcher()
        return self

    def start_launcher(self, *more_flags: str) -> None:
        """Runs the command, or runs it again if its launcher was killed."""
        self._temporary.mkdir(exist_ok=True)
        command, environment = self.command_line(*more_flags), self.environment()
        with self._output.open("ab") as output:
            number = output.fileno()
            stdout = number if self.stdout is None else self.stdout
            stderr = number if self.stderr is None else self.stderr
            if self.imports_anew:
                self._process = subprocess.Popen(
                    command, env=environment, stdout=stdout, stderr=stderr
                )
            else:
                self._process = warm_launcher.Launcher(
                    *(command[2], command[3:]), environment=environment, outputs=(stdout, stderr)
                )

    def command_line(self, *more_flags: str) -> list[str]:
        """Returns the command that is run."""
        options = list(itertools.takewhile(lambda a: a.startswith("--"), self._command))
        script = self._command[len(options) :]
        run = [sys.executable, "-m", RUN if self.imports_anew else WARM_RUN]
        return [*run, *options, *self._arguments, *more_flags, *script]

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of the launcher."""
        return {
            **os.environ,
            "TMPDIR": str(self._temporary),
            faults.FILE: str(self.plan.path),
            **({} if self.imports_anew else {warm_server.ADDRESS: warm_server.address()}),
        }

    def kill_launcher(self) -> None:
        """Kills the launcher with SIGKILL; its workers go on."""
        self.process.kill()
        self.process.wait(LIMIT_S)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)
        for process in self.worker_processes():
            process.kill()

    @property
    def process(self) -> subprocess.Popen[bytes] | warm_launcher.Launcher:
        """The launcher."""
        if self._process is None:
            raise RuntimeError("use the job in a with block")
        return self._process

    @property
    def output(self) -> str:
        """The output of the launcher so far."""
        return self._output.read_text()

    # --- events --------------------------------------------------------------------------

    def events(self, name: str | None = None) -> list[Event]:
        """Returns the entries of `events.jsonl` so far, of one kind or all."""
        path = self.job_dir / "events.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            # A launcher that is killed within a write leaves half a line.
            self._entries += files.event_entries(whole.decode(errors="replace").splitlines())
            self._read += len(whole)
        return [e for e in self._entries if name in (None, e["event"])]

    def wait_for(self, name: str, condition: Callable[[Event], bool] = lambda _: True) -> Event:
        """Waits for an event that meets a condition."""
        return self.wait(
            lambda: next((e for e in self.events(name) if condition(e)), None), f"event {name}"
        )

    def wait_for_round(self, size: int, after: int = 0) -> Event:
        """Waits until a round with this many workers runs."""
        return self.wait_for(
            "round_running", lambda e: e["world_size"] == size and e["round"] > after
        )

    def wait_for_fault(self, name: str) -> None:
        """Waits until a planned fault has happened."""
        self.wait(lambda: self.plan.happened(name) or None, f"fault {name}")

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        """Waits until `look` finds something. Fails if the job ends first or takes too long."""
        deadline = time.monotonic() + self.limit_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            found = look()
            if found is not None:
                return found
            if ended:
                raise AssertionError(f"the job ended before {what}:\n{self.report()}")
            time.sleep(POLL_S)
        raise AssertionError(f"no {what} within {self.limit_s:.0f} s:\n{self.report()}")

    def wait_while_alone(self, look: Callable[[], bool]) -> None:
        """Waits for something that happens to workers without their launcher."""
        deadline = time.monotonic() + LIMIT_S
        while not look():
            assert time.monotonic() < deadline, self.report()
            time.sleep(POLL_S)

    # --- the end -------------------------------------------------------------------------

    def finish(self, exit_code: int = 0) -> None:
        """Waits for the end; checks the exit code, and that the job has left nothing behind."""
        address = self.address()
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job does not end:\n{self.report()}") from None
        assert code == exit_code, self.report()
        self.assert_nothing_is_left(address)

    def assert_nothing_is_left(self, address: tuple[str, int] | None) -> None:
        """Asserts that there is no process, no open port and no temporary file."""
        assert self.worker_processes() == []
        if address is not None:
            family, address = host_port.found(*address)[0]
            with socket.socket(family) as probe:
                assert probe.connect_ex(address) != 0, f"{address} is still open"
        hidden = list(self.job_dir.rglob(".*"))
        assert hidden == [], hidden
        left = list(self._temporary.rglob("*"))
        assert left == [], left
        assert not (self.job_dir / "master.json").exists()

    def worker_processes(self) -> list[psutil.Process]:
        """Returns all processes of this job except the launcher: workers and their keepers."""
        found = []
        for process in psutil.process_iter():
            try:
                if lives(process) and process.environ().get(env.JOB_DIR) == str(self.job_dir):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def address(self) -> tuple[str, int] | None:
        """Returns host and port of the master, if it runs."""
        try:
            content = json.loads((self.job_dir / "master.json").read_text())
        except (OSError, ValueError):
            return None
        return host_port.split(content["address"])

    def token(self) -> str:
        """Returns the secret token of a running job."""
        return files.read_endpoint(self.job_dir).token

    def report(self) -> str:
        """Returns everything that helps to understand a failure."""
        logs = sorted((self.job_dir / "logs").glob("*.log"))
        tails = [f"--- {p.name}\n" + p.read_text(errors="replace")[-3000:] for p in logs]
        events = "\n".join(json.dumps(e) for e in self.events())
        return "\n".join([self.output[-5000:], events, *tails])

    # --- what tests do to it -------------------------------------------------------------

    def ctl(self, *arguments: str, exit_code: int = 0) -> str:
        """Runs the control command; returns its output, or its errors if it fails as expected."""
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "hvd_elastic_keras.ctl",
                f"--job_dir={self.job_dir}",
                *arguments,
            ],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert result.returncode == exit_code, result.stdout + result.stderr
        return result.stderr if exit_code and result.stderr else result.stdout

    def assert_audited(self, epochs: int) -> None:
        """Asserts that an audit finds each example exactly once in each of this many epochs."""
        lines = self.ctl("audit").splitlines()
        assert len(lines) == epochs, lines
        assert all(line.endswith("every example exactly once") for line in lines), lines
        audited, ended = (
            {e["epoch"] for e in self.events(name)} for name in ("epoch_audited", "epoch_end")
        )
        assert audited == ended

    def pid_of(self, worker_id: str) -> int:
        """Returns the process id of a worker."""
        started = self.wait_for("worker_started", lambda e: e["worker_id"] == worker_id)
        return int(started["pid"])

    def worker_that_had(self, fault: str) -> str:
        """Returns the id of the worker in which a planned fault has happened."""
        pid = self.plan.pid_of(fault)
        return str(self.wait_for("worker_started", lambda e: e["pid"] == pid)["worker_id"])

    def signal(self, worker_id: str, number: signal.Signals) -> None:
        """Sends a signal to a worker."""
        os.kill(self.pid_of(worker_id), number)

    def weights(self) -> dict[str, np.ndarray]:
        """Returns all variables of the final model, optimizer included, by name."""
        return read_weights(self.job_dir / "model.keras", self.job_dir.parent)


class ColdJob(Job):
    """A job that imports TensorFlow as often as at users, for tests about the start of workers."""

    imports_anew = True


def read_weights(path: Path, scratch: Path) -> dict[str, np.ndarray]:
    """Returns the variables in a `.keras` or `.weights.h5` file, by name."""
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            path = Path(archive.extract("model.weights.h5", scratch))
    result: dict[str, np.ndarray] = {}

    def note(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset):
            result[name] = np.asarray(node)

    with h5py.File(path) as file:
        file.visititems(note)
    return result


def assert_same_weights(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-5
) -> None:
    """Asserts that all variables agree, and that there are some."""
    assert found.keys() == expected.keys()
    assert expected
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)
