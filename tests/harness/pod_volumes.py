"""What the volumes of a pod hold, in plain directories."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.harness.kube_api import Api, ApiError, Json, path_of


class PodVolumes:
    """Those of one pod.

    Args:
      api: for who may do everything.
      directory: for the volumes that nobody else has.
    """

    def __init__(self, api: Api, pod: Json, directory: Path) -> None:
        self._api = api
        self._pod = pod
        self._namespace = str(pod["metadata"]["namespace"])
        self._directory = directory

    def find(self, name: str) -> Path:
        """The directory that has what a volume holds, written anew if it is the pod's own.

        Raises:
          ApiError: it is not there yet.
        """
        volume: Json = next(v for v in self._pod["spec"]["volumes"] if v["name"] == name)
        if "persistentVolumeClaim" in volume:
            volume = self._bound_to(volume["persistentVolumeClaim"]["claimName"])
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        own = self._directory / name
        own.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", [volume]):
            for path, content in self._files(source).items():
                (own / path).write_bytes(content)
                (own / path).chmod(volume.get("secret", {}).get("defaultMode", 0o644))
        return own

    def _bound_to(self, claim: str) -> Json:
        spec = self._api.get("PersistentVolumeClaim", self._namespace, claim)["spec"]
        if "volumeName" not in spec:
            raise ApiError(0, "the claim has no volume yet")
        found: Json = self._api.get("PersistentVolume", "", spec["volumeName"])["spec"]
        return found

    def _files(self, source: Json) -> dict[str, bytes]:
        """The content of the files that a source is for; those that need no test are left out."""
        if "secret" in source:
            secret = self._api.get("Secret", self._namespace, source["secret"]["secretName"])
            return {n: base64.b64decode(value) for n, value in secret.get("data", {}).items()}
        if "configMap" in source:
            found = self._api.get("ConfigMap", self._namespace, source["configMap"]["name"])
            return {name: value.encode() for name, value in found.get("data", {}).items()}
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            return {wanted["path"]: self._token(wanted["expirationSeconds"]).encode()}
        return {
            item["path"]: field_of(self._pod, item["fieldRef"]["fieldPath"]).encode()
            for item in source.get("downwardAPI", {}).get("items", [])
        }

    def _token(self, seconds: int) -> str:
        """Says who the pod is, as long as it is there."""
        who = {key: self._pod["metadata"][key] for key in ("name", "uid")}
        bound = {"kind": "Pod", "apiVersion": "v1", **who}
        account = self._pod["spec"]["serviceAccountName"]
        path = path_of("ServiceAccount", self._namespace, account, "token")
        spec = {"expirationSeconds": seconds, "boundObjectRef": bound}
        return str(self._api.request("POST", path, {"spec": spec})["status"]["token"])


def field_of(pod: Json, path: str) -> str:
    """A field of a pod that its containers may ask for."""
    part, _, name = path.partition(".")
    return str(pod[part][name])
