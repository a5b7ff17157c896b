"""`run` and `ctl` as processes: help, and one clear line for what is wrong."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hvd_elastic_keras._version import __version__
from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.cli.command_line import GROUPS, USAGE
from hvd_elastic_keras.common import control
from hvd_elastic_keras.common.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]


IMPORTED = """
import ast, importlib.util, json, os, runpy, sys

module = sys.argv[1]
for name in ("tensorflow", "keras", "horovod"):
    sys.modules[name] = None  # an import hook that refuses them
with open(importlib.util.find_spec(module).origin) as file:
    tree = ast.parse(file.read())
imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
exec(compile(ast.Module(imports, []), "imports", "exec"), {})
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in enumerate([os.devnull, *asked["outputs"]]):
            os.dup2(os.open(path, os.O_RDWR), number)
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = [module.rpartition(".")[2], *asked["arguments"]]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Does what a command line imports, then forks for each call."""


@functools.cache
def imported(module: str) -> subprocess.Popen[str]:
    """Returns a process that has done the imports of a command line, without TensorFlow."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", IMPORTED, f"hvd_elastic_keras.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    atexit.register(process.wait)
    atexit.register(process.kill)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def call(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line in a process that refuses TensorFlow."""
    process = imported(module)
    assert process.stdin
    assert process.stdout
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.NamedTemporaryFile()) for _ in range(2)]
        asked = {
            "arguments": arguments,
            "environment": dict(os.environ),
            "outputs": [file.name for file in files],
        }
        print(json.dumps(asked), file=process.stdin, flush=True)
        code = int(process.stdout.readline())
        stdout, stderr = (file.read().decode() for file in files)
    return subprocess.CompletedProcess([module, *arguments], code, stdout, stderr)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("run", ["--model", "--num_workers", "--config", "--global_batch_size", "--job_dir"]),
        ("ctl", ["--job_dir", "status", "add 2", "remove w3"]),
        ("doctor", ["--json", "problem", "exit code"]),
        ("chaos", ["--job_dir", "--plan", "--random", "--seed", '"kind": "kill"']),
    ],
)
def test_help_works_without_tensorflow(module: str, words: list[str]) -> None:
    result = call(module, "--help")
    text = result.stdout + result.stderr
    assert "Traceback" not in text
    assert all(word in text.replace("[no]", "") for word in words), text


def test_help_shows_the_flags_of_every_day_and_where_the_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    first, everything = call("run", "--help").stdout, call("run", "--help=all").stdout
    assert first == call("run", "-h").stdout == call("run", "--num_workers=2", "--help").stdout
    assert len(first.splitlines()) < 80
    assert max(map(len, first.splitlines())) <= 80
    assert "--help=all" in first
    everything = everything.replace("[no]", "")
    assert all(f"--{name}" in everything for names in GROUPS.values() for name in names)
    assert "--pod_template" in everything
    assert "--pod_template" not in first


def test_without_arguments_run_shows_how_it_is_used() -> None:
    result = call("run")
    assert (result.stdout, result.returncode) == ("", 2)
    assert result.stderr == f"{USAGE}\nMore: --help\n"


def test_the_version_can_be_asked_for() -> None:
    result = call("run", "--version")
    assert (result.stdout, result.returncode) == (f"hvd_elastic_keras {__version__}\n", 0)


def test_another_backend_of_keras_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    result = call("run", "--model=digits_cnn")
    assert (result.stdout, result.returncode) == ("", 2)
    assert result.stderr == (
        "error: KERAS_BACKEND=jax is set, expected tensorflow. Run: export "
        "KERAS_BACKEND=tensorflow\n"
    )


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("run", ["--modle=resnet50"], ["modle"]),
        ("run", ["--resume", "--job_dir=nowhere"], ["there is no directory nowhere"]),
        ("run", ["--flagfile=nowhere.txt", "s.py"], ["nowhere.txt"]),
        ("run", ["--job_dir=lat\udcf6n", __file__], ["--job_dir='lat\\udcf6n'", "a path in UTF-8"]),
        ("run", ["--num_worker=2"], ["Did you mean num_workers? See --help."]),
        ("run", ["-np", "x"], ["--num_workers=x: expected a number of at least 1, or auto"]),
        ("run", ["-m"], ["-m package.train"]),
        ("run", ["-m", "no.such"], ["no module no.such", "`python -m no.such`"]),
        ("run", ["-np", "auto", "--launcher=kubernetes"], ["--num_workers=auto", "Give a number"]),
        ("run", ["--num_workers=0"], ["num_workers"]),
        ("run", ["--num_workers=x"], ["num_workers"]),
        ("run", ["--model=no_such_model"], ["'no_such_model'", "resnet50"]),
        ("run", ["--model="], ["resnet50"]),
        ("run", ["--model=nowhere.py"], ["nowhere.py"]),
        ("run", ["--config=no_such_config"], ["'no_such_config'", "digits"]),
        ("run", ["--num_workers=2", "--min_workers=3"], ["min_workers=3", "num_workers=2"]),
        ("run", ["--global_batch_size=100", "--micro_batch_size=32"], ["96 or 128"]),
        (
            "run",
            [
                *("--global_batch_size=4", "--micro_batch_size=4"),
                *("--num_workers=2", "--min_workers=2"),
            ],
            ["min_workers=2", "--micro_batch_size=2"],
        ),
        (
            "run",
            ["--batch=per_worker", "--global_batch_size=100", "--num_workers=3"],
            ["global_batch_size=100", "num_workers=3", "99 or 102", "--batch_size_per_worker"],
        ),
        ("run", ["--batch=per_worker", "--deterministic"], ["deterministic=True", "Leave one"]),
        ("run", ["--batch=per_worker", "--balance=speed"], ["balance='speed'", "Leave one"]),
        ("run", ["--batch=per_worker", "--lr_warm_up_steps=-1"], ["lr_warm_up_steps=-1", ">= 0"]),
        ("run", ["--batch_size_per_worker=0"], ["--batch_size_per_worker=0", "positive integer"]),
        ("run", ["--micro_batch_size=0"], ["--micro_batch_size=0", "positive integer"]),
        ("run", ["--timeline=/proc/x.json"], ["--timeline=/proc/x.json cannot be written"]),
        ("run", ["--timeline=/dev/null"], ["--timeline=/dev/null cannot be written"]),
        ("run", ["--batch=both"], ["--batch=both", "per_worker"]),
        ("run", ["--lr_scaling=sqrt"], ["--lr_scaling", "--batch=per_worker"]),
        ("run", ["--batch=per_worker", "no_such_script.py"], ["--batch"]),
        ("run", ["no_such_script.py"], ["no_such_script.py", "--model"]),
        ("run", ["--epochs=2", "no_such_script.py"], ["--epochs"]),
        ("run", ["--config=digits", "no_such_script.py"], ["--config"]),
        ("run", ["--model=digits_cnn", "foo"], ["foo was given", "flags only"]),
        ("run", ["--config.nosuch=3"], ["no value 'nosuch'"]),
        ("run", ["--job=evaluate"], ["--job=evaluate", "without --checkpoint"]),
        ("run", ["--job=guess"], ["--job=guess", "predict"]),
        ("run", ["--checkpoint=a"], ["--checkpoint", "without --job=evaluate"]),
        ("run", ["--job=train", "--split=a", "--output=b"], ["--split, --output"]),
        (
            "run",
            ["--job=evaluate", "--checkpoint=a", "--epochs=2", "--keep_checkpoints=3"],
            ["--epochs, --keep_checkpoints", "does not train"],
        ),
        ("run", ["--job=evaluate", "--checkpoint=a", "--output=b"], ["--output", "results.json"]),
        ("run", ["--job=predict", "--checkpoint=a", "--init_from=b"], ["--init_from"]),
        ("run", ["--job=predict", "--checkpoint=a", "--micro_batches=loop"], ["no sums"]),
        ("run", ["--job=predict", "--checkpoint=a", __file__], ["--job, --checkpoint", "script"]),
        ("ctl", [], ["status,add,remove"]),
        ("ctl", ["status"], ["--job_dir"]),
        ("ctl", ["--job_dir=nowhere", "add", "1", "--json"], ["--json", "add"]),
        ("ctl", ["--job_dir=nowhere", "status"], ["nowhere"]),
        ("ctl", ["--job_dir=nowhere", "dance"], ["'dance'", "'status', 'audit', 'explain', 'add'"]),
        ("ctl", ["--job_dir=nowhere", "explain"], ["no events", "nowhere"]),
        ("ctl", ["--job_dir=nowhere"], ["status,add,remove"]),
        ("ctl", ["--job_dir=nowhere", "add", "0"], ["add 0", "at least 1"]),
        ("ctl", ["--job_dri=x", "status"], ["job_dri"]),
        ("ctl", ["--job_dir=nowhere", "revoke"], ["--slots"]),
        ("ctl", ["--job_dir=nowhere", "revoke", "--slots=0"], ["revoke 0", "at least 1"]),
        ("ctl", ["--job_dir=nowhere", "grant", "--slots=-1"], ["grant -1", "at least 1"]),
        ("ctl", ["--job_dir=nowhere", "grant", "--slots=x"], ["--slots", "'x'"]),
        ("ctl", ["--job_dir=nowhere", "revoke", "2"], ["unrecognized arguments: 2"]),
        ("ctl", ["--job_dir=nowhere", "revoke", "--slots=1", "--deadline_s=0"], ["deadline_s 0"]),
        ("ctl", ["--job_dir=nowhere", "grant", "--slots=1", "--deadline_s=9"], ["--deadline_s"]),
        ("ctl", ["--job_dir=nowhere", "remove", "1", "--host=a"], ["--host=a"]),
        ("ctl", ["--job_dir=nowhere", "revoke", "--slots=1", "--host=\udcff"], ["'\\udcff'"]),
        ("ctl", ["--job_dir=nowhere", "remove", "\udcff"], ["'\\udcff'", "UTF-8"]),
        ("ctl", ["--job_dir=nowhere", "revoke", "--slots=1"], ["nowhere"]),
        ("chaos", ["--random"], ["--job_dir is missing"]),
        ("chaos", ["--job_dir=nowhere"], ["--plan=FILE", "--random"]),
        ("chaos", ["--job_dir=nowhere", "--random", "--plan=x"], ["--plan=FILE", "--random"]),
        ("chaos", ["--job_dir=nowhere", "--random"], ["No running job", "nowhere"]),
        ("chaos", ["--job_dir=nowhere", "--random", "--faults=0"], ["--faults=0", "at least 1"]),
        ("chaos", ["--job_dir=nowhere", "--random", "--kinds=fire"], ["'fire'", "kill, terminate"]),
        ("chaos", ["--job_dir=nowhere", "--plan=no.json"], ["--plan=no.json", '"kind": "kill"']),
        (
            "chaos",
            ["--job_dir=nowhere", "--plan=__init__.py"],
            ["expected a Plan"],
        ),
        ("chaos", ["--job_dir=x", "--random", "--report=no/where.json"], ["--report=no/where"]),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else value,
)
def test_a_mistake_is_answered_with_one_clear_line_and_exit_code_2(
    module: str, arguments: list[str], words: list[str]
) -> None:
    result = call(module, *arguments)
    assert "Traceback" not in result.stderr, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


@pytest.mark.parametrize(
    ("command", "argument", "expected"),
    [
        ("add", "2", control.ChangeRequest(add=2)),
        ("remove", "1", control.ChangeRequest(remove=1)),
        ("remove", "w3", control.ChangeRequest(remove_worker_id="w3")),
    ],
)
def test_changes_are_parsed(command: str, argument: str, expected: control.ChangeRequest) -> None:
    assert control_job.change_request(command, argument) == expected


@pytest.mark.parametrize(
    ("command", "argument"),
    [("add", "0"), ("add", "w3"), ("add", "-1"), ("remove", "0"), ("remove", "-1"), ("add", "²")],
)
def test_a_change_that_makes_no_sense_is_refused(command: str, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{command} {argument} was given, expected"):
        control_job.change_request(command, argument)


def test_a_request_for_slots_is_made_of_the_flags() -> None:
    assert control_job.slots_request("grant", 2, "", None) == control.SlotsRequest(grant=2)
    assert control_job.slots_request("revoke", 1, "a", 30.0) == control.SlotsRequest(
        revoke=1, host="a", deadline_s=30.0
    )


def test_the_slots_of_several_hosts_are_shown_with_their_names() -> None:
    slots = [
        control.HostSlots(host=host, granted=granted, used=1)
        for host, granted in (("a", 2), ("b", 1))
    ]
    assert control_job.slots_text(slots) == "a: 2 granted, 1 used; b: 1 granted, 1 used"


def test_the_status_table_has_a_row_per_worker_in_columns() -> None:
    workers = tuple(
        control.WorkerStatus(
            worker_id=worker_id,
            phase="training",
            rank=rank,
            host="localhost",
            pid=4000,
            seniority=rank,
            training=2,
            step=7,
            heartbeat_age_s=age,
            cores=0.5,
            memory_bytes=memory,
        )
        for worker_id, rank, age, memory in (("w0", 0, 0.25, 512 * 2**20), ("w10", None, None, 0))
    )
    status = control.JobStatus(
        phase="changing",
        detail="w10 joins",
        training=2,
        round=3,
        step=7,
        target_workers=2,
        slots=(control.HostSlots(host="localhost", granted=2, used=3),),
        min_workers=1,
        max_workers=8,
        restarts_used=1,
        max_restarts=10,
        warnings=("the disk is full",),
        workers=workers,
    )
    assert control_job.status_table(status).splitlines() == [
        "changing (w10 joins)  training 2  round 3  step 7  slots 2 granted, 3 used  restarts 1/10",
        "warning: the disk is full",
        "WORKER  PHASE     RANK  HOST       PID   SENIORITY  STEP  CORES  MEMORY   HEARTBEAT",
        "w0      training  0     localhost  4000  0          7     0.50   512 MiB  0.2 s ago",
        "w10     training  -     localhost  4000  -          7     -      -        -",
    ]
