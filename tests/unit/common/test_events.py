"""The entries of `events.jsonl`: their names, their fields, and what users are told of them."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest

from hvd_elastic_keras.common import events

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference.md"
KINDS = {events.name_of(kind): kind for kind in typing.get_args(events.AnyEntry)}


def told_to_users() -> dict[str, str]:
    """By name: what the table of the reference says of the fields."""
    section = REFERENCE.read_text().split("## `events.jsonl`")[1].split("```json")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE)
    return {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}


def test_the_registry_holds_every_type_of_entries_once() -> None:
    defined = {kind for kind in vars(events).values() if isinstance(kind, type)}
    subclasses = {kind for kind in defined if issubclass(kind, events.Entry)} - {events.Entry}
    assert set(KINDS.values()) == subclasses
    assert len(KINDS) == len(subclasses)


def test_users_are_told_of_all_entries() -> None:
    assert set(told_to_users()) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_users_are_told_of_all_fields(name: str) -> None:
    told = told_to_users()[name]
    lacking = [f.name for f in msgspec.structs.fields(KINDS[name]) if f"`{f.name}`" not in told]
    assert lacking == []


def test_an_entry_that_was_written_is_read_as_the_same_value() -> None:
    entry = events.WorkerReady(worker_id="w1", pid=7, training=1, warm_up_s=0.5)
    content = {"seq": 3, "time": 1.0, "event": "worker_ready", **events.fields_of(entry)}
    assert "start_up_s" not in content
    assert events.parse(content) == entry


@pytest.mark.parametrize(
    "content", [{}, {"event": "of_another_release"}, {"event": "waiting", "workers": "x"}]
)
def test_what_is_no_entry_is_none(content: dict[str, object]) -> None:
    assert events.parse(content) is None
