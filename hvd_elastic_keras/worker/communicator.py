"""All of Horovod's runtime calls: initialise, shut down, collectives, and ending a blocked one."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import threading
from collections.abc import Iterator, Sequence

import horovod.tensorflow as hvd
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hvd_elastic_keras import env, timeline
from hvd_elastic_keras.errors import CollectiveFailedError
from hvd_elastic_keras.protocol import ALONE, Assignment
from hvd_elastic_keras.worker import sockets

log = logging.getLogger(__name__)

PATCHED = "hvdelastic"
"""Part of the version of a Horovod built by `scripts/build_horovod_wheel` (see BUILD.md)."""

FAILURES = (
    tf.errors.UnknownError,
    tf.errors.FailedPreconditionError,
    tf.errors.CancelledError,
    tf.errors.AbortedError,
    hvd.HorovodInternalError if hasattr(hvd, "HorovodInternalError") else tf.errors.UnknownError,
)
"""What a collective raises when a peer is gone. The type is what counts: the texts vary with the
moment of the failure, and a grouped operation after a shutdown does not name Horovod at all."""
USER_ERROR_MARK = "Traceback (most recent call last)"
"""In the text of an `UnknownError` that comes from the user's `tf.py_function`."""


class Communicator:
    """Horovod's world of one worker, one round after the other.

    Args:
      iface: network interface for Gloo.
      hostname: name of this host in the job.
      gloo_timeout_s: seconds until Gloo itself gives up a silent peer.
      master: (host, port) of the master, whose connections are never shut down.
      timeline_dir: where rank 0 writes Horovod's timeline of each round; empty writes none.
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
        self._master = master
        self._timeline_dir = timeline_dir
        self._lock = threading.Lock()
        self._round = 0
        self._known: sockets.SocketSet = frozenset()
        self._initialising = False
        self._own: sockets.SocketSet = frozenset()
        if PATCHED not in importlib.metadata.version("horovod"):
            log.warning(
                "This Horovod ends the whole process if a peer is lost during hvd.init(). "
                "scripts/build_horovod_wheel makes one that does not."
            )
        env.set_variables(
            {
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": iface,
                "HOROVOD_HOSTNAME": hostname,
                "HOROVOD_GLOO_TIMEOUT_SECONDS": str(gloo_timeout_s),
                # Horovod would open a file given here once only, in the first round.
                **({"HOROVOD_TIMELINE": "DYNAMIC"} if timeline_dir else {}),
            }
        )
        # A lost peer is an everyday event here: Horovod's own error lines would alarm people.
        env.set_defaults({"HOROVOD_CYCLE_TIME": "1", "HOROVOD_LOG_LEVEL": "fatal"})

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
        self.shut_down()  # a script may have initialised it for itself
        self._set_place(ALONE)
        hvd.init()

    def start(self, place: Assignment) -> None:
        """Initialises Horovod for a round.

        Raises:
          CollectiveFailedError: a peer went away meanwhile, or the round was closed.
        """
        self.shut_down()  # a script may have initialised it for itself
        with self._lock:
            self._round = place.round
            self._known = sockets.open_sockets()
            self._initialising = True
        self._set_place(place)
        try:
            hvd.init()
        except ValueError as error:
            raise CollectiveFailedError(f"Horovod could not be initialised: {error}") from error
        finally:
            with self._lock:
                self._own = sockets.open_sockets() - self._known
                self._initialising = False
        if self._timeline_dir and place.rank == 0:
            hvd.start_timeline(str(timeline.file_of_round(self._timeline_dir, place.round)))

    def shut_down(self) -> None:
        """Leaves the present round; nothing happens if there is none."""
        hvd.shutdown()
        with self._lock:
            self._own = frozenset()

    def abort(self, through_round: int) -> bool:
        """Makes collectives of a round up to `through_round` fail. Called from another thread.

        Returns whether the round is still being initialised: new sockets may yet come up then, so
        that the call should be repeated.
        """
        with self._lock:
            if not 0 < self._round <= through_round:
                return False
            mine = sockets.open_sockets() - self._known if self._initialising else self._own
            sockets.shut_down(mine, except_peer=self._master)
            return self._initialising

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Turns a failure of the collective inside into `CollectiveFailedError`."""
        try:
            yield
        except FAILURES as error:
            if USER_ERROR_MARK in str(error) and "Horovod" not in str(error):
                raise
            raise CollectiveFailedError(f"a collective failed: {_summary(error)}") from error

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Keeps collectives in graphs that are traced at world size 1.

        Horovod leaves them out there unless this variable is set; during `hvd.init()` it must not
        be, or Horovod asks its own elastic driver for a rank.
        """
        env.set_variables({"HOROVOD_ELASTIC": "1"})
        try:
            yield
        finally:
            env.set_variables({"HOROVOD_ELASTIC": None})

    def broadcast_bytes(self, data: bytes, name: str) -> bytes:
        """Gives everybody the bytes of rank 0 (of any length)."""
        mine = np.frombuffer(data, np.uint8)
        length = self._broadcast(np.array([mine.size], np.int64), f"{name}.length")
        buffer = np.zeros(int(length[0]), np.uint8)
        if self.rank == 0:
            buffer[:] = mine
        return self._broadcast(buffer, f"{name}.bytes").tobytes()

    def broadcast_tensors(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Gives everybody the tensors of rank 0, in fresh tensors: one collective per dtype."""
        result: list[tf.Tensor | None] = [None] * len(tensors)
        by_dtype: dict[str, list[int]] = {}
        for index, tensor in enumerate(tensors):
            by_dtype.setdefault(tensor.dtype.name, []).append(index)
        for dtype, indices in sorted(by_dtype.items()):
            flat = tf.concat([tf.reshape(transportable(tensors[i]), [-1]) for i in indices], 0)
            received = hvd.broadcast(flat, 0, name=f"{name}.{dtype}")
            sizes = [int(np.prod(tensors[i].shape)) for i in indices]
            for i, part in zip(indices, tf.split(received, sizes), strict=True):
                result[i] = tf.reshape(restored(part, tensors[i].dtype), tensors[i].shape)
        return [tensor for tensor in result if tensor is not None]

    def any_true(self, flag: bool, name: str) -> bool:
        """Whether the flag is true on any worker."""
        return bool(hvd.allreduce(tf.constant([float(flag)]), op=hvd.Sum, name=name).numpy()[0] > 0)

    def barrier(self, name: str) -> None:
        """Returns when all workers of the round have come here."""
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
                # Only a part of the path for us: the address holds host and port already.
                "HOROVOD_GLOO_RENDEZVOUS_PORT": "1" if place.rendezvous else None,
                # During hvd.init() it would mean Horovod's own driver; see `tracing`.
                "HOROVOD_ELASTIC": None,
            }
        )


def _summary(error: Exception) -> str:
    """The line of a long TensorFlow error that tells most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "gloo" in line or line.startswith("Horovod")]
    return (telling or lines or [type(error).__name__])[0][:200]


def transportable(tensor: tf.Tensor) -> tf.Tensor:
    """Horovod cannot broadcast some dtypes: they travel as integers of the same width."""
    if tensor.dtype == tf.bool:
        return tf.cast(tensor, tf.uint8)
    if tensor.dtype == tf.uint32:
        return tf.bitcast(tensor, tf.int32)
    if tensor.dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    return tensor


def restored(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(tensor, tf.bool)
    return tf.bitcast(tensor, dtype) if dtype in (tf.uint32, tf.uint64) else tensor
