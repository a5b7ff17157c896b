"""The launcher of pods against a real API server. The test reports what a node would report."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hvd_elastic_keras.cli.flags.kubernetes_flags import PodsRequest, check_cluster
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers import kubernetes as module
from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.launchers.kubernetes import KubernetesLauncher, Told
from hvd_elastic_keras.launchers.kubernetes_api import ApiError, Cluster, put_secret
from hvd_elastic_keras.launchers.kubernetes_pod import PodSettings, manifest
from tests.harness import kube, kube_api
from tests.harness.hosts import wait_until
from tests.harness.job import LIMIT_S, POLL_S, REPOSITORY
from tests.harness.kube import ADMIN_TOKEN, ControlPlane
from tests.harness.kube_api import Json, path_of

NAMESPACE = "default"
RBAC = REPOSITORY / "hvd_elastic_keras" / "deploy" / "kubernetes" / "rbac.yaml"


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    kube.need_api_server()
    pytest.importorskip("kubernetes")
    with ControlPlane(tmp_path_factory.mktemp("control") / "plane") as made:
        yield made


def cluster_of(control: ControlPlane, token: str = ADMIN_TOKEN) -> Cluster:
    return Cluster(configuration_of(control, token), NAMESPACE)


def configuration_of(control: ControlPlane, token: str) -> Any:
    kubernetes = pytest.importorskip("kubernetes")
    configuration = kubernetes.client.Configuration()
    file = str(control.kubeconfig(token))
    kubernetes.config.load_kube_config(file, client_configuration=configuration)
    return configuration


@dataclasses.dataclass
class Pods:
    """A launcher, with everything that it has reported."""

    control: ControlPlane
    settings: PodSettings
    directory: Path
    cluster: Cluster
    exits: dict[str, WorkerExit] = dataclasses.field(default_factory=dict)
    pending: list[tuple[str, str | None]] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    leaving: dict[str, str] = dataclasses.field(default_factory=dict)
    people: list[str] = dataclasses.field(default_factory=list)

    @contextlib.asynccontextmanager
    async def launcher(self) -> AsyncIterator[KubernetesLauncher]:
        """Yields a launcher that follows the pods.

        At the end of the block, it ends as if its process were killed.
        """
        made = KubernetesLauncher(
            self.cluster,
            self.settings,
            arguments=lambda worker_id: [f"--worker_id={worker_id}"],
            owner=put_secret(self.cluster, self.settings, "token\n", None),
            log_dir=self.directory / "logs",
            told=Told(
                pending=lambda worker_id, why: self.pending.append((worker_id, why)),
                failed=self.failed.__setitem__,
                leaving=self.leaving.__setitem__,
                people=self.people.append,
            ),
        )
        made.start()
        try:
            yield made
        finally:
            made.abandon()

    def launch(self, launcher: KubernetesLauncher, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            launcher.launch(worker_id, "kubernetes", self._note_exit)

    def adopt(self, launcher: KubernetesLauncher, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            launcher.adopt(worker_id, self._note_exit)

    def _note_exit(self, exit: WorkerExit) -> None:
        assert exit.worker_id not in self.exits
        self.exits[exit.worker_id] = exit

    def why(self, worker_id: str) -> list[str | None]:
        """Returns the reasons for which a worker waits, in order."""
        return [why for told_of, why in self.pending if told_of == worker_id]

    # --- the cluster ---------------------------------------------------------------------

    def find(self, worker_id: str) -> Json | None:
        return self.control.admin.find("Pod", NAMESPACE, self.settings.pod_name(worker_id))

    def all(self) -> set[str]:
        found = self.control.admin.all("Pod", NAMESPACE, self.settings.selector)
        return {pod["metadata"]["name"] for pod in found}

    def delete(self, worker_id: str, grace_s: int | None = None) -> None:
        name = self.settings.pod_name(worker_id)
        self.control.admin.delete("Pod", NAMESPACE, name, grace_s)

    def tell(self, worker_id: str, **status: Any) -> None:
        """Reports a pod's status, as its node would."""
        name = self.settings.pod_name(worker_id)
        self.control.admin.patch("Pod", NAMESPACE, name, {"status": status}, "status")

    async def run(self, worker_id: str) -> None:
        """Lets a node take the pod and run it."""
        await until(lambda: self.find(worker_id) is not None, "the pod is there")
        name = self.settings.pod_name(worker_id)
        target = {"apiVersion": "v1", "kind": "Node", "name": "node7"}
        body = {"kind": "Binding", "metadata": {"name": name}, "target": target}
        self.control.admin.request("POST", path_of("Pod", NAMESPACE, name, "binding"), body)
        ready = {"type": "Ready", "status": "True"}
        self.tell(worker_id, phase="Running", conditions=[ready], **container(running={}))
        await until(lambda: (worker_id, None) in self.pending, "it is known to run")

    async def exit_of(self, worker_id: str) -> WorkerExit:
        await until(lambda: worker_id in self.exits, f"{worker_id} has ended")
        return self.exits[worker_id]


