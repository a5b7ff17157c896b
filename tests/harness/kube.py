"""A Kubernetes on this machine: real etcd, API server, scheduler and controllers, and its nodes.

`scripts/kube_test_cluster` makes the programs. The nodes are hosts as in `hosts.py`. `kubelet.py`
runs their pods. Nothing of the cluster outlives the test process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from tests.harness import hosts as harness
from tests.harness.hosts import Hosts, bound_to, wait_until
from tests.harness.job import REPOSITORY
from tests.harness.kube_api import Api, ApiError, Json
from tests.harness.kubelet import Kubelet

if TYPE_CHECKING:
    from typing_extensions import Self

REQUIRED = "HVD_ELASTIC_TEST_KUBERNETES"
"""Set to "required" where tests must not be skipped because there is no Kubernetes."""
SCRIPT = REPOSITORY / "scripts" / "kube_test_cluster"
LOOPBACK = "127.0.0.1"
SERVICES = "10.96.0.0/24"
PORTS = range(20000, 32000)
"""The range of the ports used. The system gives these only to programs that ask for them."""
ADMIN_TOKEN = "admin-token"
START_S = 150.0
END_S = 30.0
CONTROLLERS = (
    *("deployment", "replicaset", "statefulset", "job", "endpoint", "namespace", "nodelifecycle"),
    *("garbagecollector", "podgc", "serviceaccount", "serviceaccount-token", "resourcequota"),
    *("persistentvolume-binder", "ttl-after-finished", "root-ca-cert-publisher", "disruption"),
)


def obstacle() -> str:
    """Returns what this machine lacks for an API server; empty if it can have one."""
    if not shutil.which("openssl"):
        return "a Kubernetes needs openssl, which this machine lacks"
    if not shutil.which("setpriv"):
        return "a Kubernetes needs setpriv, which this machine lacks: apt-get install util-linux"
    found = subprocess.run(
        [SCRIPT, "--check"], capture_output=True, text=True, timeout=END_S, check=False
    )
    return found.stderr.strip().removeprefix("[kubernetes] error: ") if found.returncode else ""


def need_api_server() -> None:
    """Skips a test where an API server is impossible, or fails it if one is required."""
    _need(obstacle())


def need_cluster() -> None:
    """Does the same for a whole cluster, whose nodes are hosts of `hosts.py`."""
    _need(obstacle() or harness.obstacle())


def _need(reason: str) -> None:
    if reason and os.environ.get(REQUIRED) == "required":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


class ControlPlane:
    """etcd, an API server with RBAC, a scheduler and controllers. Use it in a `with` block.

    Args:
      directory: directory for their data and logs.
      address: the address at which the API server listens.

    Attributes:
      admin: the API for an account that may do everything.
      authority: the file with the certificate of the API server.
      url: URL of the API server.
    """

    def __init__(self, directory: Path, address: str = LOOPBACK) -> None:
        self._directory = directory
        self._address = address
        self._programs = Path(
            subprocess.run(
                [SCRIPT, "--check"], capture_output=True, text=True, check=True
            ).stdout.strip()
        )
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd, peers, port = _free_ports(address, 3)
        self._peers = f"http://{address}:{peers}"
        self._port = port
        self.url = f"https://{address}:{port}"
        self.authority = directory / "certificates" / "apiserver.crt"
        self.admin: Api

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        key = self._directory / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", key, "2048"],
            check=True,
            capture_output=True,
            timeout=END_S,
        )
        tokens = self._directory / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f"{ADMIN_TOKEN},admin,1,system:masters\n")
        try:
            self._start_etcd()
            self.start_api_server()
            self.admin = self.api(ADMIN_TOKEN)
            self._start_others()
            wait_until(self._has_accounts, "there is a service account", START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait(END_S)
        with contextlib.suppress(AttributeError):
            self.admin.close()

    # --- what tests do to it -------------------------------------------------------------

    def api(self, token: str) -> Api:
        """Returns the API for the account of a token."""
        return Api(self.url, token, self.authority)

    def token_of(self, account: str, namespace: str = "default") -> str:
        """Returns a token of a service account, which may do what its Roles say."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.admin.request("POST", path, {"spec": {"expirationSeconds": 3600}})
        return str(answer["status"]["token"])

    def kubeconfig(self, token: str = ADMIN_TOKEN, namespace: str = "default") -> Path:
        """Writes a file with which the usual clients use a token; returns its path."""
        path = self._directory / f"kubeconfig-{abs(hash(token))}"
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content))
        return path

    def stop_api_server(self) -> None:
        """Ends the API server at once; etcd keeps all that it knows."""
        process = self._running.pop("kube-apiserver")
        process.kill()
        process.wait(END_S)

    def start_api_server(self) -> None:
        """Starts the API server, also again after a stop, and waits until it is ready."""
        key = self._directory / "accounts.key"
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://{self._address}:{self._etcd}",
            f"--cert-dir={self.authority.parent}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            f"--secure-port={self._port}",
            "--insecure-port=0",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            # As in all newer releases: tokens expire, and become invalid with their pods.
            "--feature-gates=BoundServiceAccountTokenVolume=true",
            f"--service-cluster-ip-range={SERVICES}",
            "--endpoint-reconciler-type=none",
            "--allow-privileged",
            "--profiling=false",
        )
        wait_until(self._is_ready, "the API server is ready", START_S)

    def compact(self) -> None:
        """Makes etcd forget all revisions before the present one.

        The API server remembers some of them until it is restarted. After that, a watch that
        continues from an older revision gets 410.
        """
        url = f"http://{self._address}:{self._etcd}/v3/kv"
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(f"{url}/range", json={"key": "AA=="}, timeout=END_S)
            revision = answer.json()["header"]["revision"]
            body = {"revision": revision, "physical": True}
            session.post(f"{url}/compaction", json=body, timeout=END_S).raise_for_status()

    # --- how it is made ------------------------------------------------------------------

    def _start_etcd(self) -> None:
        clients = f"http://{self._address}:{self._etcd}"
        self._start(
            "etcd",
            f"--data-dir={self._directory / 'data'}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={self._peers}",
            f"--initial-advertise-peer-urls={self._peers}",
            f"--initial-cluster=default={self._peers}",
        )

    def _start_others(self) -> None:
        common = (f"--kubeconfig={self.kubeconfig()}", "--leader-elect=false", "--port=0")
        self._start("kube-scheduler", *common, "--secure-port=0")
        self._start(
            "kube-controller-manager",
            *common,
            "--secure-port=0",
            f"--controllers={','.join(CONTROLLERS)}",
            f"--service-account-private-key-file={self._directory / 'accounts.key'}",
            f"--root-ca-file={self.authority}",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=30s",
            "--pvclaimbinder-sync-period=1s",
        )

    def _start(self, program: str, *arguments: str) -> None:
        with (self._directory / f"{program}.log").open("ab") as log:
            self._running[program] = subprocess.Popen(
                [*bound_to(os.getpid()), str(self._programs / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        for program, process in self._running.items():
            log = (self._directory / f"{program}.log").read_text(errors="replace")
            assert process.poll() is None, f"{program} has ended: {log[-2000:]}"
        if not self.authority.exists():
            return False
        api = self.api(ADMIN_TOKEN)
        with contextlib.suppress(requests.RequestException, ApiError):
            return bool(api.request("GET", "/api/v1/namespaces/default"))
        api.close()
        return False

    def _has_accounts(self) -> bool:
        found = self.admin.find("ServiceAccount", "default", "default")
        return bool(found and found.get("secrets"))


def _free_ports(address: str, count: int) -> list[int]:
    """Returns ports that no process uses now."""
    found: list[int] = []
    for port in random.Random().sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            found.append(port)
        if len(found) == count:
            break
    return found


class Cluster:
    """A Kubernetes with nodes "host1", "host2" and so on. Use it in a `with` block.

    Pods reach a Service by its name, on the ports of its pods: there is no kube-proxy. The kubelet
    keeps the names of Services, with the address of one of their pods, in the nodes' `/etc/hosts`.

    Args:
      environment: variables that the pods' image sets, beside the path of the interpreter.
      nodes: number of nodes.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, nodes: int = 3
    ) -> None:
        self._directory = directory
        self._environment = environment or {}
        self._stack = contextlib.ExitStack()
        self.hosts = Hosts(directory / "hosts", ["eth0"] * nodes)
        self.control: ControlPlane
        self.kubelet: Kubelet

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.hosts)
            directory = self._directory / "kubernetes"
            self.control = stack.enter_context(ControlPlane(directory, self.hosts.launcher))
            self.kubelet = stack.enter_context(
                Kubelet(
                    self.control.api(ADMIN_TOKEN),
                    self.hosts,
                    self._directory,
                    {
                        **self._environment,
                        "KUBERNETES_SERVICE_HOST": self.hosts.launcher,
                        "KUBERNETES_SERVICE_PORT": self.control.url.rpartition(":")[2],
                    },
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def admin(self) -> Api:
        """The API for an account that may do everything."""
        return self.control.admin

    def pods(self, selector: str = "", namespace: str = "default") -> list[Json]:
        """Returns all pods with these labels."""
        return self.admin.all("Pod", namespace, selector)

    def wait_for_pods(self, selector: str, count: int, phase: str = "Running") -> list[Json]:
        """Waits until exactly `count` pods exist, all in this phase and none being deleted."""
        found: list[Json] = []

        def there_are() -> bool:
            found[:] = self.pods(selector)
            deleted = any("deletionTimestamp" in pod["metadata"] for pod in found)
            phases = [pod["status"]["phase"] for pod in found]
            return not deleted and phases == [phase] * count

        try:
            wait_until(there_are, f"{count} pods of {selector} are {phase}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None
        return found

    def report(self) -> str:
        """Returns everything that helps to understand a failure."""
        states = [f"{pod['metadata']['name']}: {json.dumps(pod['status'])}" for pod in self.pods()]
        logs = sorted(self.kubelet.logs.glob("*.log"))
        tails = [f"--- {p.name}\n" + p.read_text(errors="replace")[-3000:] for p in logs]
        return "\n".join([*states, *tails])
