"""The first phase of a sync: all workers get the state of rank 0, and nothing is assigned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.keras_internals.model_variables import Groups
from hvd_elastic_keras.state import packing
from hvd_elastic_keras.state.matched_variables import specs_of, tensor_specs
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.transfer.arrival import Arrival
from hvd_elastic_keras.worker.transfer.exchange import Exchange
from hvd_elastic_keras.worker.transfer.handshake import new_key

SPECS = "specs"
"""Name of the shapes and dtypes of the variables, among the states of the parts."""
KEY = "key"
"""Name of the secret key of the sync, among the states of the parts."""


def from_root(
    communicator: Communicator,
    *,
    is_root: bool,
    states: Callable[[], dict[str, Any]],
    groups: Groups,
    has_root_state: Callable[[dict[str, Any]], bool],
    name: str,
    compare: bool = False,
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
      compare: whether to compare the variables of the workers that say they hold the root's.
      may_be_late: whether this worker can take part in a step before it has the variables that
        belong to the root's states; called only if it lacks them.

    Raises:
      CollectiveFailedError: a peer went away meanwhile.
      ConfigurationError: rank 0 runs another release.
    """
    with communicator.collective():
        mine = {**states(), SPECS: specs_of(groups), KEY: new_key()} if is_root else None
        sent = b"" if mine is None else packing.pack(mine)
        received = packing.unpack(communicator.broadcast_bytes(sent, name))
        specs = tensor_specs(received[SPECS])
        exchange = Exchange(communicator, is_root, specs, received.pop(KEY), name)
        own = [tf.identity(v) for group in groups.values() for v in group]
        level = is_root or has_root_state(received)
        late = not level and may_be_late(received)
        return received, exchange.arrival(
            own, has_root_state=level, compare=compare, may_be_late=late
        )
