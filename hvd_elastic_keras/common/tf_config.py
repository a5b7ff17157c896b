"""Parses `TF_CONFIG`, in which users of MultiWorkerMirroredStrategy name a job's processes. Pure.

    {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}}

Every process gets the same list and its own place in it. Here worker 0 runs the master.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

from hvd_elastic_keras.common import host_port
from hvd_elastic_keras.common.errors import ConfigurationError

VARIABLE = "TF_CONFIG"
EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
TRAINING = ("chief", "worker")
"""Types of tasks that train, in the order of their ranks. An evaluator does not train."""
MOST_PORTS = 2**16


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a task listens."""

    host: str
    port: int


@dataclasses.dataclass(frozen=True)
class TfConfig:
    """The processes that train, and which of them this one is.

    Attributes:
      workers: addresses by index; a chief is worker 0, as in TensorFlow.
      index: the index of this process.
    """

    workers: tuple[Address, ...]
    index: int

    @property
    def master(self) -> Address:
        """The address of the master, which is worker 0's."""
        return self.workers[0]

    @property
    def has_master(self) -> bool:
        """Whether this process runs the master."""
        return self.index == 0

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        """Each host once, in order, with the number of its workers."""
        names = [worker.host for worker in self.workers]
        return tuple((name, names.count(name)) for name in dict.fromkeys(names))


def parse(text: str) -> TfConfig:
    """Reads the value of `TF_CONFIG`.

    >>> parse(EXAMPLE).hosts
    (('a', 1), ('b', 1))

    Raises:
      ConfigurationError: the text is not of that form, or names a task that does not train here.
    """
    content = _json(text)
    cluster = _dict(content, "cluster")
    if cluster.get("ps"):
        raise ConfigurationError(
            f"{VARIABLE} names parameter servers (`ps`), which there are none of here: all workers "
            "hold the whole model. Leave them out, and start one process for each worker."
        )
    chief, workers = (_addresses(cluster, kind) for kind in TRAINING)
    if len(chief) > 1:
        raise _mistake(f"names {len(chief)} chiefs", "one at most")
    everybody = (*chief, *workers)
    if not everybody:
        raise _mistake("names no worker", "the addresses of all in `cluster`")
    twice = next((a for a in everybody if everybody.count(a) > 1), None)
    if twice:
        raise _mistake(f"names {twice.host}:{twice.port} twice", "another port for each of a host")
    return TfConfig(everybody, _index(_dict(content, "task"), len(chief), len(workers)))


def _json(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _mistake(f"is {text[:120]!r}, which is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise _mistake(f"is {text[:120]!r}", "an object")
    return content


def _dict(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    if not isinstance(value, dict):
        raise _mistake(f"has {name}={value!r}", "an object")
    return value


def _addresses(cluster: dict[str, Any], kind: str) -> tuple[Address, ...]:
    given = cluster.get(kind, [])
    if not isinstance(given, list):
        raise _mistake(f"has {kind}={given!r}", "a list of addresses")
    return tuple(_address(text, kind) for text in given)


def _address(text: object, kind: str) -> Address:
    with contextlib.suppress(ValueError):
        host, port = host_port.split(text if isinstance(text, str) else "")
        if 0 < port < MOST_PORTS:
            return Address(host, port)
    raise _mistake(f"has the {kind} {text!r}", "host:port")


def _index(task: dict[str, Any], chiefs: int, workers: int) -> int:
    kind, index = task.get("type"), task.get("index", 0)
    if kind == "evaluator":
        raise ConfigurationError(
            f"{VARIABLE} makes this process an evaluator, which there is none of here: the workers "
            "evaluate after each epoch. Do not start it."
        )
    if kind not in TRAINING:
        raise _mistake(f"has the task type {kind!r}", "'chief' or 'worker'")
    if isinstance(index, str) and index.isascii() and index.isdecimal():
        index = int(index[:6])  # some people write the index as text
    count = chiefs if kind == "chief" else workers
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise _mistake(f"has the task index {index!r}", f"one of the {count} of type {kind!r}")
    return index + (chiefs if kind == "worker" else 0)


def _mistake(what: str, expected: str = "JSON") -> ConfigurationError:
    return ConfigurationError(f"{VARIABLE} {what}, expected {expected}, as in {EXAMPLE}.")
