"""`--leave_on`: treats a cloud's notice that it takes this machine back like SIGTERM.

The cloud's metadata service gives the notice (`GoogleCloud`, `Aws`).
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import requests
from absl import flags

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env

ASK_EVERY_S = 5.0
BEFORE_THE_END_S = 3.0
"""Seconds before the machine goes at which a process that has not left yet is ended.

The others then hear of its end at once.
"""
SIGTERM = "sigterm"
PROVIDERS: Mapping[str, Callable[[], Provider]] = {
    "gcp": lambda: GoogleCloud(env.metadata_service(*env.GCP_METADATA)),
    "aws": lambda: Aws(env.metadata_service(*env.AWS_METADATA)),
}

LEAVE_ON = flags.DEFINE_list(
    "leave_on",
    [SIGTERM],
    "What makes a worker that has joined leave after the current step, and a launcher stop its "
    "job with a checkpoint. sigterm: always. gcp, aws: this machine is one that the cloud may take "
    "back; its metadata service is asked every 5 s whether it does.",
)
REQUEST_TIMEOUT_S = 2.0
GCP_SECONDS = 30.0
"""Seconds that Google Cloud lets a machine run after its notice."""
AWS_TOKEN_SECONDS = 21600
AWS_SECONDS = 120.0
"""Seconds before the end at which the notice of AWS comes."""


def begin() -> None:
    """Begins to ask for notices, if the flag names a cloud.

    Raises:
      ConfigurationError: the flag has an unknown value.
    """
    names = [name.strip().lower() for name in LEAVE_ON.value or []]
    unknown = [name for name in names if name not in (SIGTERM, *PROVIDERS)]
    if unknown:
        raise ConfigurationError(
            f"--leave_on={','.join(names)} was given, expected some of "
            f"{', '.join([SIGTERM, *PROVIDERS])}."
        )
    asked = {name: PROVIDERS[name]() for name in dict.fromkeys(names) if name in PROVIDERS}
    if asked:
        threading.Thread(target=NoticeWatch(asked, _end).run, daemon=True).start()


def as_flag() -> Sequence[str]:
    """Returns the flag as it was given, for joiners that this launcher starts."""
    return [f"--{LEAVE_ON.name}={','.join(LEAVE_ON.value)}"] if LEAVE_ON.present else []


def _end() -> None:
    """Sends SIGTERM to this process: the first one asks it to leave, the second one ends it."""
    os.kill(os.getpid(), signal.SIGTERM)


class NoticeWatch:
    """Asks the clouds until a notice comes.

    Args:
      end: called when the notice comes, and again shortly before the machine goes.
    """

    def __init__(self, providers: Mapping[str, Provider], end: Callable[[], None]) -> None:
        self._providers = providers
        self._end = end
        self._told: set[str] = set()

    def run(self) -> None:
        """Asks until a notice comes; returns after the second call of `end`."""
        pause = threading.Event()
        while (notice := self._notice()) is None:
            pause.wait(ASK_EVERY_S)
        _say(f"{notice.text} in {notice.within_s:.0f} s: leaving")
        self._end()
        pause.wait(max(0.0, notice.within_s - BEFORE_THE_END_S))
        self._end()

    def _notice(self) -> Notice | None:
        for name, provider in self._providers.items():
            try:
                notice = provider.notice()
            except requests.RequestException as error:
                self._tell_once(name, error)
            else:
                if notice:
                    return notice
        return None

    def _tell_once(self, name: str, error: requests.RequestException) -> None:
        if name not in self._told:
            self._told.add(name)
            _say(f"warning: the metadata service of {name} does not answer ({error}). Going on")


def _say(text: str) -> None:
    print(f"[leave] {text}", file=sys.stderr, flush=True)


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
