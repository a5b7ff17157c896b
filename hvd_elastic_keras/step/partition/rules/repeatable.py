"""Finds operations that other workers cannot repeat: they depend on more than their inputs."""

from __future__ import annotations

from typing import Any

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.tensorflow_names import op_def_registry
from hvd_elastic_keras.keras_internals.traced_graphs import nodes_within
from hvd_elastic_keras.step.partition.rules.states import names

DRAWS = (
    *("Random", "Multinomial", "ParameterizedTruncated", "TruncatedNormal", "SampleDistorted"),
    *("Stateful", "Rng", "NonDeterministic"),
)
"""Beginnings of the names of operations that draw from a state, if they have one."""
SAMPLER = "CandidateSampler"
POOLS = frozenset(("FractionalMaxPool", "FractionalAvgPool"))
"""Operations that draw random numbers, although TensorFlow does not list them as stateful."""
REPEATABLE = names(
    """
    StatefulPartitionedCall If While Case EagerPyFunc PyFunc CheckNumerics CheckNumericsV2 Assert
    Print PrintV2 LookupTableFindV2 LookupTableSizeV2 LookupTableExportV2 StatelessRandomGetAlg
    GuaranteeConst DeviceIndex Empty SummaryWriter FlushSummaryWriter WriteSummary
    WriteScalarSummary WriteHistogramSummary WriteImageSummary WriteAudioSummary
    WriteRawProtoSummary WriteGraphSummary ReadVariableOp VariableShape VarIsInitializedOp
    AssignVariableOp AssignAddVariableOp AssignSubVariableOp
    """
)
"""Stateful operations that do the same on all workers if their inputs are the same. Tables are
filled before training. For Python code, the user's word is trusted."""
REFUSED_DRAW = (
    "The model draws random numbers with the operation {kind} ({name}), which cannot be made the "
    "same on all workers, expected keras.random, with or without a SeedGenerator, or "
    "tf.random.stateless_*. (A tf.random.Generator and tf.raw_ops are such cases.)"
)


def unrepeatable(op: Any) -> str:
    """Returns why other workers cannot repeat an operation; empty if they can.

    Raises:
      ConfigurationError: the operation draws random numbers from a state.
    """
    for node in nodes_within(op):
        if _draws(node):
            raise ConfigurationError(REFUSED_DRAW.format(kind=node.op, name=node.name))
        if _is_stateful(node) and node.op not in REPEATABLE:
            return (
                f"{node.op} ({node.name}) follows from a state of its process, which no other "
                "worker has"
            )
    return ""


def _draws(node: Any) -> bool:
    if node.op in POOLS:
        return not node.attr["deterministic"].b
    may_draw = node.op.startswith(DRAWS) or node.op.endswith(SAMPLER)
    return may_draw and _is_stateful(node) and node.op not in REPEATABLE


def _is_stateful(node: Any) -> bool:
    definition = op_def_registry.get(node.op)  # None: a call of a function by its name
    on_variable = node.op.startswith("Resource")
    return definition is not None and definition.is_stateful and not on_variable
