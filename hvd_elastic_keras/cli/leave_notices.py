"""`--leave_on`: treats a cloud's notice that it takes this machine back like SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

import requests
from absl import flags

from hvd_elastic_keras.common import env
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.launchers.spot_notices import Aws, GoogleCloud, Notice, Provider

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
