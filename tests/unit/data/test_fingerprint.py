"""Fingerprints of batches: as they always were, in little memory."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.data.examples import structure


def in_one_piece(array: Any) -> list[Any]:
    """As older releases computed it, whose checkpoints are still read."""
    flat = array.astype(np.float64).ravel()
    weights = np.cos(np.arange(flat.size))
    return [list(array.shape), [float(np.abs(flat).sum()), float(np.dot(flat, weights))]]


@pytest.mark.parametrize("shape", [(0, 3), (7,), (8, 8), (13, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_pieces_make_the_same_fingerprint(
    shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structure, "SUMMED_AT_ONCE", 8)
    batch = np.random.default_rng(0).normal(size=shape, scale=50).astype(dtype)
    (found,) = structure.fingerprint(batch)
    expected = in_one_piece(batch)
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-9)


def test_texts_have_the_checksum_of_all_together() -> None:
    texts = [b"a", b"", "ü".encode(), b"\0b"]
    ((shape, (crc,)),) = structure.fingerprint(tf.constant(texts))
    assert (shape, crc) == ([4], zlib.crc32(b"\0".join(texts)))


def test_a_large_batch_takes_little_memory() -> None:
    batch = np.ones((100, 100_000), np.float32)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    structure.fingerprint(batch)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < batch.nbytes / 2


def test_another_order_makes_another_fingerprint() -> None:
    batch = np.random.default_rng(0).random((16, 4))
    found = structure.fingerprint(batch)
    assert structure.same_fingerprint(found, structure.fingerprint(batch * (1 + 1e-6)))
    assert not structure.same_fingerprint(found, structure.fingerprint(batch[::-1]))
