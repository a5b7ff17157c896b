"""The form of single examples: their structure, and arrays of many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples.structure import Structure

Array = npt.NDArray[Any]
Leaf = tuple[str, tf.TensorSpec]


class ExampleForm:
    """The form that all examples must have.

    Args:
      spec: structure (tuples and dicts) of `tf.TensorSpec`s of one example.
      name: name of the data, for messages.
    """

    def __init__(self, spec: Structure, name: str) -> None:
        self.spec = spec
        self._name = name
        self._leaves: list[Leaf] = []
        _visit(spec, "", lambda path, leaf: self._leaves.append((path, leaf)))
        for path, leaf in self._leaves:
            if not isinstance(leaf, tf.TensorSpec):
                raise DataError(
                    f"element_spec of {name} has {type(leaf).__name__}{_at(path)}, expected "
                    "tf.TensorSpec. Give dense arrays, numbers or bytes, and make other kinds of "
                    "tensors of them in preprocess."
                )
        self.flat_spec = [leaf for _, leaf in self._leaves]
        self._is_flat = isinstance(spec, tuple) and len(spec) == len(self._leaves)

    @classmethod
    def of(cls, examples: Sequence[Any], name: str) -> ExampleForm:
        """Returns the form that fits all these examples, with None where their shapes differ.

        Raises:
          DataError: the examples differ in more than their shapes.
        """
        specs = [tf.nest.map_structure(_spec_of, _without_lists(e)) for e in examples]
        form = cls(specs[0], name)
        for spec in specs[1:]:
            form = cls(form._merged(spec), name)
        return form

    @property
    def stackable(self) -> bool:
        """Whether all examples have the same shapes."""
        return all(leaf.shape.is_fully_defined() for leaf in self.flat_spec)

    def columns(self, examples: Sequence[Any], indices: Sequence[int]) -> list[Array]:
        """Returns arrays of shape [number of examples, …], one for each place in the structure.

        Args:
          indices: indices of the examples, for messages.

        Raises:
          DataError: an example has another form.
        """
        if len(examples) != len(indices):
            raise DataError(
                f"__getitems__ of {self._name} returned {len(examples)} examples, expected "
                f"{len(indices)}: one for each index."
            )
        rows = [self._flatten(e, i) for e, i in zip(examples, indices, strict=True)]
        columns = zip(*rows, strict=True)
        return [
            self._column(c, leaf, indices) for c, leaf in zip(columns, self._leaves, strict=True)
        ]

    def arrays(self, example: Any, index: int) -> list[Array]:
        """Returns the arrays of one example.

        Raises:
          DataError: the example has another form.
        """
        values = self._flatten(example, index)
        return [
            self._checked(value, leaf, index)
            for value, leaf in zip(values, self._leaves, strict=True)
        ]

    def pack(self, tensors: Sequence[Any]) -> Structure:
        """Returns the structure of an example, or of a batch, from its tensors."""
        return tf.nest.pack_sequence_as(self.spec, list(tensors))

    def _flatten(self, example: Any, index: int) -> Sequence[Any]:
        if self._is_flat and type(example) is tuple and len(example) == len(self._leaves):
            return example
        values: list[Any] = []
        try:
            _visit_along(self.spec, _without_lists(example), values)
        except _MismatchError as mismatch:
            raise self._error(index, str(mismatch)) from None
        return values

    def _column(self, values: Sequence[Any], leaf: Leaf, indices: Sequence[int]) -> Array:
        spec = leaf[1]
        shape = tuple(spec.shape.as_list())
        is_text = spec.dtype == tf.string
        dtype = np.dtype(object if is_text else spec.dtype.as_numpy_dtype)
        column: Array = np.empty((len(values), *shape), dtype)
        if is_text and not shape and all(type(v) is bytes for v in values):
            column[:] = values
            return column
        plain = () if is_text else (np.ndarray, np.generic)
        for row, value in enumerate(values):
            # This quick check suffices for most values. The full check takes longer than the copy.
            fits = isinstance(value, plain) and value.dtype == dtype and value.shape == shape
            # [()] takes the text itself. Without it, an array of objects would hold the array
            # around the text.
            column[row] = value if fits else self._checked(value, leaf, indices[row])[()]
        return column

    def _checked(self, value: Any, leaf: Leaf, index: int) -> Array:
        path, spec = leaf
        array = _to_array(value)
        fits = spec.shape.is_compatible_with(array.shape) and _can_become(array, spec.dtype)
        if not fits:
            raise self._error(
                index,
                f"{_described(array)}{_at(path)}, expected {spec.dtype.name} of shape "
                f"{_shape(spec.shape.as_list())}",
            )
        return array if array.dtype == object else array.astype(spec.dtype.as_numpy_dtype)

    def _error(self, index: int, found: str) -> DataError:
        return DataError(
            f"Example {index} of {self._name} has {found}, as other examples have. All need the "
            "same structure and dtypes. Where shapes may differ, give the source an attribute "
            "element_spec with None in these dimensions; make them equal in preprocess."
        )

    def _merged(self, other: Structure) -> Structure:
        try:
            tf.nest.assert_same_structure(self.spec, other)
        except (ValueError, TypeError):
            raise DataError(
                f"The examples of {self._name} have different structures: {_brief(self.spec)} and "
                f"{_brief(other)}. Give all the same one, for example (x, y)."
            ) from None
        return tf.nest.map_structure(self._merge, self.spec, other)

    def _merge(self, a: tf.TensorSpec, b: tf.TensorSpec) -> tf.TensorSpec:
        if a.dtype != b.dtype or a.shape.rank != b.shape.rank:
            raise DataError(
                f"The examples of {self._name} have different kinds of arrays in the same place: "
                f"{_described_spec(a)} and {_described_spec(b)}. Give the same dtype and number of "
                "dimensions in all examples."
            )
        pairs = zip(a.shape.as_list(), b.shape.as_list(), strict=True)
        return tf.TensorSpec([m if m == n else None for m, n in pairs], a.dtype)


class _MismatchError(Exception):
    """An example has another structure than its spec."""


def _visit(spec: Any, path: str, call: Callable[[str, Any], None]) -> None:
    """Calls `call` with each leaf, in the order of `tf.nest`."""
    if isinstance(spec, dict):
        for key in sorted(spec):
            _visit(spec[key], f"{path}[{key!r}]", call)
    elif isinstance(spec, tuple):
        for number, part in enumerate(spec):
            _visit(part, f"{path}[{number}]", call)
    else:
        call(path, spec)


def _visit_along(spec: Any, value: Any, found: list[Any]) -> None:
    """Collects the values that stand in the places of the leaves of `spec`."""
    if isinstance(spec, dict):
        if not isinstance(value, dict) or value.keys() != spec.keys():
            raise _MismatchError(f"{_kind(value)}, expected a dict with the keys {sorted(spec)}")
        for key in sorted(spec):
            _visit_along(spec[key], value[key], found)
    elif isinstance(spec, tuple):
        if not isinstance(value, tuple) or len(value) != len(spec):
            raise _MismatchError(f"{_kind(value)}, expected a tuple of {len(spec)}")
        for part, inner in zip(spec, value, strict=True):
            _visit_along(part, inner, found)
    elif isinstance(value, dict | tuple):
        raise _MismatchError(f"{_kind(value)}, expected {_described_spec(spec)}")
    else:
        found.append(value)


def _without_lists(example: Any) -> Any:
    """Turns a list [x, y] into a tuple: many data sets return lists. Deeper lists are arrays."""
    return tuple(example) if isinstance(example, list) else example


def _spec_of(value: Any) -> tf.TensorSpec:
    array = _to_array(value)
    return tf.TensorSpec(array.shape, _dtype_of(array))


def _to_array(value: Any) -> Array:
    if isinstance(value, str | bytes):
        scalar: Array = np.empty((), object)
        scalar[()] = value.encode() if isinstance(value, str) else value
        return scalar
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        array = np.empty((), object)
        array[()] = value
    if array.dtype.kind in "SU":
        return array.astype(object)
    # Keras computes in float32, so float64 would only take twice the memory.
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _dtype_of(array: Array) -> tf.DType:
    if array.dtype == object:
        if all(isinstance(v, str | bytes) for v in array.ravel()):
            return tf.string
        what = type(array.ravel()[0]).__name__
        raise DataError(
            f"An example contains {what}, expected arrays, numbers, strings or bytes, in tuples "
            "or dicts."
        )
    return tf.as_dtype(array.dtype)


def _can_become(array: Array, dtype: tf.DType) -> bool:
    if dtype == tf.string:
        return array.dtype == object and all(isinstance(v, str | bytes) for v in array.ravel())
    return array.dtype != object and np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind")


def _described(array: Array) -> str:
    if array.dtype == object and not all(isinstance(v, str | bytes) for v in array.ravel()):
        return type(array.ravel()[0]).__name__
    return f"{_dtype_of(array).name} of shape {_shape(array.shape)}"


def _described_spec(spec: tf.TensorSpec) -> str:
    return f"{spec.dtype.name} of shape {_shape(spec.shape.as_list())}"


def _shape(dims: Sequence[int | None]) -> str:
    return f"({', '.join(map(str, dims))}{',' if len(dims) == 1 else ''})"


def _brief(spec: Structure) -> str:
    return str(tf.nest.map_structure(_described_spec, spec)).replace("'", "")


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {sorted(map(str, value))}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return type(value).__name__


def _at(path: str) -> str:
    return f" at {path}" if path else ""
