"""What is broadcast comes out as it went in, whatever its types, shapes and sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

np = pytest.importorskip("numpy")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.worker.horovod_runtime import FIRST_BYTES, LENGTH_BYTES, Communicator

DTYPES = (
    *(tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64),
    *(tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64),
)
SHAPES = ((), (0,), (3,), (2, 0, 3), (5, 7))


@pytest.fixture(scope="module")
def communicator() -> Iterator[Communicator]:
    made = Communicator("lo", "localhost", 30, master=None)
    made.start_alone()
    yield made
    made.shut_down()


def test_tensors_of_all_types_and_shapes(communicator: Communicator) -> None:
    draw = np.random.default_rng(1)
    tensors = [
        tf.cast(tf.constant(draw.integers(0, 2, shape) * 100.5), dtype)
        for dtype in DTYPES
        for shape in SHAPES
    ]
    found = communicator.broadcast_tensors(tensors, "all")
    for tensor, other in zip(tensors, found, strict=True):
        assert tensor.dtype == other.dtype
        np.testing.assert_array_equal(tensor.numpy(), other.numpy())


def test_no_tensors_at_all(communicator: Communicator) -> None:
    assert communicator.broadcast_tensors([], "none") == []


@pytest.mark.parametrize("size", [0, 1, FIRST_BYTES - LENGTH_BYTES, FIRST_BYTES, 3 * FIRST_BYTES])
def test_bytes_of_any_length(communicator: Communicator, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert communicator.broadcast_bytes(data, f"bytes{size}") == data
