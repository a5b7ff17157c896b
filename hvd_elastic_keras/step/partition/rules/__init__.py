"""Rules for TensorFlow's operations. A rule says what an operation does to the rows of a batch.

A rule reads only states, dimensions and constants (`View`), and returns a `Decision`. If an
operation has no rule, every worker computes it from gathered inputs. This is right for any
operation that follows from its inputs alone. So a missing rule costs time. A wrong rule would cost
correctness, so each rule has tests of its own.
"""

from hvd_elastic_keras.step.partition.rules import (
    elementwise,
    joining,
    per_row,
    reductions,
    shapes,
    slices,
)
from hvd_elastic_keras.step.partition.rules.states import Rule

FAMILIES = (elementwise, joining, per_row, reductions, shapes, slices)
RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}
