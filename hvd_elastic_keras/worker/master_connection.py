"""Sends requests to the master of a job, which may change its address and its term."""

from __future__ import annotations

import contextlib

import requests

from hvd_elastic_keras.common import files, messages, protocol
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.master_session import session_of, url_of
from hvd_elastic_keras.settings.env import WorkerEnvironment

CONNECT_TIMEOUT_S = 5.0


class MasterConnection:
    """A worker's way to its master, for requests from any thread.

    Attributes:
      address: host and port of the master.
      term: term of the newest master that has answered.
    """

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment = environment
        self.address = environment.master
        self.term = 0

    def session(self) -> requests.Session:
        """Returns a new session, for one thread at a time."""
        return session_of(self._environment.token, self._environment.fingerprint)

    def request(
        self, session: requests.Session, method: str, path: str, body: bytes | None = None
    ) -> bytes:
        """Sends a request once; returns the content of the answer.

        Raises:
          requests.RequestException: there is no answer, or it is a refusal, or it is that of a
            master that a newer one has replaced.
        """
        timeout = (CONNECT_TIMEOUT_S, protocol.LONG_POLL_S + CONNECT_TIMEOUT_S)
        url = url_of(self.address, self._environment.fingerprint, path)
        headers = {protocol.TERM_HEADER: str(self.term)}
        try:
            response = session.request(method, url, data=body, headers=headers, timeout=timeout)
            self._check_term(response)
            response.raise_for_status()
        except requests.RequestException:
            self._look_for_another_master()
            raise
        return response.content

    def _look_for_another_master(self) -> None:
        """Reads the address again: the job's next launcher may have had to take another port."""
        with contextlib.suppress(ConfigurationError, messages.ProtocolError):
            self.address = files.read_endpoint(self._environment.job_path).address

    def _check_term(self, response: requests.Response) -> None:
        """Refuses the answer of a master that a newer one has replaced.

        Raises:
          requests.ConnectionError: the answer is from such a master.
        """
        text = response.headers.get(protocol.TERM_HEADER, "")
        term = int(text) if text.isdecimal() else 0
        if term < self.term:  # the newer master has to answer, even if the old one has refused
            raise requests.ConnectionError(f"its term {term} is over; this one is {self.term}")
        self.term = term
