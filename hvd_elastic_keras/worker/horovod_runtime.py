"""All calls of Horovod's runtime: initialise, shut down, collectives, and ending a blocked one."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import horovod.tensorflow as hvd
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.common.protocol import ALONE, Assignment
from hvd_elastic_keras.common.versions import patch_revision
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker import network
from hvd_elastic_keras.worker.tensor_bytes import (
    bytes_of,
    given_or_zeros,
    of_bytes,
    restored,
    tensor_bytes,
    transportable,
)

log = logging.getLogger(__name__)

LARGE_BYTES = 4 * 2**20
"""Size from which on a tensor is broadcast by itself."""
FUSED_BYTES = 16 * 2**20
"""Most bytes of tensors that Horovod copies into one buffer, to send them together. A worker keeps
this buffer. It has 128 MB if Horovod is not told otherwise, but more than this saves no time, and a
larger tensor travels without being copied."""
FAILURES = (
    tf.errors.UnknownError,
    tf.errors.FailedPreconditionError,
    tf.errors.CancelledError,
    tf.errors.AbortedError,
    hvd.HorovodInternalError if hasattr(hvd, "HorovodInternalError") else tf.errors.UnknownError,
)
"""Errors that a collective raises when a peer is gone.

Only the type counts: the texts vary with the moment of the failure, and a grouped operation after a
shutdown does not name Horovod at all."""
USER_ERROR_MARK = "Traceback (most recent call last)"
"""Part of the text of an `UnknownError` that comes from the user's `tf.py_function`."""


LENGTH_BYTES = 8
FIRST_BYTES = 2**16
"""Size of the first collective of a broadcast: the length, and as many bytes as fit.

Short data need no second collective, which takes long between far hosts."""
WORD_BYTES = 8


