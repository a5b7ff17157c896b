"""TFRecord files: their index, what is wrong with them, and reading anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.common.events import RecordsSkipped
from hvd_elastic_keras.data.sources import tfrecord, tfrecord_index
from hvd_elastic_keras.data.sources.tfrecord import FilePart, TFRecordSource
from hvd_elastic_keras.data.sources.tfrecord_index import OVERHEAD
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.settings import env

RECORDS = [b"", b"a", bytes(range(256)), b"\0" * 1000, b"last"]
OFFSETS = [sum(len(r) + OVERHEAD for r in RECORDS[:i]) for i in range(len(RECORDS))]


def write(path: Path, records: list[bytes], **options: Any) -> Path:
    with tf.io.TFRecordWriter(str(path), **options) as writer:
        for record in records:
            writer.write(record)
    return path


def change(path: Path, offset: int) -> None:
    """Flips a bit and keeps size and time, as a bad disk does."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def read(source: TFRecordSource) -> list[bytes]:
    return source.__getitems__(range(len(source)))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(env.CACHE_HOME, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "train.tfrecord", RECORDS)


@pytest.fixture
def told() -> Iterator[list[tuple[str, RecordsSkipped]]]:
    """The notices of a test."""
    found: list[tuple[str, RecordsSkipped]] = []
    notices.report_to(lambda n: found.append((n.text, n.entry)))
    yield found
    notices.report_to(None)


