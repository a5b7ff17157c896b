"""What is run for a worker on another host, and what people are told if none comes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import msgspec
import pytest

from hvd_elastic_keras.launchers import ssh
from hvd_elastic_keras.launchers.ssh import RemoteStart, SshSettings, failure

SETTINGS = SshSettings(
    ("ssh", "-F", "my config"), "python3", "/my code", "/my code:/lib", {"A": "b"}
)


def test_options_of_the_user_come_first_and_a_host_cannot_be_an_option() -> None:
    command = SETTINGS.command("node1")
    assert command[:3] == ["ssh", "-F", "my config"]
    assert command[-3:-1] == ["--", "node1"]
    assert "BatchMode=yes" in command
    assert "ServerAliveInterval=5" in command


def test_the_shell_of_the_host_understands_it_whatever_the_names(
    tmp_path: os.PathLike[str],
) -> None:
    directory = os.path.join(tmp_path, "it's; a $HOME")
    os.mkdir(directory)
    settings = SshSettings(("ssh",), "/bin/echo", directory, "/a b:$c")
    ran = subprocess.run(
        ["/bin/sh", "-c", settings.remote_command.replace("/bin/echo", "/bin/sh -c 'pwd; env' #")],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = ran.stdout.splitlines()
    assert lines[0] == directory
    assert "PYTHONPATH=/a b:$c" in lines


def test_neither_token_nor_variables_stand_in_a_command_line() -> None:
    settings = SshSettings(("ssh",), "python3", "/", variables={"KEY": "s3cret"})
    assert "s3cret" not in shlex.join(settings.command("node1"))
    assert "s3cret" not in repr(settings)


ECHO = """
import os, runpy, sys
def note(path, command, variables):
    print(command[1:], os.read(0, 100).decode(), variables["A"])

os.execve = note
runpy.run_module("hvd_elastic_keras.launchers.ssh_end", run_name="__main__")
"""


def test_the_other_end_becomes_a_joiner_that_reads_the_token() -> None:
    start = RemoteStart(["--join=h:1", "--token_file=-"], "t0ken", {"A": "b c"})
    ended = subprocess.run(
        [sys.executable, "-c", ECHO],
        input=msgspec.json.encode(start) + b"\n",
        capture_output=True,
        check=True,
    )
    expected = "['-m', 'hvd_elastic_keras.run', '--join=h:1', '--token_file=-'] t0ken b c\n"
    assert ended.stdout.decode() == expected


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (255, "Host key verification failed.", "its host key is not known"),
        (255, "me@node1: Permission denied (publickey).", "set up a key"),
        (255, "ssh: Could not resolve hostname node1", "there is no such host"),
        (255, "connect to host node1 port 22: Connection refused", "ssh does not reach it; try"),
        (1, "sh: 1: cd: can't cd to /my code", "there is no directory /my code"),
        (1, "bash: line 1: cd: /my code: No such file", "there is no directory /my code"),
        (127, "env: 'python3': No such file or directory", "there is no python3 on it"),
        (1, "Error while finding module: No module named 'x'", "lacks this package"),
        (93, "This host has other versions than the job", "ended before it joined"),
        (None, "", "ended before it joined"),
    ],
)
def test_a_host_without_a_worker_is_told_with_what_was_run_and_what_it_said(
    code: int | None, said: str, expected: str
) -> None:
    told = failure(SETTINGS, "node1", code, f"first\nsecond\n\nthird\n{said}\n")
    assert told.startswith(f"node1: {'' if code else 'the worker has '}")
    assert expected in told
    assert "ran ssh -F 'my config' node1" in told
    assert f"it said: second / third / {said}" in told or not said
    assert ssh.SAID_LINES == 3


def test_a_host_that_said_nothing_is_told_by_its_exit_code() -> None:
    assert failure(SETTINGS, "node1", 7, "\n").endswith("it ended with exit code 7)")
