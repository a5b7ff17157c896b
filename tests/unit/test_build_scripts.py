"""The set-up scripts: patching, cache keys and messages, without building anything."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


patch = load("horovod_patch", SCRIPTS / "horovod_patch.py")
build = load("build_horovod_wheel", SCRIPTS / "build_horovod_wheel")


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    """A tree that has every anchor once, and nothing else."""
    for edit in patch.EDITS:
        path = tmp_path / edit.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(edit.anchor + "\n")
    return tmp_path


def test_every_change_is_applied_where_its_anchor_was(source_tree: Path) -> None:
    patch.apply_edits(source_tree)
    for edit in patch.EDITS:
        text = (source_tree / edit.path).read_text(encoding="utf-8")
        assert edit.replacement in text
        assert edit.anchor not in text or edit.anchor in edit.replacement


def test_nothing_is_written_when_an_anchor_is_missing(source_tree: Path) -> None:
    last = source_tree / patch.EDITS[-1].path
    last.write_text("something else", encoding="utf-8")
    before = {path: path.read_bytes() for path in source_tree.rglob("*") if path.is_file()}
    with pytest.raises(patch.PatchError, match="exactly once, found it 0 times"):
        patch.apply_edits(source_tree)
    assert before == {path: path.read_bytes() for path in before}


def test_an_anchor_that_occurs_twice_is_refused(source_tree: Path) -> None:
    edit = patch.EDITS[0]
    with (source_tree / edit.path).open("a", encoding="utf-8") as stream:
        stream.write(edit.anchor)
    with pytest.raises(patch.PatchError, match="found it 2 times"):
        patch.apply_edits(source_tree)


def test_a_tree_that_is_not_horovod_is_refused(tmp_path: Path) -> None:
    with pytest.raises(patch.PatchError, match="Is it Horovod"):
        patch.apply_edits(tmp_path)


def key(tensorflow: str = "2.21.0", revision: str = "1", **environ: str) -> str:
    settings = build.build_settings(environ)
    result = build.cache_key(tensorflow, "0.28.1", revision, settings, "x86_64")
    assert isinstance(result, str)
    return result


def test_each_thing_that_changes_the_wheel_changes_its_key() -> None:
    keys = [
        key(),
        key(tensorflow="2.20.0"),
        key(revision="2"),
        key(HOROVOD_GPU_OPERATIONS="NCCL"),
        key(HOROVOD_WITH_MPI="1"),
    ]
    assert len(set(keys)) == len(keys)


def test_settings_of_a_running_job_do_not_change_the_key() -> None:
    assert key(HOROVOD_RANK="1", HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE="lo") == key()


def test_asking_for_mpi_takes_back_the_default_without_it() -> None:
    assert "HOROVOD_WITHOUT_MPI" not in build.build_settings({"HOROVOD_WITH_MPI": "1"})


def test_cache_follows_the_xdg_variable(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert build.cache_root(environ) == tmp_path / "hvd_elastic_keras" / "wheels"


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_a_job_count_that_is_no_positive_number_is_refused(jobs: str) -> None:
    with pytest.raises(build.BuildError, match="HVD_ELASTIC_BUILD_JOBS"):
        build.job_count({"HVD_ELASTIC_BUILD_JOBS": jobs})


def test_a_missing_compiler_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match="sudo apt-get install g\\+\\+ make"):
        build.check_tools({"PATH": str(tmp_path)})


def test_too_little_space_names_the_folder_and_the_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(build.BuildError, match="1 MiB free, but building Horovod needs 1024 MiB"):
        build.check_space(tmp_path)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("ERROR: Failed to establish: NewConnectionError\n", "cannot be reached"),
        ("fatal error: writing: No space left on device\n", "disk is full"),
        ("g++: fatal error: Killed signal terminated program cc1plus\n", "BUILD_JOBS=1"),
        ("CMake Error at Modules/CMakeTestCXXCompiler.cmake:63\n", "compiler does not work"),
        ("a.cc:7:9: error: no member named b\n", "First error: a.cc:7:9"),
    ],
)
def test_a_failed_command_is_explained_in_one_line(
    tmp_path: Path, output: str, message: str
) -> None:
    log = tmp_path / "log"
    log.write_text(f"$ earlier\nerror: old\n$ make\n{output}", encoding="utf-8")
    explanation = build.explain(log)
    assert message in explanation
    assert str(log) in explanation
    assert "\n" not in explanation


TOOLS = (
    *("awk", "bash", "cat", "cut", "df", "dirname", "env", "flock", "grep", "make", "mkdir"),
    *("mv", "readlink", "rm", "sed", "sha256sum", "sort", "stat", "tail", "timeout", "uname"),
)


class Checkout:
    """A copy of the set-up scripts in which nothing is installed, and a PATH of our own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.root / "scripts").mkdir(parents=True)
        for name in ("setup", "versions.env", "horovod_patch.py", "build_horovod_wheel"):
            shutil.copy2(SCRIPTS / name, self.root / "scripts" / name)
        shutil.copy2(ROOT / "setup.py", self.root)
        for tool in TOOLS:
            self.link(tool)
        self.cache = folder / "cache"

    def link(self, tool: str) -> None:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"{tool} is not installed")
        (self.bin / tool).symlink_to(found)

    def program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def setup(self, **environ: str) -> tuple[int, str]:
        """Run the script and return its status and what it printed."""
        result = subprocess.run(
            [str(self.bin / "bash"), str(self.root / "scripts" / "setup")],
            env={"PATH": str(self.bin), "XDG_CACHE_HOME": str(self.cache), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        return result.returncode, result.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def real_python() -> str:
    return os.path.realpath(sys.executable)


def test_setup_without_any_python_says_what_to_install(checkout: Checkout) -> None:
    checkout.program("python3", "echo 'pyenv: no such command' >&2; exit 127")
    status, output = checkout.setup()
    assert status == 1
    assert "no Python 3.10, 3.11, 3.12 or 3.13 found" in output
    assert "sudo apt-get install python3 python3-venv" in output


def test_setup_names_an_unsupported_python(checkout: Checkout) -> None:
    checkout.program("oldpython", "echo 3.9 /usr/bin/python3.9")
    status, output = checkout.setup(PYTHON="oldpython")
    assert status == 1
    assert "PYTHON=oldpython is Python 3.9" in output


def test_setup_passes_over_a_shim_that_does_not_run_and_misses_the_compiler(
    checkout: Checkout,
) -> None:
    checkout.program("python3", "exit 127")
    version = f"python3.{sys.version_info.minor}"
    checkout.program(version, f'exec "{real_python()}" "$@"')
    status, output = checkout.setup()
    assert status == 1
    assert "No C++ compiler found" in output
    assert "Traceback" not in output


def test_setup_checks_the_free_space_before_it_begins(checkout: Checkout) -> None:
    checkout.program("python3", f'exec "{real_python()}" "$@"')
    checkout.program("c++", "exit 0")
    checkout.program("df", "echo head; echo /dev/x 9 9 1024 9% /")
    status, output = checkout.setup()
    assert status == 1
    assert "has 1 MiB free, but the environment needs 4096 MiB" in output
    assert not (checkout.root / ".venv").exists()


def test_setup_says_that_the_network_is_missing(checkout: Checkout) -> None:
    checkout.program("python3", f'exec "{real_python()}" "$@"')
    checkout.program("c++", "exit 0")
    status, output = checkout.setup(
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
        PIP_NO_CACHE_DIR="1",
    )
    assert status == 1
    assert "step 2/4 failed. The package index cannot be reached" in output
    assert "Traceback" not in output
    assert output.count("error:") == 1


# Stands for the interpreter, venv and pip: does nothing but note what it was asked.
FAKE_PYTHON = """
case "$1 $2" in
"-c import os, sys"*) echo "3.11 $FAKE_PYTHON" ;;
"-c "*) exit 0 ;;
"-m venv") mkdir -p "$3/bin" && cp "$FAKE_PYTHON" "$3/bin/python"; echo venv >>"$CALLS" ;;
"-m pip") echo "pip $*" >>"$CALLS"; sleep "${FAKE_PIP_S:-0}"; exit "${FAKE_PIP_STATUS:-0}" ;;
*"--preflight"*) exit 0 ;;
*"build_horovod_wheel --log")
    echo wheel >>"$CALLS"; echo /cache/horovod.whl; exit "${FAKE_BUILD_STATUS:-0}" ;;
*) exit 99 ;;
esac
"""


class FakeCheckout(Checkout):
    """A checkout whose set-up runs in a moment, with the calls that it made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for tool in ("cp", "sleep", "cmake"):
            self.link(tool)
        self.program("python3", FAKE_PYTHON)
        self.calls = folder / "calls"
        self.calls.touch()
        self.environ = {"FAKE_PYTHON": str(self.bin / "python3"), "CALLS": str(self.calls)}

    def setup(self, **environ: str) -> tuple[int, str]:
        return super().setup(**self.environ, **environ)

    def start(self, **environ: str) -> subprocess.Popen[str]:
        # A shell that has started the tests in the background ignores it, and so would this.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                [str(self.bin / "bash"), str(self.root / "scripts" / "setup")],
                env={"PATH": str(self.bin), **self.environ, **environ},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def count(self, word: str) -> int:
        return sum(line.startswith(word) for line in self.calls.read_text().splitlines())

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + 30
        while self.count(word) == 0:
            assert time.monotonic() < deadline, f"no call of {word}"
            time.sleep(0.01)


@pytest.fixture
def fake(tmp_path: Path) -> FakeCheckout:
    return FakeCheckout(tmp_path)


def test_second_setup_does_nothing(fake: FakeCheckout) -> None:
    assert fake.setup()[0] == 0
    calls = fake.calls.read_text()
    assert fake.setup() == (0, "")
    assert fake.calls.read_text() == calls


def test_setup_of_another_tensorflow_updates_the_environment(fake: FakeCheckout) -> None:
    assert fake.setup()[0] == 0
    status, output = fake.setup(HVD_ELASTIC_TENSORFLOW="2.18.1")
    assert status == 0
    assert "installing TensorFlow 2.18.1" in output
    assert fake.count("venv") == 1
    assert fake.count("wheel") == 2


def test_a_moved_checkout_gets_a_new_environment(fake: FakeCheckout) -> None:
    assert fake.setup()[0] == 0
    fake.root = fake.root.rename(fake.root.with_name("moved"))
    assert fake.setup()[0] == 0
    assert fake.count("venv") == 2


def test_another_interpreter_gets_a_new_environment(fake: FakeCheckout, tmp_path: Path) -> None:
    assert fake.setup()[0] == 0
    other = tmp_path / "bin" / "other-python"
    fake.program(other.name, FAKE_PYTHON)
    fake.environ["FAKE_PYTHON"] = str(other)
    assert fake.setup() == (0, ""), "without PYTHON the environment that works is kept"
    assert fake.setup(PYTHON=str(other))[0] == 0
    assert fake.count("venv") == 2
    assert fake.setup(PYTHON=str(other)) == (0, "")


def test_setups_at_the_same_time_install_once(fake: FakeCheckout) -> None:
    processes = [fake.start(FAKE_PIP_S="0.1") for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert fake.count("venv") == 1
    assert fake.count("wheel") == 1
    assert sum("waiting for it" in output for output in outputs) == 3


def end_group(process: subprocess.Popen[str], number: int) -> None:
    """Sends a signal, as often as a person would: a shell that forks just then may miss one."""
    for _ in range(5):
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
            return
    raise AssertionError(f"the processes do not end by signal {number}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_setup_killed_while_pip_runs_starts_afresh(fake: FakeCheckout, number: int) -> None:
    process = fake.start(FAKE_PIP_S="30")
    fake.wait_for("pip")
    end_group(process, number)
    assert process.returncode != 0
    status, output = fake.setup()
    assert status == 0
    assert "starting afresh" in output
    assert fake.count("venv") == 2
    assert fake.setup() == (0, "")


def test_setup_goes_on_where_pip_failed_by_itself(fake: FakeCheckout) -> None:
    status, output = fake.setup(FAKE_PIP_STATUS="1")
    assert status == 1
    assert "step 2/4 failed" in output
    assert ".setup.log" in output
    assert fake.setup()[0] == 0
    assert fake.count("venv") == 1


def test_setup_fails_when_the_wheel_cannot_be_built(fake: FakeCheckout) -> None:
    assert fake.setup(FAKE_BUILD_STATUS="1")[0] == 1
    assert not (fake.root / ".venv" / ".setup-complete").exists()


# Stands for the same in scripts/test_versions, which asks for the version in another way.
FAKE_PYTHON_WITH_TESTS = """
case "$1 $2" in
"-c import sys;"*) echo 3.11; exit ;;
"-m pytest") echo "$FAKE_TESTS"; [ "$FAKE_TESTS" = "2 passed" ]; exit ;;
esac
"""


class FakeVersions(FakeCheckout):
    """A checkout in which the pairs of `scripts/test_versions` take a moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copy2(SCRIPTS / "test_versions", self.root / "scripts")
        self.program("python3.11", FAKE_PYTHON_WITH_TESTS + FAKE_PYTHON)
        self.environ["FAKE_PYTHON"] = str(self.bin / "python3.11")

    def run(self, *pairs: str, **environ: str) -> tuple[int, list[str]]:
        """Return the status, and a line for each pair."""
        result = subprocess.run(
            [str(self.bin / "bash"), str(self.root / "scripts" / "test_versions"), *pairs],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.root),
                "XDG_CACHE_HOME": str(self.cache),
                **self.environ,
                **environ,
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
        return result.returncode, result.stdout.splitlines()


