"""One rule for each operation of TensorFlow: what it does to the rows of a batch.

A rule looks at states, dimensions and constants only (`View`), and gives a `Decision`. An
operation without a rule is computed by everybody from gathered inputs, which is right for
whatever follows from its inputs alone. So a missing rule costs time; a wrong rule would cost
correctness, and each has tests of its own.
"""

from hvd_elastic_keras.step.partition.operations.states import Rule
from hvd_elastic_keras.step.partition.rules import (
    assertions,
    blocks,
    contractions,
    draws,
    elementwise,
    joining,
    lists,
    per_row,
    reductions,
    shapes,
    slices,
)

FAMILIES = (
    *(assertions, blocks, contractions, draws, elementwise, joining, lists, per_row, reductions),
    *(shapes, slices),
)
RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}
