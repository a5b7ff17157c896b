"""What a joined worker prints, and who reads it."""

from __future__ import annotations

import os

from hvd_elastic_keras.cli.joined_process import Reader

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
