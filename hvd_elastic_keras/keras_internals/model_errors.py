"""Finds what to change, from an error of Keras or TensorFlow on a model, its loss or its data."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

UNKNOWN_SIZE = (
    r"None values not supported",
    r"Expected int\d+, but got None of type 'NoneType'",
    r"unsupported operand type\(s\) for \S+: .*'NoneType'",
    r"Cannot convert .*None.* to (a )?(Tensor|EagerTensor|integer)",
    r"'NoneType' object cannot be interpreted as an integer",
    r"[Cc]annot convert a partially known TensorShape",
)
"""Errors of code that computes with x.shape[0] while a step is traced."""
_INTEGERS_WANTED = (
    r"has DataType b?float\d+ not in list of allowed values: .*int",
    r"was expected to be an? u?int\d+ tensor but is an? (float|double|half|bfloat16)",
    r"must be (an )?integers?\b|integer (labels|dtype|tensor)",
    r"Value for attr '\w+' of (float|double|half) is not in the list of allowed values: .*int",
    r"Attempt to convert a value .* with an unsupported type .*float.* to .*int",
    r"Tensor conversion requested dtype int\d+ for Tensor with dtype float",
)
_REMEDIES = (
    (
        _INTEGERS_WANTED,
        "Keras gives the targets to a loss as floating-point numbers, whatever the data hold: in a "
        "loss of your own, cast them with tf.cast(y_true, tf.int64), or use "
        "keras.losses.SparseCategoricalCrossentropy.",
    ),
    (
        (r"must have rank \(ndim\) `target\.ndim - 1`",),
        "The targets have one number per class (one-hot), and the loss expects the number of the "
        "class: use CategoricalCrossentropy, or give np.argmax(y, -1).",
    ),
    (
        (r"`target` and `output` must have the same rank",),
        "The targets are one number per example, and the loss expects as many as the model's "
        "output has: for numbers of classes use SparseCategoricalCrossentropy or "
        "keras.utils.to_categorical(y); for one number, let the model end with Dense(1).",
    ),
    (
        (r"y_true and y_pred have different structures", r"got a of type 'str'"),
        "Give targets in the structure of the model's outputs: a dict with the same keys, or a "
        "list of as many.",
    ),
    (
        (r"in the `loss` argument, can't be found",),
        "The model has several outputs: give a target for each, and losses by the same names, for "
        'example compile(loss={"a": "mse", "b": "mse"}) and y={"a": ..., "b": ...}.',
    ),
    (
        (r"No loss to compute",),
        "Give model.compile() a loss, or let a layer call add_loss().",
    ),
    (
        (r"label value of -9223372036854775808",),
        "Targets are NaN: look for missing values, for example with np.isnan(y).",
    ),
    (
        (r"label value of -?\d+ which is outside the valid range",),
        "Number the classes from 0, and give the model an output for each.",
    ),
    (
        (r"Cast string to \w+ is not supported",),
        "Make numbers of texts: np.unique(y, return_inverse=True)[1] of labels, "
        "keras.layers.StringLookup or TextVectorization of others.",
    ),
    (
        (r"has no attribute 'numpy'", r"numpy\(\) is only available when eager execution"),
        "Code that asks for values while a step is traced runs only eagerly, in plain Keras with "
        "run_eagerly=True. Several workers trace their steps: use operations on tensors, or "
        "tf.numpy_function in a metric.",
    ),
    (
        UNKNOWN_SIZE,
        "The number of examples is not known while a model is traced: take it from the data, with "
        "keras.ops.shape(x)[0] in place of x.shape[0].",
    ),
    (
        (r"Dimensions must be equal", r"Incompatible shapes", r"must have the same shape"),
        "Give targets of the shape of the model's outputs, or let it end with another layer.",
    ),
)
"""The first entry that fits counts."""


def remedy(says: str, batch_spec: Any) -> str | None:
    """Returns what to change, in one or two sentences; None if only the error's text tells it.

    Args:
      says: the text of an error.
      batch_spec: specs of a batch.
    """
    leaves = [leaf for leaf in tf.nest.flatten(batch_spec) if leaf is not None]
    if not isinstance(batch_spec, tuple | list):
        return "There are no targets: give (inputs, targets)."
    for patterns, text in _REMEDIES:
        if any(re.search(pattern, says) for pattern in patterns):
            return text
    if any(leaf.dtype == tf.string for leaf in leaves):
        return (
            "Examples are bytes or strings: make numbers of them, for example by giving "
            "(source, preprocess) with a function that parses one example."
        )
    if any(len(leaf.shape) > 1 and leaf.shape[1] is None for leaf in leaves):
        return "If the dataset has batches already, leave batch() out: give single examples."
    return None