def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose index is made from now on."""
    made: list[Path] = []
    build = tfrecord_index.build
    monkeypatch.setattr(tfrecord_index, "build", lambda path: made.append(path) or build(path))
    return made


def test_records_are_those_that_tensorflow_reads(file: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "more.tfrecord", [b"x", b"y"])
    source = TFRecordSource([file, other])
    expected = tf.data.TFRecordDataset([str(file), str(other)]).as_numpy_iterator()
    assert read(source) == list(expected)
    assert [source[i] for i in (6, 0, 2)] == [b"y", RECORDS[0], RECORDS[2]]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_any_records_are_found(tmp_path_factory: pytest.TempPathFactory, records: Any) -> None:
    path = write(tmp_path_factory.mktemp("records") / "a", records)
    assert read(TFRecordSource(path)) == records


def test_a_pattern_takes_files_by_name_and_never_their_indexes(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / name, [name.encode()])
    for _ in range(2):
        assert read(TFRecordSource(tmp_path / "*")) == [b"a", b"b", b"c"]
    assert tfrecord_index.beside(tmp_path / "a").exists()


def test_an_index_is_made_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built(monkeypatch)
    for _ in range(3):
        TFRecordSource(file)
    assert made == [file]


def test_a_file_that_has_changed_is_indexed_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built(monkeypatch)
    TFRecordSource(file)
    os.utime(file, ns=(0, 0))
    assert len(TFRecordSource(file)) == 5
    write(file, [b"new"])
    os.utime(file, ns=(0, 0))
    assert read(TFRecordSource(file)) == [b"new"]
    assert len(made) == 3


@pytest.mark.parametrize("content", [b"", b"no index", b"PK\3\4"])
def test_a_damaged_index_is_made_again(
    content: bytes, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TFRecordSource(file)
    tfrecord_index.beside(file).write_bytes(content)
    made = built(monkeypatch)
    assert read(TFRecordSource(file)) == RECORDS
    assert made == [file]


def test_an_index_goes_to_the_cache_where_the_data_cannot_be_written(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a directory that only others may write; tests may run as root, who may all.
    monkeypatch.setattr(tfrecord_index, "beside", lambda path: Path("/proc/no/such/place"))
    made = built(monkeypatch)
    for _ in range(2):
        assert read(TFRecordSource(file)) == RECORDS
    assert made == [file]
    assert len(list((cache / "hvd_elastic_keras" / "tfrecord").iterdir())) == 1


def test_several_processes_make_the_same_index_at_the_same_time(file: Path) -> None:
    write(file, [bytes(1000)] * 3000)
    code = (
        "import sys, pathlib; from hvd_elastic_keras.data.sources.tfrecord_index import index_of\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(5):\n"
        "    print(len(index_of(pathlib.Path(sys.argv[1])).offsets))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate(timeout=60)[0].split() == ["3000"] * 5
        assert process.returncode == 0
    assert sorted(p.name for p in file.parent.iterdir() if p.is_file()) == [
        ".train.tfrecord.index.npz",
        "train.tfrecord",
    ]


@pytest.mark.parametrize(
    ("offset", "kept", "why"),
    [
        (OFFSETS[2] + 12 + 100, [0, 1, 3, 4], tfrecord_index.CHECKSUM_WRONG),
        (OFFSETS[3] - 1, [0, 1, 3, 4], tfrecord_index.CHECKSUM_WRONG),
        (OFFSETS[2], [0, 1], tfrecord_index.LENGTH_WRONG),
        (OFFSETS[2] + 8, [0, 1], tfrecord_index.LENGTH_WRONG),
    ],
)
def test_a_corrupt_record_is_named_or_left_out(
    offset: int, kept: list[int], why: str, file: Path, told: list[Any]
) -> None:
    change(file, offset)
    message = f"{file} is corrupt: the record at byte {OFFSETS[2]:,} cannot be read, because {why}"
    for _ in range(2):  # made, and kept
        with pytest.raises(DataError, match=message) as caught:
            TFRecordSource(file)
        assert "--skip_corrupt" in str(caught.value)
    source = TFRecordSource(file, skip_corrupt=True)
    assert read(source) == [RECORDS[i] for i in kept]
    ((text, entry),) = told
    count = "at least 1" if why == tfrecord_index.LENGTH_WRONG else "1"
    where = f"{file} at byte {OFFSETS[2]:,}"
    assert text.startswith(f"warning: {count} corrupt record is left out: {where}")
    record = {"path": str(file), "offset": OFFSETS[2], "why": why}
    assert entry == RecordsSkipped(count=1, records=[record])


@pytest.mark.parametrize(
    ("parts", "kept", "count"),
    [
        ([(0, 5)], [0, 1], 3),
        ([(0, 2), (3, 2)], [0, 1], 2),
        ([(1, 3)], [1], 2),
        ([(0, 2)], [0, 1], 0),
    ],
)
def test_where_the_number_of_records_is_known_all_after_a_damaged_length_are_counted(
    parts: list[tuple[int, int]], kept: list[int], count: int, file: Path, told: list[Any]
) -> None:
    change(file, OFFSETS[2])
    source = TFRecordSource([FilePart(file, *part) for part in parts], skip_corrupt=True)
    assert read(source) == [RECORDS[i] for i in kept]
    assert [entry.count for _, entry in told] == [count] * bool(count)
    assert all(text.startswith(f"warning: {count} corrupt records are left") for text, _ in told)


def test_the_flag_decides_where_the_source_does_not(
    file: Path, monkeypatch: pytest.MonkeyPatch, told: list[Any]
) -> None:
    change(file, OFFSETS[2] + 20)
    monkeypatch.setenv(env.OPTIONS, '{"skip_corrupt": true}')
    assert len(TFRecordSource(file)) == 4
    with pytest.raises(DataError, match="is corrupt"):
        TFRecordSource(file, skip_corrupt=False)


@pytest.mark.parametrize("missing", [1, 4, 5, 17, 20])
def test_a_file_that_ends_too_early_is_reported(missing: int, file: Path, told: list[Any]) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-missing])
    last = OFFSETS[4]
    if missing == OVERHEAD + len(RECORDS[4]):
        assert len(TFRecordSource(file)) == 4  # nothing shows that there was more
        return
    with pytest.raises(DataError, match=f"byte {last:,} cannot be read, because the file ends"):
        TFRecordSource(file)
    assert read(TFRecordSource(file, skip_corrupt=True)) == RECORDS[:4]


def test_a_record_that_breaks_later_is_noticed_at_reading(file: Path) -> None:
    source = TFRecordSource(file, skip_corrupt=True)
    change(file, OFFSETS[2] + 20)
    assert source[1] == RECORDS[1]
    with pytest.raises(
        DataError, match=f"{file} is corrupt: the record at byte {OFFSETS[2]:,} was"
    ):
        source.__getitems__([0, 2])


def test_a_file_that_is_cut_later_is_noticed_at_reading(file: Path) -> None:
    source = TFRecordSource(file)
    with file.open("r+b") as opened:
        opened.truncate(OFFSETS[4] + 3)
    assert source[3] == RECORDS[3]
    with pytest.raises(DataError, match=f"the record at byte {OFFSETS[4]:,} was good"):
        source[4]


def test_parts_of_files_count_corrupt_records_too(file: Path, told: list[Any]) -> None:
    parts = [FilePart(file, skip=3), FilePart(file, 0, 3)]
    assert read(TFRecordSource(parts)) == RECORDS[3:] + RECORDS[:3]
    change(file, OFFSETS[1] + 12)
    tfrecord_index.beside(file).unlink()
    assert read(TFRecordSource(parts, skip_corrupt=True)) == [*RECORDS[3:], RECORDS[0], RECORDS[2]]
    assert len(told) == 1
    with pytest.raises(DataError, match="has 5 records, expected at least 9"):
        TFRecordSource(FilePart(write(file, RECORDS), 3, 6))


def test_more_files_than_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "MOST_OPEN_FILES", 2)
    source = TFRecordSource([write(tmp_path / f"{i}", [b"%d" % i]) for i in range(5)])
    for _ in range(2):
        assert read(source) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(source._files._open) == 2


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_are_refused(compression: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", [b"x" * 100] * 100, options=compression)
    message = "is compressed with GZIP" if compression == "GZIP" else "is corrupt: the record at"
    with pytest.raises(DataError, match=message):
        TFRecordSource(path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("/no/such/file", "/no/such/file cannot be read: No such file"),
        ("/no/such/*.tfrecord", "cannot be read: No such file"),
        ("gs://bucket/file", "is not a local file"),
        ([], "was given no files"),
    ],
)
def test_files_that_cannot_be_used_are_refused(files: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TFRecordSource(files)
