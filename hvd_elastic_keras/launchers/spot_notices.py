"""Reads a cloud's notice that it will take this machine back, from its metadata service.

Google Cloud: https://cloud.google.com/compute/docs/instances/create-use-preemptible (`preempted`).
AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, by
IMDSv2, whose requests need a token.
"""

from __future__ import annotations

import datetime
from typing import Protocol

import msgspec
import requests

REQUEST_TIMEOUT_S = 2.0
GCP_SECONDS = 30.0
"""Seconds that Google Cloud lets a machine run after its notice."""
AWS_TOKEN_SECONDS = 21600
AWS_SECONDS = 120.0
"""Seconds before the end at which the notice of AWS comes."""


class Notice(msgspec.Struct, frozen=True):
    """A notice that the cloud takes this machine back.

    Attributes:
      within_s: seconds until the machine goes.
    """

    text: str
    within_s: float


class Provider(Protocol):
    """A cloud that may take this machine back."""

    def notice(self) -> Notice | None:
        """Returns the present notice; None if the machine stays.

        Raises:
          requests.RequestException: the metadata service does not answer as documented.
        """


class GoogleCloud:
    """Google Cloud, with its metadata service at `host`."""

    def __init__(self, host: str) -> None:
        self._url = f"http://{host}/computeMetadata/v1/instance/preempted"
        self._session = _session()
        self._session.headers["Metadata-Flavor"] = "Google"

    def notice(self) -> Notice | None:
        """See `Provider`."""
        answer = self._session.get(self._url, timeout=REQUEST_TIMEOUT_S)
        answer.raise_for_status()
        if answer.text.strip().upper() != "TRUE":
            return None
        return Notice("Google Cloud preempts this machine", GCP_SECONDS)


class Aws:
    """AWS, with its metadata service at `url`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/latest"
        self._session = _session()
        self._token = ""

    def notice(self) -> Notice | None:
        """See `Provider`."""
        answer = self._ask()
        if answer.status_code == requests.codes.unauthorized:
            self._token = ""
            answer = self._ask()
        if answer.status_code == requests.codes.not_found:
            return None
        answer.raise_for_status()
        return aws_notice(answer.content, datetime.datetime.now(datetime.timezone.utc))

    def _ask(self) -> requests.Response:
        self._token = self._token or self._new_token()
        headers = {"X-aws-ec2-metadata-token": self._token}
        url = f"{self._url}/meta-data/spot/instance-action"
        return self._session.get(url, headers=headers, timeout=REQUEST_TIMEOUT_S)

    def _new_token(self) -> str:
        lasts = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_SECONDS)}
        url = f"{self._url}/api/token"
        answer = self._session.put(url, headers=lasts, timeout=REQUEST_TIMEOUT_S)
        answer.raise_for_status()
        return answer.text


class _InstanceAction(msgspec.Struct):
    action: str
    time: datetime.datetime


def aws_notice(content: bytes, now: datetime.datetime) -> Notice:
    """Returns the notice in an instance action; an unreadable action counts as a notice, too.

    >>> moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    >>> aws_notice(b'{"action": "stop", "time": "2026-01-01T00:01:30Z"}', moment)
    Notice(text='AWS will stop this machine', within_s=90.0)
    """
    try:
        found = msgspec.json.decode(content, type=_InstanceAction)
        left_s = (found.time - now).total_seconds()
    except (msgspec.DecodeError, TypeError):
        return Notice("AWS takes this machine back", AWS_SECONDS)
    return Notice(f"AWS will {found.action} this machine", max(0.0, left_s))


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # only this machine can reach the service, so use no proxy
    return session