def container(**state: Any) -> Json:
    status = {"name": "worker", "image": "any", "imageID": "", "ready": True, "restartCount": 0}
    return {"containerStatuses": [{**status, "state": state}]}


def ended(code: int, reason: str = "Error") -> Json:
    return container(terminated={"exitCode": code, "reason": reason})


async def until(look: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while not look():
        assert asyncio.get_running_loop().time() < deadline, f"never: {what}"
        await asyncio.sleep(POLL_S)


@pytest.fixture
def pods(control: ControlPlane, tmp_path: Path) -> Iterator[Pods]:
    job_id = uuid.uuid4().hex
    settings = PodSettings(f"job-{job_id[:8]}", job_id, "any", NAMESPACE, grace_period_s=30)
    made = Pods(control, settings, tmp_path, cluster_of(control))
    yield made
    for name in made.all():
        try:
            control.admin.delete("Pod", NAMESPACE, name, 0)
        except kube_api.ApiError as error:
            if error.status != 404:  # the launcher was about to delete it
                raise


def test_a_pod_that_no_node_takes_waits_with_a_reason_until_one_does(pods: Pods) -> None:
    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0")
            await until(lambda: len(pods.pending) == 2, "why it waits is told")
            assert pods.pending[0] == ("w0", "")
            assert str(pods.pending[1][1]).startswith("no node takes it: ")
            await pods.run("w0")
            assert pods.pending[-1] == ("w0", None)
            assert launcher.running() == ["w0"]

    asyncio.run(story())
    assert not pods.exits
    assert (pods.directory / "logs" / "w0.log").exists()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ended(0, "Completed"), (0, "", False)),
        (ended(137, "OOMKilled"), (-9, "ran out of memory (OOMKilled)", False)),
        (ended(75), (75, "left: it was asked to", True)),
        (
            {"reason": "Evicted", "message": "The node was low on memory."},
            (None, "was evicted by its node node7 (The node was low on memory)", True),
        ),
    ],
)
def test_the_end_of_a_pod_is_told_once(
    pods: Pods, status: Json, expected: tuple[int | None, str, bool]
) -> None:
    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0")
            await pods.run("w0")
            pods.tell("w0", phase="Succeeded" if expected[0] == 0 else "Failed", **status)
            exit = await pods.exit_of("w0")
            assert (exit.return_code, exit.reason, exit.taken) == expected
            assert launcher.running() == []
            if exit.return_code == -9:
                assert pods.find("w0"), "people may want to see its log"
            else:
                await until(lambda: pods.find("w0") is None, "the pod is gone")

    asyncio.run(story())


def test_pods_that_somebody_deletes_are_taken_with_grace_and_without(pods: Pods) -> None:
    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0", "w1")
            await pods.run("w0")
            await pods.run("w1")
            pods.delete("w0", grace_s=0)
            pods.delete("w1")
            hard = await pods.exit_of("w0")
            assert (hard.return_code, hard.taken) == (None, True)
            assert hard.reason == "is gone: somebody has deleted its pod"
            await until(lambda: "w1" in pods.leaving, "w1 hears that it has to leave")
            assert pods.leaving["w1"] == "somebody has deleted its pod"
            assert launcher.running() == ["w1"], "it may finish its step"
            pods.tell("w1", phase="Failed", **ended(75))
            soft = await pods.exit_of("w1")
            assert (soft.return_code, soft.taken) == (75, True)

    asyncio.run(story())


