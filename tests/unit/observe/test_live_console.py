"""The launcher's terminal: who draws on it, and what is written above that."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import sys
from collections.abc import Iterator

import msgspec
import pytest

from hvd_elastic_keras.common.protocol import Progress
from hvd_elastic_keras.observe.console import Console, Verbosity
from hvd_elastic_keras.observe.live_console import LiveConsole, console_for

PROGRESS = Progress(
    epoch=1,
    epochs=3,
    step=1,
    steps=12,
    metrics={"loss": 1.25},
    examples_per_s=10.0,
    workers=2,
    left_s=None,
)
GREEN = "\x1b[32m"
UP_AND_CLEAR = "\x1b[1A\x1b[2K"


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Iterator[None]:
    """Makes stdout a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding=encoding) as stream, monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", stream)
        yield
    os.close(ours)


def live(verbosity: Verbosity = Verbosity.NORMAL) -> tuple[LiveConsole, io.StringIO]:
    stream = io.StringIO()
    return LiveConsole(stream, verbosity), stream


def draws(console: Console) -> bool:
    return isinstance(console, LiveConsole)


def test_progress_is_drawn_on_a_terminal_unless_it_is_dumb_or_people_want_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    with terminal(monkeypatch):
        assert draws(console_for(Verbosity.NORMAL))
        assert draws(console_for(Verbosity.VERBOSE))
        assert not draws(console_for(Verbosity.QUIET))
    with terminal(monkeypatch, encoding="ascii"):
        assert not draws(console_for(Verbosity.NORMAL))
    monkeypatch.setenv("TERM", "dumb")
    with terminal(monkeypatch):
        assert not draws(console_for(Verbosity.NORMAL))


def test_no_progress_is_drawn_in_a_file() -> None:
    assert not draws(console_for(Verbosity.NORMAL))


def test_colours_of_workers_are_kept_but_not_where_there_are_to_be_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console, stream = live()
    console.worker_line("w0", f"{GREEN}good\x1b[0m\x1b[2J [bold]")
    assert f"{GREEN}good" in stream.getvalue()
    assert "[bold]" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue(), "no worker clears the screen"
    monkeypatch.setenv("NO_COLOR", "1")
    console, stream = live()
    console.worker_line("w0", f"{GREEN}good\x1b[0m")
    assert stream.getvalue() == "[w0] good\n"


def test_a_long_line_is_left_to_the_terminal_to_break() -> None:
    console, stream = live()
    console.raw("x" * 300 + "\n")
    assert "x" * 300 in stream.getvalue()


def test_nothing_of_the_drawing_is_left_and_the_cursor_was_never_hidden() -> None:
    console, stream = live()
    with console.drawing():
        console.progress(PROGRESS, "")
        console.line("a line")
    drawn = stream.getvalue()
    assert "epoch 1/3" in drawn
    assert "\x1b[?25" not in drawn
    assert drawn.endswith(UP_AND_CLEAR), "the last that is done is to clear it away"


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    console, stream = live()
    with console.drawing():
        stream.close()
        console.line("nobody hears this")


def test_lines_of_steps_are_written_only_to_those_who_want_to_see_all() -> None:
    for verbosity, count in ((Verbosity.NORMAL, 0), (Verbosity.VERBOSE, 1)):
        console, stream = live(verbosity)
        console.progress(PROGRESS, "epoch 1/3  step 1/12\n")
        assert stream.getvalue().count("step 1/12") == count


def test_of_many_short_epochs_the_first_and_the_last_get_a_line() -> None:
    console, stream = live()
    for epoch in range(1, 4):
        ended = msgspec.structs.replace(PROGRESS, epoch=epoch, ended=True)
        console.progress(ended, f"epoch {epoch}/3 done\n")
    assert stream.getvalue().split("\n") == ["epoch 1/3 done", "epoch 3/3 done", ""]


def test_a_quiet_console_shows_warnings_and_what_must_be_told() -> None:
    stream = io.StringIO()
    console = Console(stream, Verbosity.QUIET)
    console.info("job directory: x")
    console.worker_line("w0", "hello")
    console.progress(PROGRESS, "epoch 1/3  step 1/12\n")
    console.raw("epoch 1/3 done\n")
    assert stream.getvalue() == ""
    console.raw("[w0] warning: a full disk\n")
    console.line("round 2: 3 → 2 workers")
    console.quote("w0", "Error: x")
    assert stream.getvalue() == (
        "[w0] warning: a full disk\n[elastic] round 2: 3 → 2 workers\n[w0] Error: x\n"
    )
