"""Hosts of a job: network namespaces of this machine, each with own process ids and an sshd.

The launcher's host is this machine itself, with an address on the same bridge. All hosts see the
same files. Several test processes may have hosts at a time: each takes a free subnet, and first
removes the hosts that killed test processes have left.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from typing_extensions import Self

REQUIRED = "HVD_ELASTIC_TEST_HOSTS"
"""Set to "required" where tests must not be skipped because a machine allows no hosts."""
PROGRAMS = {
    "ip": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
"""The programs that make the hosts, and the Debian package of each."""
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
LOCKS = Path("/run/hvd_elastic_test_hosts")
MOST_SUBNETS = 200
LAUNCHER = 254
"""The last number of the address of the launcher's host."""
SSH_PORT = 22
LIMIT_S = 60.0
POLL_S = 0.01


def obstacle() -> str:
    """Returns why this machine cannot have hosts; empty if it can."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        found = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    if any(not int(found, 16) >> capability & 1 for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN)):
        return "hosts are network namespaces, which only root with CAP_NET_ADMIN may make"
    missing = {p: name for p, name in PROGRAMS.items() if not shutil.which(p, path=SEARCHED)}
    if missing:
        return (
            f"hosts need {', '.join(missing)}, which this machine lacks: "
            f"apt-get install {' '.join(dict.fromkeys(missing.values()))}"
        )
    return _refused()


@functools.lru_cache(maxsize=1)
def _refused() -> str:
    """Tries to make a host's parts; returns the error, or "" if this machine allows all of them."""
    name = f"hvd{os.getpid()}"
    parts = (
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name eth0 netns {name}",
        f"ip link add {name}b type bridge",
        "unshare --uts --ipc --pid --fork --mount-proc true",
    )
    try:
        for part in parts:
            words = part.split()
            command = [_found(words[0]), *words[1:]]
            made = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            if made.returncode:
                return f"this machine allows no hosts: {part}: {made.stderr.strip()}"
        return ""
    finally:
        for left in (f"netns del {name}", f"link del {name}b"):
            subprocess.run(
                [_found("ip"), *left.split()], capture_output=True, timeout=LIMIT_S, check=False
            )


def need_hosts() -> None:
    """Skips a test where hosts are impossible, or fails it if hosts are required."""
    reason = obstacle()
    if reason and os.environ.get(REQUIRED) == "required":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


