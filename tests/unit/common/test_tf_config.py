"""TF_CONFIG as a list of hosts: what it says, and what it is told if it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hvd_elastic_keras.common import tf_config
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.tf_config import Address


def written(cluster: Any, kind: Any = "worker", index: Any = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_worker_0_has_the_master_and_each_host_is_listed_once() -> None:
    workers = ["a:1", "b:1", "a:2", "[::1]:3"]
    read = tf_config.parse(written({"worker": workers}, index=2))
    assert read.workers == (Address("a", 1), Address("b", 1), Address("a", 2), Address("::1", 3))
    assert read.hosts == (("a", 2), ("b", 1), ("::1", 1))
    assert (read.index, read.master, read.has_master) == (2, Address("a", 1), False)
    assert tf_config.parse(written({"worker": workers})).has_master


@pytest.mark.parametrize(
    ("kind", "index", "expected"), [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2)]
)
def test_a_chief_is_the_first_worker(kind: str, index: object, expected: int) -> None:
    text = written({"chief": ["c:9"], "worker": ["a:1", "b:1"]}, kind, index)
    read = tf_config.parse(text)
    assert read.index == expected
    assert read.master == Address("c", 9)
    assert read.has_master == (kind == "chief")


def test_an_evaluator_in_the_cluster_is_no_worker() -> None:
    text = written({"worker": ["a:1"], "evaluator": ["e:1"]})
    assert tf_config.parse(text).workers == (Address("a", 1),)


def test_the_example_in_messages_is_right() -> None:
    assert tf_config.parse(tf_config.EXAMPLE).hosts == (("a", 1), ("b", 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is '', which is no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "an object"),
        ("{}", "has cluster=None, expected an object"),
        (json.dumps({"cluster": {"worker": ["a:1"]}}), "has task=None, expected an object"),
        (written([]), r"has cluster=\[\]"),
        (written({}), "names no worker"),
        (written({"worker": "a:1"}), "has worker='a:1', expected a list"),
        (written({"worker": ["a"]}), "has the worker 'a', expected host:port"),
        (written({"worker": [":1"]}), "expected host:port"),
        (written({"worker": ["a:0"]}), "expected host:port"),
        (written({"worker": ["a:65536"]}), "expected host:port"),
        (written({"worker": ["a:²"]}), "expected host:port"),
        (written({"worker": [7]}), "has the worker 7"),
        (written({"worker": ["a:1", "a:1"]}), "names a:1 twice"),
        (written({"chief": ["a:1", "b:1"]}, "chief"), "names 2 chiefs"),
        (written({"worker": ["a:1"]}, index=1), "index 1, expected one of the 1"),
        (written({"worker": ["a:1"]}, index=-1), "index -1"),
        (written({"worker": ["a:1"]}, index=True), "index True"),
        (written({"worker": ["a:1"]}, index=None), "index None"),
        (written({"worker": ["a:1"]}, "chief"), "one of the 0 of type 'chief'"),
        (written({"worker": ["a:1"]}, "boss"), "task type 'boss', expected 'chief' or 'worker'"),
        (written({"worker": ["a:1"]}, ["worker"]), "task type"),
        (written({"worker": ["a:1"]}, "evaluator"), "an evaluator, .* Do not start it"),
        (written({"worker": ["a:1"], "ps": ["p:1"]}), "parameter servers"),
    ],
)
def test_what_is_wrong_is_told_with_what_was_expected(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^TF_CONFIG .*{told}"):
        tf_config.parse(text)