@pytest.fixture
def versions(tmp_path: Path) -> FakeVersions:
    return FakeVersions(tmp_path)


def test_a_pair_is_passed_when_its_tests_pass_and_the_others_are_run_after_one_that_fails(
    versions: FakeVersions,
) -> None:
    assert versions.run("3.11:2.20.0", FAKE_TESTS="2 passed") == (
        0,
        ["3.11:2.20.0            passed: 2 passed"],
    )
    status, lines = versions.run("3.11:2.20.0", "3.9:2.20.0", FAKE_TESTS="1 failed, 1 passed")
    assert status == 1
    assert "3.11:2.20.0            FAILED: 1 failed, 1 passed, see" in lines[0]
    assert lines[1] == "3.9:2.20.0             not run: no Python 3.9 here"


def test_a_pair_that_cannot_be_installed_is_not_run_and_says_why(versions: FakeVersions) -> None:
    status, (line,) = versions.run("3.11:2.20.0", FAKE_PIP_STATUS="1")
    assert status == 3
    assert "not run: [setup] error: step 2/4 failed" in line


def test_a_gpu_build_without_a_toolkit_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "USUAL_TOOLKIT", tmp_path)
    with pytest.raises(build.BuildError, match=r"CUDA toolkit.*CUDA_HOME.*leave out --gpu"):
        build.gpu_environment({"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)})


def test_a_gpu_build_needs_the_headers_of_nccl_and_finds_both(tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.touch(0o755)
    given = {"PATH": str(compiler.parent), "HOROVOD_GPU_BROADCAST": "MPI"}
    if not Path("/usr/include/nccl.h").exists():
        with pytest.raises(
            build.BuildError, match=rf"toolkit in {tmp_path}, but no include/nccl.h"
        ):
            build.gpu_environment(given)
    header = tmp_path / "include" / "nccl.h"
    header.parent.mkdir()
    header.touch()
    found = build.gpu_environment(given)
    assert build.build_settings(found) == {
        **build.DEFAULT_BUILD_SETTINGS,
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_GPU_BROADCAST": "MPI",
        "HOROVOD_CUDA_HOME": str(tmp_path),
        "HOROVOD_NCCL_HOME": str(tmp_path),
    }


def test_the_script_refuses_a_gpu_build_here_in_one_line(tmp_path: Path) -> None:
    if build.cuda_toolkit({}) and build.nccl_home({}, build.USUAL_TOOLKIT):
        pytest.skip("this machine has what such a build needs")
    result = subprocess.run(
        [sys.executable, SCRIPTS / "build_horovod_wheel", "--gpu"],
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("[horovod] error: --gpu ")
    assert len(result.stderr.splitlines()) == 1
