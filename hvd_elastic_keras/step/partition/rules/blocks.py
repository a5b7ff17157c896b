"""Images cut into small images, as TensorFlow computes dilated convolutions: filters with holes.

`SpaceToBatchND` makes k small images of each image. The first small images of all images come
first, so rows lie within blocks of the first axis. Right after a dilated convolution, TensorFlow
puts the small images together again.
"""

from __future__ import annotations

from hvd_elastic_keras.step.partition.operations.states import (
    PARTIAL,
    Decision,
    Rule,
    View,
    in_blocks,
    sharded,
)


def into_blocks(v: View) -> Decision:
    """`SpaceToBatchND(images, block_shape, paddings)`: linear; cuts each image by itself."""
    number = _number_of_blocks(v)
    if v.ins[0] == PARTIAL:
        return v.only(0, PARTIAL)
    if v.ins[0] == sharded(0) and number is not None:
        return v.only(0, in_blocks(number))
    return v.replicated("along the rows")


def out_of_blocks(v: View) -> Decision:
    """`BatchToSpaceND(images, block_shape, crops)`."""
    number = _number_of_blocks(v)
    if v.ins[0] == PARTIAL:
        return v.only(0, PARTIAL)
    if number is not None and v.ins[0] == in_blocks(number):
        return v.only(0, sharded(0))
    return v.replicated("along the rows")


def _number_of_blocks(v: View) -> int | None:
    shape = v.const(1)
    return None if shape is None else int(shape.prod())


RULES: dict[str, Rule] = {"SpaceToBatchND": into_blocks, "BatchToSpaceND": out_of_blocks}
