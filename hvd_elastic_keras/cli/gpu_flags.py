"""The flag of `run` that says which GPUs a worker has."""

from __future__ import annotations

from absl import flags

GPUS_PER_WORKER = flags.DEFINE_integer(
    "gpus_per_worker",
    None,
    "Each worker sees so many GPUs of its host and no others: those of its place there, which goes "
    "to its replacement. Their memory is taken as it is needed. Also for scripts. Default: the "
    "configuration's, else 0, which is that all workers see all.",
    lower_bound=0,
)
