"""Writes the content of a pod's volumes to plain directories."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.harness.kube_api import Api, ApiError, Json, path_of


class PodVolumes:
    """The volumes of one pod.

    Args:
      api: the API for an account that may do everything.
      directory: directory for the volumes that belong to this pod alone.
    """

    def __init__(self, api: Api, pod: Json, directory: Path) -> None:
        self._api = api
        self._pod = pod
        self._namespace = str(pod["metadata"]["namespace"])
        self._directory = directory

    def find(self, name: str) -> Path:
        """Returns the directory with the content of a volume.

        A volume of the pod's own is written anew.

        Raises:
          ApiError: if the content is not there yet.
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
        """Returns the files of a source, of the kinds that tests need."""
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
        """Returns a token that names the pod, and that is valid as long as the pod exists."""
        who = {key: self._pod["metadata"][key] for key in ("name", "uid")}
        bound = {"kind": "Pod", "apiVersion": "v1", **who}
        account = self._pod["spec"]["serviceAccountName"]
        path = path_of("ServiceAccount", self._namespace, account, "token")
        spec = {"expirationSeconds": seconds, "boundObjectRef": bound}
        return str(self._api.request("POST", path, {"spec": spec})["status"]["token"])


def field_of(pod: Json, path: str) -> str:
    """Returns a field of a pod for which its containers may ask."""
    part, _, name = path.partition(".")
    return str(pod[part][name])
