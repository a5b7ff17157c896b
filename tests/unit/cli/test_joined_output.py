"""What a joined worker prints, and who reads it."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

from hvd_elastic_keras.cli.check_in_subprocess import ERROR_BYTES, _end_of, _lines_of
from hvd_elastic_keras.cli.join.joined_process import (
    LONGEST_LINE,
    TAIL_LINES,
    JoinedProcess,
    Reader,
)

LONG = b"x" * 2**20


def test_a_reader_gets_what_is_printed() -> None:
    source, sink = os.pipe()
    reader = Reader(sink)
    assert reader.write(b"one\n")
    assert reader.write(b"two\n")
    assert os.read(source, 100) == b"one\ntwo\n"


def test_a_reader_that_is_gone_stops_nobody() -> None:
    source, sink = os.pipe()
    os.close(source)
    assert not Reader(sink).write(b"one\n")


def test_a_reader_that_hangs_is_waited_for_once_and_heard_again_when_it_reads() -> None:
    source, sink = os.pipe()
    reader = Reader(sink, patience_s=0.01)
    assert not reader.write(LONG)
    assert not reader.write(LONG)
    while len(os.read(source, 2**20)) == 2**20:
        pass
    assert reader.write(b"end\n")
    assert os.read(source, 100).endswith(b"end\n")


def test_a_line_without_an_end_fills_no_memory_and_gets_to_the_log_in_order() -> None:
    joined, log = JoinedProcess(Path()), io.BytesIO()
    source, sink = os.pipe()
    os.close(source)  # nobody reads
    printed = LONG * 20 + b"\nend\n"
    joined._pump(io.BytesIO(printed), Reader(sink), log)
    assert log.getvalue() == printed
    assert len(joined.log_tail) <= TAIL_LINES * LONGEST_LINE
    assert joined.log_tail.endswith("end\n")


def test_what_a_check_prints_may_have_any_length() -> None:
    async def read() -> tuple[list[bytes], bytes]:
        output, errors = asyncio.StreamReader(limit=100), asyncio.StreamReader(limit=100)
        for stream in (output, errors):
            stream.feed_data(b"one\n" + LONG * 2 + b"\nend\n")
            stream.feed_eof()
        return [line async for line in _lines_of(output)], await _end_of(errors)

    lines, end = asyncio.run(read())
    assert (lines[0], lines[-1]) == (b"one\n", b"end\n")
    assert sum(map(len, lines)) < 1000
    assert len(end) == ERROR_BYTES
    assert end.endswith(b"x\nend\n")
