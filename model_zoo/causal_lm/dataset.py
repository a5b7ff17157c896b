"""Texts for a language model: Python's manual, or tiny Shakespeare from tensorflow-datasets."""

from __future__ import annotations

import ml_collections
import numpy as np
import numpy.typing as npt

from hvd_elastic_keras import TfdsSource
from model_zoo import python_texts

HELD_OUT = 0.1
"""Share of the language reference, at its end, that is used for validation."""
Tokens = npt.NDArray[np.int32]


def dataset(split: str, config: ml_collections.ConfigDict, data_dir: str) -> tuple[Tokens, Tokens]:
    """Returns windows of bytes, int32 [n, config.length], and the same windows one byte later."""
    text = np.frombuffer(_text(split, config, data_dir), np.uint8)
    stride = config.stride if split == "train" else config.length
    windows = np.lib.stride_tricks.sliding_window_view(text, config.length + 1)[::stride]
    tokens = windows.astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


def _text(split: str, config: ml_collections.ConfigDict, data_dir: str) -> bytes:
    if config.dataset == "python_manual":
        text = python_texts.manual().encode()
        end = int(len(text) * (1 - HELD_OUT))
        return text[:end] if split == "train" else text[end:]
    source = TfdsSource(config.dataset, split, data_dir)
    records = source.__getitems__(range(len(source)))
    texts = [source.decode(record)["text"].numpy() for record in records]
    return b"\n\n".join(texts)
