"""Predictions on disk: what is there is whole, of one job, and comes back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_elastic_keras.common import predictions
from hvd_elastic_keras.common.errors import ConfigurationError, DataError
from hvd_elastic_keras.common.predictions import Output, PartFiles, read_predictions, structure_of

SCORES = Output("scores", (3,), "float32")
COUNT = Output("count", (), "int64")
PARTS = [(0, 4), (4, 8), (8, 9)]
X = np.arange(27, dtype="float32").reshape(9, 3)
N = np.arange(9)


def written(directory: Path, structure: Any) -> PartFiles:
    parts = PartFiles(directory, [SCORES, COUNT])
    for low, high in reversed(PARTS):
        parts.write((low, high), [X[low:high], N[low:high]])
    parts.write_index(PARTS, structure)
    return parts


def test_arrays_come_back_nested_as_they_were(tmp_path: Path) -> None:
    written(tmp_path, structure_of({"b": [0, 0]}))
    found = read_predictions(tmp_path)
    assert found.keys() == {"b"}
    assert isinstance(found["b"], list)
    np.testing.assert_array_equal(found["b"][0], X)
    np.testing.assert_array_equal(found["b"][1], N)


def test_outputs_with_names_that_could_be_mistaken_stay_apart(tmp_path: Path) -> None:
    structure = structure_of({"a": (0,), "a_0": 0})
    written(tmp_path, structure)
    found = read_predictions(tmp_path)
    np.testing.assert_array_equal(found["a"][0], X)
    np.testing.assert_array_equal(found["a_0"], N)


def test_the_index_is_not_written_while_a_range_is_missing(tmp_path: Path) -> None:
    parts = written(tmp_path, structure_of((0, 0)))
    (tmp_path / predictions.INDEX).unlink()
    (tmp_path / parts.names((4, 8))[1]).unlink()
    with pytest.raises(DataError, match="examples 4 to 7"):
        parts.write_index(PARTS, structure_of((0, 0)))
    assert not (tmp_path / predictions.INDEX).exists()


def test_a_torn_file_counts_as_missing(tmp_path: Path) -> None:
    parts = written(tmp_path, structure_of((0, 0)))
    path = tmp_path / parts.names((4, 8))[0]
    assert parts.has((4, 8))
    path.write_bytes(path.read_bytes()[:-5])
    assert not parts.has((4, 8))
    assert not path.exists()
    path.touch()
    assert not parts.has((4, 8))


def test_what_killed_workers_have_left_half_written_is_removed(tmp_path: Path) -> None:
    parts = written(tmp_path, structure_of((0, 0)))
    left = tmp_path / predictions.PARTS / ".123.000000000004-000000000008.0.npy"
    left.touch()
    parts.write_index(PARTS, structure_of((0, 0)))
    assert not left.exists()


@pytest.mark.parametrize(
    "array", [X[:3], X[:4, :2], X[:4].astype("float64"), X[:4].reshape(4, 3, 1)]
)
def test_other_rows_than_expected_are_refused(array: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one row for each example"):
        PartFiles(tmp_path, [SCORES]).write((0, 4), [array])


def test_a_directory_belongs_to_one_job(tmp_path: Path) -> None:
    identity = {"model": "a", "weights": "12", "micro_batch_size": 8, "first_batch": [[[2], [0.5]]]}
    assert not predictions.check_directory(tmp_path, identity)
    predictions.begin(tmp_path, identity)
    assert predictions.check_directory(tmp_path, identity)
    predictions.begin(tmp_path, identity)
    with pytest.raises(ConfigurationError, match="with another weights and micro batch size"):
        predictions.begin(tmp_path, {**identity, "weights": "13", "micro_batch_size": 16})


def test_reading_says_why_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="are not there"):
        read_predictions(tmp_path)
    predictions.begin(tmp_path, {})
    with pytest.raises(ConfigurationError, match="begun, but are not finished"):
        read_predictions(tmp_path)
    (tmp_path / predictions.INDEX).write_text('{"version": 99}')
    with pytest.raises(ConfigurationError, match="format version 99"):
        read_predictions(tmp_path)
