"""Predictions on disk: a file for each range of examples and each output, and an index.

    DIR/predictions.json                              index of all files, in order; written last
    DIR/prediction_job.json                           the job that these are predictions of
    DIR/parts/000000000128-000000000256.0.npy         output 0 of examples [128, 256)

A range follows from the job alone, never from the workers: any worker that computes it writes the
same file, with one rename. So a range on disk is whole, and is not computed again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import ConfigurationError, DataError

VERSION = 1
INDEX = "predictions.json"
IDENTITY = "prediction_job.json"
PARTS = "parts"
Array = npt.NDArray[Any]
Range = tuple[int, int]
"""Examples [start, stop)."""


@dataclasses.dataclass(frozen=True)
class Output:
    """One output array of a model, for a single example.

    Attributes:
      name: the key of a dict, `output`, or `output_0` and so on.
      shape: without the dimension of the examples.
      dtype: the name of the type in NumPy.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class PartFiles:
    """The files of ranges of examples in a directory of predictions.

    Args:
      directory: the directory of the predictions.
      outputs: the outputs of the model, in order.
    """

    def __init__(self, directory: Path, outputs: Sequence[Output]) -> None:
        self._directory = directory
        self._outputs = outputs

    def names(self, part: Range) -> list[str]:
        """The files of a range, one for each output, relative to the directory."""
        start, stop = part
        return [f"{PARTS}/{start:012d}-{stop:012d}.{n}.npy" for n in range(len(self._outputs))]

    def has(self, part: Range) -> bool:
        """Whether all files of a range are there and whole; a damaged one is removed."""
        return all(
            self._is_whole(self._directory / name, part, output)
            for name, output in zip(self.names(part), self._outputs, strict=True)
        )

    def write(self, part: Range, arrays: Sequence[Array]) -> None:
        """Writes a range, each file with one rename.

        Args:
          arrays: shape [stop - start, …] each, in the order of the outputs.

        Raises:
          DataError: an array does not have the shape and dtype expected for the range.
        """
        for name, array, output in zip(self.names(part), arrays, self._outputs, strict=True):
            _check(array.shape, array.dtype, part, output)
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(path, functools.partial(_save, array))

    def write_index(self, parts: Sequence[Range], structure: Any) -> None:
        """Writes the index, which says that all predictions are there.

        Removes the half-written files that killed workers have left.

        Args:
          parts: all ranges, in the order of the examples.
          structure: see `structure_of`.

        Raises:
          DataError: a range is missing.
        """
        missing = [part for part in parts if not self.has(part)]
        if missing:
            raise DataError(
                f"The predictions of examples {missing[0][0]} to {missing[0][1] - 1} are not in "
                f"{self._directory}. All hosts with workers need the same --output, on a file "
                "system that they share. Start the same command again: it computes what is missing."
            )
        for left in (self._directory / PARTS).glob(".*.npy"):
            left.unlink(missing_ok=True)
        count = parts[-1][1]
        content = {
            "version": VERSION,
            "num_examples": count,
            "structure": structure,
            "outputs": [
                {"name": o.name, "shape": [count, *o.shape], "dtype": o.dtype}
                for o in self._outputs
            ],
            "parts": [
                {"start": part[0], "stop": part[1], "files": self.names(part)} for part in parts
            ],
        }
        files.write_json(self._directory / INDEX, content)

    def _is_whole(self, path: Path, part: Range, output: Output) -> bool:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, EOFError):  # torn, for example by a loss of power
            path.unlink(missing_ok=True)
            return False
        _check(array.shape, array.dtype, part, output)
        return True


def _save(array: Array, path: Path) -> None:
    np.save(path, array, allow_pickle=False)


def _check(shape: tuple[int, ...], dtype: Any, part: Range, output: Output) -> None:
    expected = (part[1] - part[0], *output.shape)
    if shape != expected or dtype != np.dtype(output.dtype):
        raise DataError(
            f"The output {output.name!r} of examples {part[0]} to {part[1] - 1} has shape {shape} "
            f"and dtype {dtype}, expected {expected} and {output.dtype}: one row for each example, "
            "of the same shape for all of them."
        )