class Hosts:
    """Some hosts, up and reachable by ssh. Use them in a `with` block: nothing outlives it.

    Args:
      directory: for keys, settings and logs of the hosts.
      interfaces: the name of the network interface of each host; its length is the number of hosts.
      ipv4: whether the hosts have IPv4 addresses in addition to IPv6 ones.

    Attributes:
      names: "host1", "host2" and so on.
      launcher: the address at which the hosts reach this machine.
    """

    def __init__(
        self, directory: Path, interfaces: Sequence[str] = ("eth0",) * 3, ipv4: bool = True
    ) -> None:
        self.names = [f"host{n}" for n in range(1, len(interfaces) + 1)]
        self._directory = directory
        self._ipv4 = ipv4
        self._interfaces = dict(zip(self.names, interfaces, strict=True))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._lock: IO[str] | None = None
        self._subnet = 0

    @property
    def launcher(self) -> str:
        """The address at which the hosts reach this machine."""
        return self._address_of(LAUNCHER)

    @property
    def ssh_config(self) -> Path:
        """The settings with which the OpenSSH client reaches the hosts by their names."""
        return self._directory / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """Public keys of the hosts."""
        return self._directory / "known_hosts"

    def address(self, host: str) -> str:
        """Returns the address of a host, of IPv4 if it has one."""
        return self._address_of(self.names.index(host) + 1)

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._subnet, self._lock = _take_subnet()
        try:
            self._make_network()
            self._make_keys()
            for host in self.names:
                self._start_daemon(host)
            for host in self.names:
                self._wait_until_reachable(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._subnet)
        for daemon in self._daemons.values():
            daemon.wait(LIMIT_S)
        if self._lock:
            self._lock.close()

    # --- what tests do to hosts ----------------------------------------------------------

    def cut(self, host: str) -> None:
        """Silently drops everything sent to or from a host."""
        _ip("link", "set", self._outer_end(host), "down")

    def heal(self, host: str) -> None:
        """Ends a cut."""
        _ip("link", "set", self._outer_end(host), "up")

    def power_off(self, host: str) -> None:
        """Ends all processes of a host at once; no other host is told."""
        self.cut(host)
        _kill_all(self._namespace(host))
        self._daemons.pop(host).wait(LIMIT_S)

    def boot(self, host: str) -> None:
        """Starts a host that was powered off."""
        self.heal(host)
        self._start_daemon(host)
        self._wait_until_reachable(host)

    def run(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a command on a host, as if typed there. `options` go to `Popen`."""
        inside = ["nsenter", "--target", str(self._init(host)), "-m", "-n", "-u", "-i", "-p"]
        directory = options.pop("cwd", Path.cwd())
        return subprocess.Popen([*inside, "env", f"--chdir={directory}", *command], **options)

    def call(self, host: str, *command: str) -> str:
        """Returns the output of a command on a host; the command must succeed."""
        process = self.run(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = process.communicate(timeout=LIMIT_S)[0].decode(errors="replace")
        assert process.returncode == 0, f"{command} on {host}: {output}"
        return str(output)

    def signal(self, process: subprocess.Popen[Any], number: signal.Signals) -> None:
        """Sends a signal to a command that `run` has started."""
        (inside,) = psutil.Process(process.pid).children()
        inside.send_signal(number)

    def pids(self, host: str) -> list[int]:
        """Returns the ids on this machine of the host's processes, except its first one."""
        return [pid for pid in _pids(self._namespace(host)) if number_inside(pid) > 1]

    def exchange_cable(self, host: str, connect: Callable[[str, str, str], None]) -> None:
        """Replaces a host's cable.

        Args:
          connect: makes the new cable. It gets the name of the cable's end here, the host's
            namespace, and the name of the end there.
        """
        outer, namespace, inner = (
            self._outer_end(host),
            self._namespace(host),
            self._interfaces[host],
        )
        _ip("link", "del", outer)
        connect(outer, namespace, inner)
        self._plug_in(host)

    def add_bridge(self, host: str, name: str, address: str) -> None:
        """Gives a host a network that no other host can reach, such as one for containers."""
        namespace = self._namespace(host)
        _ip("-n", namespace, "link", "add", name, "type", "bridge")
        _ip("-n", namespace, "addr", "add", address, "dev", name)
        _ip("-n", namespace, "link", "set", name, "up")

    def name_loopback(self, host: str) -> None:
        """Maps the name of a host to a loopback address, as Debian does."""
        self.call(host, "sh", "-c", f"echo 127.0.1.1 {host} >/etc/hosts")

    def know(self, host: str, names: Mapping[str, str]) -> None:
        """Lets a host resolve these additional names, and none that it was told before."""
        lines = [f"{address} {name}" for name, address in sorted(names.items())]
        content = "\n".join([self._names_and_addresses(), *lines, ""]).encode()
        path = _settings(self._namespace(host)) / "hosts"
        if path.read_bytes() != content:
            # Write in place and in one go: the host has this very file, and may read it at any
            # time.
            with path.open("r+b", buffering=0) as file:
                file.write(content)
                file.truncate()

    def hide(self, host: str, directory: Path) -> None:
        """Replaces a directory by an empty one, on this host only, until it is off."""
        self.call(host, "mount", "-t", "tmpfs", "none", str(directory))

    # --- how they are made ---------------------------------------------------------------

    def _address_of(self, number: int) -> str:
        address, _, _ = self._networks_of(number)[0].partition("/")
        return address

    def _networks_of(self, number: int) -> list[str]:
        """Returns the addresses, each with the prefix length of its network."""
        of_ipv4 = [f"10.77.{self._subnet}.{number}/24"] if self._ipv4 else []
        return [*of_ipv4, f"fd77:{self._subnet}::{number}/64"]

    def _namespace(self, host: str) -> str:
        return f"{_prefix(self._subnet)}{host}"

    def _outer_end(self, host: str) -> str:
        """Returns the interface of this machine at the other end of a host's cable."""
        return f"{_prefix(self._subnet)}{self.names.index(host) + 1}"

    def _make_network(self) -> None:
        bridge = _bridge(self._subnet)
        _ip("link", "add", bridge, "type", "bridge")
        for address in self._networks_of(LAUNCHER):
            _ip("addr", "add", address, "dev", bridge, *_without_delay(address))
        _ip("link", "set", bridge, "up")
        for host in self.names:
            self._make_host(host)

    def _make_host(self, host: str) -> None:
        namespace, outer = self._namespace(host), self._outer_end(host)
        inner = self._interfaces[host]
        settings = _settings(namespace)
        settings.mkdir(parents=True)
        (settings / "hosts").write_text(self._names_and_addresses())
        _ip("netns", "add", namespace)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        self._plug_in(host)

    def _plug_in(self, host: str) -> None:
        """Brings up both ends of a host's cable, and gives the host its addresses."""
        namespace, inner = self._namespace(host), self._interfaces[host]
        _ip("link", "set", self._outer_end(host), "master", _bridge(self._subnet), "up")
        number = self.names.index(host) + 1
        for address in self._networks_of(number):
            _ip("-n", namespace, "addr", "add", address, "dev", inner, *_without_delay(address))
        _ip("-n", namespace, "link", "set", inner, "up")

    def _names_and_addresses(self) -> str:
        lines = ["127.0.0.1 localhost", f"{self.launcher} launcher"]
        return "\n".join([*lines, *(f"{self.address(h)} {h}" for h in self.names), ""])

    def _make_keys(self) -> None:
        key = self._directory / "key"
        _make_key(key)
        known = []
        config = []
        for host in self.names:
            host_key = self._directory / f"{host}.key"
            _make_key(host_key)
            kind, public, *_ = host_key.with_suffix(".key.pub").read_text().split()
            known.append(f"{self.address(host)},{host} {kind} {public}\n")
            config.append(
                f"Host {host} {self.address(host)}\n"
                f"  HostName {self.address(host)}\n"
                f"  HostKeyAlias {host}\n"
                f"  IdentityFile {key}\n"
                f"  UserKnownHostsFile {self.known_hosts}\n"
                "  StrictHostKeyChecking yes\n"
            )
        self.known_hosts.write_text("".join(known))
        self.ssh_config.write_text("".join(config))

    def _start_daemon(self, host: str) -> None:
        config = self._directory / f"{host}.sshd_config"
        config.write_text(
            f"Port {SSH_PORT}\n"
            f"HostKey {self._directory / f'{host}.key'}\n"
            f"AuthorizedKeysFile {self._directory / 'key.pub'}\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        sshd = f"hostname {host} && exec {_found('sshd')} -D -e -f {config}"
        unshare = "unshare --uts --ipc --pid --fork --kill-child --mount-proc"
        with (self._directory / f"{host}.log").open("ab") as log:
            self._daemons[host] = subprocess.Popen(
                # The daemon ends with this process, and all processes of the host end with the
                # daemon.
                [
                    *bound_to(os.getpid()),
                    *(_found("ip"), "netns", "exec", self._namespace(host)),
                    *(*unshare.split(), "sh", "-c", sshd),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _init(self, host: str) -> int:
        """Returns the host's first process: when it ends, all others of the host end."""
        (init,) = psutil.Process(self._daemons[host].pid).children()
        return int(init.pid)

    def _wait_until_reachable(self, host: str) -> None:
        def connects() -> bool:
            at = (self.address(host), SSH_PORT)
            with contextlib.suppress(OSError), socket.create_connection(at, LIMIT_S):
                return True
            log = (self._directory / f"{host}.log").read_text()
            assert self._daemons[host].poll() is None, f"{host} does not boot: {log}"
            return False

        wait_until(connects, f"{host} answers")


@functools.cache
def _found(program: str) -> str:
    return shutil.which(program, path=SEARCHED) or program


def _call(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
    return result.stdout


def _ip(*arguments: str) -> str:
    return _call(_found("ip"), *arguments)


def _make_key(path: Path) -> None:
    _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))


def _without_delay(address: str) -> tuple[str, ...]:
    """Makes IPv6 addresses usable at once: no other host can have them."""
    return ("nodad",) if ":" in address else ()


def bound_to(parent: int) -> tuple[str, ...]:
    """Returns a prefix for a command that makes it end with its parent.

    The command does not start if the parent has already ended when the kernel is asked for this.
    """
    asked = ("setpriv", "--pdeathsig", "KILL")
    return (*asked, "sh", "-c", f'[ "$PPID" = {parent} ] && exec "$@"', "sh")


def wait_until(look: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Waits until `look` returns True."""
    deadline = time.monotonic() + limit_s
    while not look():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(POLL_S)


# --- subnets -----------------------------------------------------------------------------


def _prefix(subnet: int) -> str:
    """Returns the prefix of the names of all namespaces and interfaces of a subnet."""
    return f"hvdt{subnet}-"


def _bridge(subnet: int) -> str:
    return f"{_prefix(subnet)}br"


def _settings(namespace: str) -> Path:
    """Returns the directory in which `ip netns exec` finds a host's own files."""
    return Path("/etc/netns", namespace)


def _take_subnet() -> tuple[int, IO[str]]:
    """Takes a subnet, which is ours as long as the file is open; removes abandoned hosts."""
    LOCKS.mkdir(exist_ok=True)
    free = [(number, lock) for number in range(MOST_SUBNETS) if (lock := _locked(number))]
    for number, lock in reversed(free):
        _remove(number)
        if (number, lock) != free[0]:
            lock.close()
    assert free, f"all {MOST_SUBNETS} subnets are taken"
    return free[0]


def _locked(number: int) -> IO[str] | None:
    """Returns the file whose lock owns a subnet; None if another process has the lock."""
    lock = (LOCKS / str(number)).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _remove(subnet: int) -> None:
    """Removes all hosts of a subnet."""
    prefix = _prefix(subnet)
    for path in Path("/run/netns").glob(f"{prefix}*"):
        _kill_all(path.name)
        _ip("netns", "del", path.name)
    for settings in Path("/etc/netns").glob(f"{prefix}*"):
        shutil.rmtree(settings)
    for interface in Path("/sys/class/net").glob(f"{prefix}*"):
        # Deleting a namespace deletes its cable too, maybe at this moment.
        with contextlib.suppress(AssertionError):
            _ip("link", "del", interface.name)


def _pids(namespace: str) -> list[int]:
    return [int(pid) for pid in _ip("netns", "pids", namespace).split()]


def number_inside(pid: int) -> int:
    """Returns a process's id in its host's pid namespace; 0 if it is not in one, or is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            numbers = next(line for line in file if line.startswith("NSpid:")).split()[1:]
    except (OSError, StopIteration):
        return 0
    return int(numbers[-1]) if len(numbers) > 1 else 0


def _kill_all(namespace: str) -> None:
    def killed() -> bool:
        pids = _pids(namespace)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(killed, f"{namespace} is off")
