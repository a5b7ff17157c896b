"""The first phase of a sync: all come to the state of rank 0, and nothing is assigned."""

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
"""Shapes and dtypes of the variables, among the states of the parts."""
KEY = "key"
"""Of the sync, among them, too."""


def from_root(
    communicator: Communicator,
    *,
    is_root: bool,
    states: Callable[[], dict[str, Any]],
    groups: Groups,
    is_level: Callable[[dict[str, Any]], bool],
    name: str,
    compare: bool = False,
    may_be_late: Callable[[dict[str, Any]], bool] = lambda _: False,
) -> tuple[dict[str, Any], Arrival]:
    """States of the parts and values of the variables of rank 0.

    A collective of all workers of the round. Large tensors travel to those only who lack them.

    Args:
      states: gives those of this worker, which only the root is asked for.
      groups: variables of this worker.
      is_level: whether this worker holds the variables that belong to these states of the root;
        then it may get its own values back.
      name: of the collectives.
      compare: whether to compare what workers hold that say so.
      may_be_late: whether this worker, which lacks the variables that belong to these states, can
        take part in a step before it has them.

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
        level = is_root or is_level(received)
        late = not level and may_be_late(received)
        return received, exchange.arrival(own, is_level=level, compare=compare, may_be_late=late)
