"""Random numbers from a seed: each worker can draw all of them, or only its own rows.

Random bits come from a counter-based generator (Philox; Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011), which makes blocks of 128 bits. Any block can be made without the blocks
before it. So a worker draws only its rows if each number takes the same number of bits. These rows
equal the rows of the whole draw, bit for bit. In a graph, the whole is drawn only if an operation
needs it.
"""

from __future__ import annotations

from typing import Any

from hvd_elastic_keras.step.partition.operations.dimensions import rows_axes
from hvd_elastic_keras.step.partition.operations.states import Decision, Rule, View, names

BITS_PER_BLOCK, LEAST_BITS = 128, 32
PHILOX = (1, 3)
"""TensorFlow's numbers of the algorithm. 1 is Philox. With 3, the device chooses: Philox, except on
TPUs."""
KINDS = names(
    """
    StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessRandomUniformIntV2
    StatelessRandomUniformFullIntV2
    """
)
"""Operations that take shape, key, counter and algorithm. (Truncated normal numbers are missing,
because it is unknown how many bits they take.)"""


def draws(op: Any) -> bool:
    """Whether an operation makes random numbers from a seed."""
    return op.type.startswith("Stateless") and "key" in (a.name for a in op.op_def.input_arg)


def numbers_per_block(op: Any) -> int:
    """Returns how many numbers are made from one block."""
    return BITS_PER_BLOCK // max(LEAST_BITS, 8 * int(op.outputs[0].dtype.size))


def draw(v: View) -> Decision:
    """Gives a worker the whole draw and its own rows, if rows lie along the first axis."""
    decision = v.replicated()
    algorithm = v.const(3)
    # The low half of a counter from a seed is 0.
    from_seed = v.op.inputs[2].op.type == "StatelessRandomGetKeyCounter"
    if rows_axes(v.odims[0]) != [0] or not from_seed or algorithm not in PHILOX:
        return decision
    return Decision(decision.want, decision.out, how="draw")


RULES: dict[str, Rule] = dict.fromkeys(KINDS, draw)
