"""What is said about flags of hosts that make no sense, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_keras.cli.flags.host_flags import HostsRequest
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.discovery import FixedHosts
from hvd_elastic_keras.launchers.ssh import SshSettings
from tests.harness.job import FAULT_MODEL


def refused(tmp_path: Path, *flags: str) -> str:
    """What `run` says; it must not begin a job."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "hvd_elastic_keras.run", f"--model={FAULT_MODEL}"),
            *(f"--job_dir={tmp_path / 'job'}", *flags),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr
    assert not (tmp_path / "job").exists()
    return ended.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--hosts=a:x"], "--hosts has 'a:x', expected a host with its number of workers"),
        (["--hosts=a", "--hostfile=b"], "--hosts and --hostfile were given, expected one of them"),
        (["--hosts=a", "--num_workers=3"], "--num_workers was given with --hosts, which says how"),
        (["--hostfile=no/such"], "cannot be read: [Errno 2] No such file"),
        (["--host_discovery_script=exit 3"], "failed with exit code 3"),
        (["--hosts=localhost", "--batch=per_worker"], "Say with --batch_size_per_worker what each"),
        (["--ssh_python=x"], "--ssh_python was given without --hosts"),
        (
            ["--hosts=no-such-host.invalid:2"],
            "no-such-host.invalid cannot be resolved",
        ),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    tmp_path: Path, flags: list[str], expected: str
) -> None:
    assert expected in refused(tmp_path, *flags)


def test_a_name_that_only_ssh_knows_leads_to_the_address_of_this_host(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host alias\n  HostName 127.0.0.1\nHost wrong\n  HostName no-such-host.invalid\n"
        "Host behind\n  HostName no-such-host.invalid\n  ProxyJump gate\n"
    )

    def bind(*hosts: str) -> str:
        ssh = SshSettings(("ssh", "-F", str(config)), sys.executable, "/")
        slots = dict.fromkeys(hosts, 1)
        return HostsRequest(FixedHosts(slots), slots, ssh).bind()

    assert bind("me@alias") == "127.0.0.1"
    assert bind("wrong", "alias") == "127.0.0.1"
    with pytest.raises(ConfigurationError, match=r"wrong \(no-such-host\.invalid in ssh's config"):
        bind("wrong")
    with pytest.raises(ConfigurationError, match="can reach is not known\\. Give it with --bind"):
        bind("behind")
