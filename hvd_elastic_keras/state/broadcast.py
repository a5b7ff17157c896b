"""The first phase of a sync: all workers get the state of rank 0, and nothing is assigned.

`match` matches the variables of one state with the variables of another. The names of variables
depend on what else a process has built. So variables are matched by their place: group, position,
shape and dtype.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import METRICS, RAW, Groups
from hvd_elastic_keras.state import packing
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.transfer.arrival import Arrival
from hvd_elastic_keras.worker.transfer.exchange import Exchange
from hvd_elastic_keras.worker.transfer.handshake import new_key

SPECS = "specs"
"""Name of the shapes and dtypes of the variables, among the states of the parts."""
KEY = "key"
"""Name of the secret key of the sync, among the states of the parts."""
COMPARED = "compared"
"""Name of `compare`, among the states of the parts."""

log = logging.getLogger(__name__)

T = TypeVar("T")
Spec = list[Any]
"""Shape and dtype of a variable as JSON: `[[3, 2], "float32"]`."""


def from_root(
    communicator: Communicator,
    *,
    is_root: bool,
    states: Callable[[], dict[str, Any]],
    groups: Groups,
    has_root_state: Callable[[dict[str, Any]], bool],
    name: str,
    compare: bool = False,
    may_be_equal: bool = False,
    may_be_late: Callable[[dict[str, Any]], bool] = lambda _: False,
) -> tuple[dict[str, Any], Arrival]:
    """Returns the states of the parts and the values of the variables of rank 0.

    This is a collective of all workers of the round. Large tensors travel only to workers that lack
    them.

    Args:
      states: returns the states of this worker's parts; called on the root only.
      groups: variables of this worker.
      has_root_state: whether this worker holds the variables that belong to the root's states. If
        so, it may get its own values back.
      name: name of the collectives.
      compare: whether to compare the variables of the workers that say they hold the root's. Only
        the root's answer counts.
      may_be_equal: whether this worker holds variables that no training has changed yet. Where
        workers are compared, they need not travel if they are the root's.
      may_be_late: whether this worker can take part in a step before it has the variables that
        belong to the root's states; called only if it lacks them.

    Raises:
      CollectiveFailedError: a peer went away meanwhile.
      ConfigurationError: rank 0 runs another release.
    """
    with communicator.collective():
        sent = b""
        if is_root:
            mine = {SPECS: specs_of(groups), KEY: new_key(), COMPARED: compare}
            sent = packing.pack({**states(), **mine})
        received = packing.unpack(communicator.broadcast_bytes(sent, name))
        specs = tensor_specs(received[SPECS])
        exchange = Exchange(communicator, is_root, specs, received.pop(KEY), name)
        own = [tf.identity(v) for group in groups.values() for v in group]
        compare = received.pop(COMPARED, False)
        is_equal = compare and may_be_equal and received[SPECS] == specs_of(groups)
        level = is_root or is_equal or has_root_state(received)
        late = not level and may_be_late(received)
        return received, exchange.arrival(
            own, has_root_state=level, compare=compare, may_be_late=late
        )


@dataclasses.dataclass(frozen=True)
class StateOrigin:
    """Words for messages about the source of a state that is to be taken over.

    Attributes:
      name: name of the source.
      remedy: advice if the state does not fit.
      precaution: advice how to make the variables fit.
    """

    name: str
    remedy: str
    precaution: str = ""


BUILD_FIRST = (
    "Build the same model and optimizer before elastic.run: run one step on the first batch before "
    "the state is made."
)
ROOT = StateOrigin(
    "The elastic state of rank 0", "All workers must run the same script.", BUILD_FIRST
)


def specs_of(groups: Groups) -> dict[str, list[Spec]]:
    """Returns shapes and dtypes by group."""
    return {
        name: [[[int(n) for n in v.shape], v.dtype.name] for v in group]
        for name, group in groups.items()
    }


def tensor_specs(specs: dict[str, list[Spec]]) -> list[tf.TensorSpec]:
    """Returns the specs of the variables of all groups, one after the other."""
    return [tf.TensorSpec(shape, dtype) for group in specs.values() for shape, dtype in group]


def match(
    mine: Groups,
    theirs: dict[str, list[Spec]],
    tensors: Sequence[T],
    origin: StateOrigin,
    *,
    made_late: bool,
) -> list[tuple[tf.Variable, T]]:
    """Pairs this worker's variables with the tensors of another state.

    Args:
      made_late: whether one of the two workers may lack variables of metrics and layers, because
        some metrics and layers make theirs at the first batch.

    Raises:
      ConfigurationError: the other state has other variables.
    """
    own = specs_of(mine)
    pairs: list[tuple[tf.Variable, T]] = []
    left = list(tensors)
    for name, specs in theirs.items():
        part, left = left[: len(specs)], left[len(specs) :]
        if own.get(name, []) == specs:
            pairs += zip(mine.get(name, []), part, strict=True)
        elif made_late and name == METRICS:
            log.info("%s holds other metrics: those of this worker stay", origin.name)
        elif made_late and name == RAW and _begins_alike(own.get(name, []), specs):
            log.warning(
                "%s holds %d tf.Variables of layers, this worker %d: only those that both "
                "have are taken over",
                origin.name,
                len(specs),
                len(own.get(name, [])),
            )
            pairs += zip(mine.get(name, []), part, strict=False)
        else:
            raise _mismatch(name, own.get(name, []), specs, origin)
    return pairs


def _begins_alike(first: list[Spec], second: list[Spec]) -> bool:
    common = min(len(first), len(second))
    return first[:common] == second[:common]


def _mismatch(
    name: str, mine: list[Spec], theirs: list[Spec], origin: StateOrigin
) -> ConfigurationError:
    differing = [f"{a} there, {b} here" for a, b in zip(theirs, mine, strict=False) if a != b]
    first = f"; the first difference is {differing[0]}" if differing else ""
    return ConfigurationError(
        f"{origin.name} holds {len(theirs)} variables in the group {name!r}, the state of this "
        f"worker {len(mine)}{first}. {origin.remedy} {origin.precaution}".rstrip()
    )