def structure_of(outputs: Any, name: str = "") -> Any:
    """Describes how outputs are nested: JSON values with names in place of the arrays.

    >>> structure_of({"a": 1, "b": (2, 3)})
    {'dict': {'a': 'a', 'b': {'tuple': ['b_0', 'b_1']}}}
    >>> structure_of([1, 2]), structure_of(1)
    ({'list': ['output_0', 'output_1']}, 'output')
    """
    if isinstance(outputs, dict):
        prefix = f"{name}_" if name else ""
        return {"dict": {k: structure_of(outputs[k], f"{prefix}{k}") for k in sorted(outputs)}}
    if isinstance(outputs, tuple | list):
        kind = "tuple" if isinstance(outputs, tuple) else "list"
        base = name or "output"
        return {kind: [structure_of(value, f"{base}_{n}") for n, value in enumerate(outputs)]}
    return name or "output"


def names_in(structure: Any) -> list[str]:
    """Returns the names in a result of `structure_of`, in order.

    >>> names_in({"dict": {"a": "a", "b": {"tuple": ["b_0", "b_1"]}}})
    ['a', 'b_0', 'b_1']
    """
    if isinstance(structure, str):
        return [structure]
    (content,) = structure.values()
    values = content.values() if isinstance(content, dict) else content
    return [name for value in values for name in names_in(value)]


def _filled(structure: Any, arrays: Iterator[Array]) -> Any:
    if isinstance(structure, str):
        return next(arrays)
    ((kind, content),) = structure.items()
    if kind == "dict":
        return {key: _filled(value, arrays) for key, value in content.items()}
    filled = [_filled(value, arrays) for value in content]
    return tuple(filled) if kind == "tuple" else filled


def read_predictions(directory: str | Path) -> Any:
    """Returns the predictions of a finished job (`--job=predict`), in the order of the examples.

    If memory cannot hold all of them, read the files listed in `predictions.json` one after the
    other: each is a plain `.npy` file.

    Args:
      directory: the job's `--output`.

    Returns:
      Arrays of shape [examples, …], nested as `keras.Model.predict` returns them.

    Raises:
      ConfigurationError: there are no predictions, or the job has not finished.

    Example:

        probabilities = hvd_elastic_keras.read_predictions("jobs/a/predictions")
    """
    directory = Path(directory)
    index = _read_json(directory / INDEX)
    if index is None:
        begun = (directory / IDENTITY).exists()
        state = "were begun, but are not finished" if begun else "are not there"
        raise ConfigurationError(
            f"{directory} was given, but predictions {state}: {INDEX} is missing. Give the "
            "--output of a job that has finished; one that was stopped goes on when it is started "
            "again."
        )
    arrays = [np.empty(output["shape"], output["dtype"]) for output in index["outputs"]]
    for part in index["parts"]:
        for array, name in zip(arrays, part["files"], strict=True):
            array[part["start"] : part["stop"]] = np.load(directory / name, allow_pickle=False)
    return _filled(index["structure"], iter(arrays))


def check_directory(directory: Path, identity: dict[str, Any]) -> bool:
    """Whether the same job has already begun to write predictions to a directory.

    Raises:
      ConfigurationError: the directory holds predictions of another job.
    """
    before = _read_json(directory / IDENTITY)
    if before is None:
        return False
    del before["version"]
    wanted = json.loads(json.dumps(identity))
    other = [n for n in {**before, **wanted} if before.get(n) != wanted.get(n)]
    if other:
        raise ConfigurationError(
            f"--output={directory} was given, which holds predictions that were begun with "
            f"another {' and '.join(other).replace('_', ' ')}. Give another --output, or remove "
            "that directory."
        )
    return True


def begin(directory: Path, identity: dict[str, Any]) -> None:
    """Prepares a directory for a job's predictions, unless the job has already begun with it.

    Args:
      identity: the values that the predictions depend on, as JSON values.

    Raises:
      ConfigurationError: it holds predictions of another job, or cannot be written.
    """
    if check_directory(directory, identity):
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files.write_json(directory / IDENTITY, {"version": VERSION, **identity})
    except OSError as error:
        raise ConfigurationError(
            f"--output={directory} was given, which cannot be written: {error.strerror}."
        ) from error


def _read_json(path: Path) -> dict[str, Any] | None:
    """Returns the content of a file of this version; None if there is no file.

    Raises:
      ConfigurationError: the file is something else.
    """
    content: Any = None
    try:
        content = files.parse_json(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise ConfigurationError(
            f"{path} has format version {version}, expected {VERSION}. Use the release that wrote "
            "it."
        )
    return dict(content)