class Communicator:
    """Horovod's world of one worker, one round after the other.

    Args:
      iface: network interface for Gloo; empty lets Gloo choose.
      hostname: name of this host in the job.
      gloo_timeout_s: seconds until Gloo itself gives up a silent peer.
      master: (host, port) of the master, whose connections are never shut down.
      timeline_dir: directory in which rank 0 writes Horovod's timeline of each round; if empty, no
        timeline is written.
    """

    def __init__(
        self,
        iface: str,
        hostname: str,
        gloo_timeout_s: int,
        *,
        master: tuple[str, int] | None,
        timeline_dir: str = "",
    ) -> None:
        self.iface, self.gloo_timeout_s = iface, gloo_timeout_s
        self._master = master
        self._timeline_dir = timeline_dir
        self._lock = threading.Lock()
        self.in_collective = False
        """Whether the training thread takes a step, or waits with the other workers."""
        self._computing = _never
        self._round = 0
        self._known: network.SocketSet = frozenset()
        self._initialising = False
        self._own: network.SocketSet = frozenset()
        self._aborted = False
        self.reaches_all = True
        """False once a member could not connect to another one by a socket beside Gloo's."""
        revision = patch_revision(importlib.metadata.version("horovod"))
        if not revision:
            log.warning(
                "This Horovod ends the whole process if a peer is lost during hvd.init(). "
                "scripts/build_horovod_wheel makes one that does not."
            )
        env.set_variables(
            {
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": iface or None,
                "HOROVOD_HOSTNAME": hostname,
                "HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout_s),
                # A file given here would be opened only once, in the first round.
                **({"HOROVOD_TIMELINE": "DYNAMIC"} if timeline_dir else {}),
            }
        )
        env.set_defaults(
            {
                "HOROVOD_CYCLE_TIME": "1",
                # Before this revision, the next `hvd.init()` would end the process.
                **({"HOROVOD_FUSION_THRESHOLD": str(FUSED_BYTES)} if revision >= 9 else {}),
                # A lost peer is an everyday event here: Horovod's own error lines would alarm
                # people.
                "HOROVOD_LOG_LEVEL": "fatal",
            }
        )

    @property
    def rank(self) -> int:
        """Rank in the present round."""
        return int(hvd.rank())

    @property
    def size(self) -> int:
        """Number of workers in the present round."""
        return int(hvd.size())

    def start_alone(self) -> None:
        """Initialises Horovod with this process as its whole world."""
        self.shut_down()  # a script may have initialised Horovod for itself
        self._set_place(ALONE)
        hvd.init()

    def start(self, place: Assignment) -> None:
        """Initialises Horovod for a round.

        Raises:
          CollectiveFailedError: a peer went away meanwhile, or the round was closed.
        """
        self.shut_down()  # a script may have initialised Horovod for itself
        with self._lock:
            self._round = place.round
            self._known = network.open_sockets()
            self._initialising, self._aborted = True, False
        self._set_place(place)
        try:
            hvd.init()
        except ValueError as error:
            raise CollectiveFailedError(f"Horovod could not be initialised: {error}") from error
        finally:
            with self._lock:
                self._own = network.open_sockets() - self._known
                self._initialising = False
        if self._timeline_dir and place.rank == 0:
            hvd.start_timeline(str(files.timeline_of_round(self._timeline_dir, place.round)))

    def shut_down(self) -> None:
        """Leaves the present round. Does nothing if there is none."""
        hvd.shutdown()
        with self._lock:
            self._own = frozenset()

    def abort(self, through_round: int) -> bool:
        """Makes collectives of a round up to `through_round` fail. Called from another thread.

        Returns whether the round is still being initialised. If so, new sockets may still be
        opened, and the call should be repeated.
        """
        with self._lock:
            if not 0 < self._round <= through_round:
                return False
            self._aborted = True
            mine = network.open_sockets() - self._known if self._initialising else self._own
            network.shut_down_sockets(mine, except_peer=self._master)
            return self._initialising

    def keep(self, connection: socket.socket) -> None:
        """Adds a socket to the present round, so that `abort` ends its traffic.

        Raises:
          ConnectionAbortedError: the round was aborted before.
        """
        with self._lock:
            self._own |= {network.named_socket(connection)}
            if self._aborted:
                raise ConnectionAbortedError("the round was closed")

    @property
    def address(self) -> str:
        """Address at which other members reach this one, as over Gloo; empty if unknown."""
        return network.first_address(self.iface, network.addresses())

    def computing(self) -> bool:
        """Whether this worker computes its part of a step, for which the others may wait."""
        return self._computing()

    @contextlib.contextmanager
    def collective(self, computing: Callable[[], bool] | None = None) -> Iterator[None]:
        """Turns a failure of the collective inside into `CollectiveFailedError`.

        Args:
          computing: returns whether this worker is still computing before the collective. It is
            called from any thread.
        """
        self.in_collective, self._computing = True, computing or _never
        try:
            yield
        except FAILURES as error:
            if USER_ERROR_MARK in str(error) and "Horovod" not in str(error):
                raise
            raise CollectiveFailedError(f"a collective failed: {_summary(error)}") from error
        finally:
            self.in_collective, self._computing = False, _never

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Keeps collectives in graphs that are traced at world size 1.

        Horovod leaves them out at that size unless `HOROVOD_ELASTIC` is set. During `hvd.init()` it
        must not be set, or Horovod asks its own elastic driver for a rank.
        """
        env.set_variables({"HOROVOD_ELASTIC": "1"})
        try:
            yield
        finally:
            env.set_variables({"HOROVOD_ELASTIC": None})

    def broadcast_bytes(self, data: bytes, name: str) -> bytes:
        """Returns the bytes of rank 0, of any length, on all workers."""
        mine = len(data).to_bytes(LENGTH_BYTES, "little") + data if self.rank == 0 else b""
        first = self._broadcast(_padded(mine[:FIRST_BYTES], FIRST_BYTES), f"{name}.first").tobytes()
        end = LENGTH_BYTES + int.from_bytes(first[:LENGTH_BYTES], "little")
        if end > FIRST_BYTES:
            rest = _padded(mine[FIRST_BYTES:], end - FIRST_BYTES)
            first += self._broadcast(rest, f"{name}.rest").tobytes()
        return first[LENGTH_BYTES:end]

    def broadcast_tensors(
        self, tensors: Sequence[tf.Tensor | tf.TensorSpec], name: str
    ) -> list[tf.Tensor]:
        """Returns the tensors of rank 0 on all workers, in fresh tensors.

        Each large tensor travels by itself. That saves one copy, and needs no memory for all of
        them at once. All other tensors travel together, whatever their dtypes.

        Args:
          tensors: the tensors on rank 0. The other ranks may give specs instead.
        """
        result: dict[int, tf.Tensor] = {}
        small: list[int] = []
        for index, tensor in enumerate(tensors):
            if bytes_of(tensor) >= LARGE_BYTES:
                sent = transportable(given_or_zeros(tensor))
                received = hvd.broadcast(sent, 0, name=f"{name}.{index}")
                result[index] = restored(received, tensor.dtype)
            else:
                small.append(index)
        parts = [given_or_zeros(tensors[index]) for index in small]
        result.update(zip(small, self._broadcast_together(parts, f"{name}.small"), strict=True))
        return [result[index] for index in range(len(tensors))]

    def _broadcast_together(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        if not tensors:
            return []
        parts = [tensor_bytes(tensor) for tensor in tensors]
        sizes = [int(part.shape[0]) for part in parts]
        padding = -sum(sizes) % WORD_BYTES
        words = tf.reshape(tf.concat([*parts, tf.zeros([padding], tf.uint8)], 0), [-1, WORD_BYTES])
        # Gloo counts elements in 32 bits, and there could be more bytes than that.
        received = hvd.broadcast(tf.bitcast(words, tf.int64), 0, name=name)
        flat = tf.reshape(tf.bitcast(received, tf.uint8), [-1])
        found = tf.split(flat, tf.constant([*sizes, padding], tf.int64))[: len(tensors)]
        return [of_bytes(part, like) for part, like in zip(found, tensors, strict=True)]

    def any_true(self, flag: bool, name: str) -> bool:
        """Whether the flag is true on any worker."""
        return bool(hvd.allreduce(tf.constant([float(flag)]), op=hvd.Sum, name=name).numpy()[0] > 0)

    def gather(self, rows: npt.NDArray[np.float64], name: str) -> list[npt.NDArray[np.float64]]:
        """Returns the rows of all workers by rank, on all workers.

        Args:
          rows: shape [n, k]. Each worker may have a different n, which is not 0.
        """
        mine = np.concatenate([np.full([len(rows), 1], self.rank, np.float64), rows], 1)
        found = hvd.allgather(tf.constant(mine), name=name).numpy()
        return [found[found[:, 0] == rank, 1:] for rank in range(self.size)]

    def gather_bytes(self, data: bytes, name: str) -> list[bytes]:
        """Returns the bytes of all workers by rank, on all workers. No worker's may be empty."""
        rows = np.frombuffer(data, np.uint8).astype(np.float64)[:, np.newaxis]
        return [found.astype(np.uint8).tobytes() for found in self.gather(rows, name)]

    def barrier(self, name: str) -> None:
        """Returns when all workers of the round have called it."""
        hvd.allreduce(tf.zeros([1]), op=hvd.Sum, name=name).numpy()

    def _broadcast(self, array: npt.NDArray[np.generic], name: str) -> npt.NDArray[np.generic]:
        received: npt.NDArray[np.generic] = hvd.broadcast(tf.constant(array), 0, name=name).numpy()
        return received

    def _set_place(self, place: Assignment) -> None:
        env.set_variables(
            {
                "HOROVOD_RANK": str(place.rank),
                "HOROVOD_SIZE": str(place.size),
                "HOROVOD_LOCAL_RANK": str(place.local_rank),
                "HOROVOD_LOCAL_SIZE": str(place.local_size),
                "HOROVOD_CROSS_RANK": str(place.cross_rank),
                "HOROVOD_CROSS_SIZE": str(place.cross_size),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.rendezvous or None,
                # Becomes a part of the path only: the address already holds host and port.
                "HOROVOD_GLOO_RENDEZVOUS_PORT": "1" if place.rendezvous else None,
                # If it were set during hvd.init(), Horovod would use its own driver; see `tracing`.
                "HOROVOD_ELASTIC": None,
            }
        )


def _never() -> bool:
    return False


def _summary(error: Exception) -> str:
    """Returns the most useful line of a long TensorFlow error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "gloo" in line or line.startswith("Horovod")]
    return (telling or lines or [type(error).__name__])[0][:200]


def _padded(data: bytes, size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data.ljust(size, b"\0"), np.uint8)