def test_a_pod_whose_node_never_confirms_its_end_is_lost_with_the_node(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOST_AFTER_S", 0.5)

    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0")
            await pods.run("w0")
            launcher.kill("w0")
            exit = await pods.exit_of("w0")
            assert exit.taken
            assert exit.reason == "is lost with its node node7, which does not answer"
            await until(lambda: pods.find("w0") is None, "it is removed by force")

    asyncio.run(story())


def test_a_worker_that_nobody_wants_any_more_ends_wherever_its_pod_is(pods: Pods) -> None:
    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0", "w1")
            launcher.kill("w0")
            await until(lambda: pods.find("w1") is not None, "the pod is there")
            launcher.kill("w1")
            for worker_id in ("w0", "w1"):
                exit = await pods.exit_of(worker_id)
                assert (exit.reason, exit.taken) == ("", False)
            await until(lambda: not pods.all(), "both are gone")

    asyncio.run(story())


class Forgetful(Cluster):
    """After the API server was away, its first watch continues from a version long before that."""

    was_away = False
    refused: tuple[int, ...] = ()

    def watch_pods(self, selector: str, version: str, limit_s: int) -> Iterator[tuple[str, Json]]:
        is_late, self.was_away = self.was_away, False
        try:
            yield from super().watch_pods(selector, "1" if is_late else version, limit_s)
        except ApiError as error:
            if is_late:
                self.refused = (*self.refused, error.status)
            raise


def test_an_api_server_that_is_away_and_forgets_what_was_delays_new_pods_and_nothing_else(
    pods: Pods,
) -> None:
    pods.cluster = cluster = Forgetful(configuration_of(pods.control, ADMIN_TOKEN), NAMESPACE)

    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0")
            await pods.run("w0")
            uid = (pods.find("w0") or {})["metadata"]["uid"]
            pods.control.stop_api_server()
            pods.launch(launcher, "w1")
            await until(lambda: len(pods.people) == 1, "people hear of it")
            await until(lambda: len(pods.why("w1")) > 1, "the new worker waits")
            assert str(pods.why("w1")[1]).startswith("its pod could not be created: the API server")
            assert not pods.exits
            pods.control.compact()
            cluster.was_away = True
            # In this thread: the server ends with the thread that starts it.
            pods.control.start_api_server()
            await until(lambda: len(pods.people) == 2, "people hear of its return")
            await until(lambda: pods.find("w1") is not None, "the new pod is there")
            assert (pods.find("w0") or {})["metadata"]["uid"] == uid
            await until(lambda: bool(cluster.refused), "the watch is refused")
            pods.tell("w0", phase="Failed", **ended(1))
            assert (await pods.exit_of("w0")).return_code == 1

    asyncio.run(story())
    assert "does not answer" in pods.people[0]
    assert pods.people[0].endswith("training goes on")
    assert pods.people[1] == "the API server answers again"
    assert cluster.refused == (410,)


def test_a_pod_that_exists_already_is_adopted_if_it_is_the_same_workers(pods: Pods) -> None:
    ours = manifest(pods.settings, "w0", [], None)
    foreign = manifest(dataclasses.replace(pods.settings, job_id="other"), "w1", [], None)
    uid = pods.control.admin.create(ours)["metadata"]["uid"]
    pods.control.admin.create(foreign)

    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0", "w1")
            await until(lambda: "w1" in pods.failed, "the other pod is in the way")
            await pods.run("w0")
            assert launcher.running() == ["w0"]

    asyncio.run(story())
    assert (pods.find("w0") or {})["metadata"]["uid"] == uid
    name = pods.settings.pod_name("w1")
    assert pods.failed["w1"].startswith(f"there is a pod {name} in the namespace default that is")
    pods.control.admin.delete("Pod", NAMESPACE, name, 0)


def test_the_next_launcher_takes_over_what_it_knows_and_ends_what_it_does_not(pods: Pods) -> None:
    async def first() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0", "w1", "w2")
            await until(lambda: len(pods.all()) == 3, "they are there")
            await pods.run("w0")

    async def second() -> None:
        async with pods.launcher() as launcher:
            pods.adopt(launcher, "w0", "w1", "w3")
            gone = await pods.exit_of("w3")
            assert (gone.return_code, gone.taken) == (None, True)
            await until(lambda: pods.find("w2") is None, "nobody has asked for w2 any more")
            await until(lambda: ("w0", None) in pods.pending, "w0 runs")
            assert sorted(launcher.running()) == ["w0", "w1"]

    asyncio.run(first())
    uids = [(pods.find(w) or {})["metadata"]["uid"] for w in ("w0", "w1")]
    pods.pending.clear()
    asyncio.run(second())
    assert [(pods.find(w) or {})["metadata"]["uid"] for w in ("w0", "w1")] == uids


def test_a_quota_lets_a_pod_wait_and_says_so(pods: Pods) -> None:
    there = len(pods.control.admin.all("Pod", NAMESPACE))
    quota = {"kind": "ResourceQuota", "metadata": {"name": "few"}}
    pods.control.admin.create({**quota, "spec": {"hard": {"pods": str(there)}}})

    def holds() -> bool:
        found = pods.control.admin.get("ResourceQuota", NAMESPACE, "few")
        return "pods" in found.get("status", {}).get("used", {})

    wait_until(holds, "the quota holds")

    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0")
            await until(lambda: len(pods.pending) == 2, "why it waits is told")
            assert "the quota of the namespace has no room for it" in str(pods.pending[1][1])
            pods.control.admin.delete("ResourceQuota", NAMESPACE, "few")
            await until(lambda: pods.find("w0") is not None, "the pod is there")

    asyncio.run(story())


# --- the job and its account -------------------------------------------------------------


def test_pods_go_with_the_secret_of_their_job(pods: Pods) -> None:
    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0", "w1")
            await until(lambda: len(pods.all()) == 2, "both are there")

    asyncio.run(story())
    pods.control.admin.delete("Secret", NAMESPACE, pods.settings.job)
    wait_until(lambda: not pods.all(), "the garbage collector has taken them")


def test_at_the_end_of_a_job_nothing_of_it_is_left(pods: Pods) -> None:
    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0", "w1")
            await pods.run("w0")
            pods.tell("w0", phase="Failed", **ended(1))
            await pods.exit_of("w0")
            await until(lambda: len(pods.all()) == 2, "both are there")
            launcher.close()

    asyncio.run(story())
    wait_until(lambda: not pods.all(), "no pod is left")
    assert pods.control.admin.find("Secret", NAMESPACE, pods.settings.job) is None


def test_the_secret_of_a_job_is_taken_over_by_that_job_alone(pods: Pods) -> None:
    first = put_secret(pods.cluster, pods.settings, "token", None)
    again = put_secret(pods.cluster, pods.settings, "other token", None)
    assert again == first
    other = dataclasses.replace(pods.settings, job_id="other")
    with pytest.raises(ConfigurationError, match="Give another --job_name"):
        put_secret(pods.cluster, other, "token", None)
    pods.control.admin.delete("Secret", NAMESPACE, pods.settings.job)


def test_an_account_with_the_documented_rights_is_enough_and_one_without_hears_what_is_missing(
    pods: Pods,
) -> None:
    admin = pods.control.admin
    admin.create({"kind": "ServiceAccount", "metadata": {"name": "nobody"}})
    stranger = cluster_of(pods.control, pods.control.token_of("nobody"))
    with pytest.raises(ConfigurationError) as refused:
        check_cluster(PodsRequest(stranger, "any"))
    assert "may not create pods, get pods, list pods, watch pods, delete pods, create secrets" in (
        str(refused.value)
    )
    for part in yaml.safe_load_all(RBAC.read_text()):
        admin.create(part)
    account = next(p for p in yaml.safe_load_all(RBAC.read_text()) if p["kind"] == "ServiceAccount")
    token = pods.control.token_of(account["metadata"]["name"])
    pods.cluster = cluster_of(pods.control, token)
    pods.settings = dataclasses.replace(pods.settings, job="elastic")  # the role names its Secret
    wait_until(lambda: pods.cluster.may("delete", "secrets", "elastic"), "the role is known")
    assert not pods.cluster.may("get", "secrets")
    check_cluster(PodsRequest(pods.cluster, "any", name="elastic"))
    with pytest.raises(ConfigurationError, match="may not get secrets, patch secrets, delete secr"):
        check_cluster(PodsRequest(pods.cluster, "any", name="other"))

    async def story() -> None:
        async with pods.launcher() as launcher:
            pods.launch(launcher, "w0")
            await pods.run("w0")
            pods.tell("w0", phase="Succeeded", **ended(0))
            await pods.exit_of("w0")
            launcher.close()

    asyncio.run(story())
    wait_until(lambda: not pods.all(), "no pod is left")
    assert admin.find("Secret", NAMESPACE, pods.settings.job) is None
    assert pods.people == []


def test_pods_that_the_cluster_would_refuse_are_refused_before_anything_starts(pods: Pods) -> None:
    limits = {"limits": {"memory": "much"}}
    wrong = {"spec": {"containers": [{"name": "worker", "resources": limits}]}}
    request = PodsRequest(pods.cluster, "any", template=wrong)
    with pytest.raises(ConfigurationError, match="The cluster refuses the pods"):
        check_cluster(request)
    assert pods.control.admin.all("Pod", NAMESPACE, "hvd-elastic-keras/worker") == []
