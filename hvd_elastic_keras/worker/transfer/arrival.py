"""The tensors that a member of a round gets in a sync: they are there, or on their way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent import futures

import tensorflow as tf

Fetch = Callable[[], list[tf.Tensor]]


class Arrival:
    """The root's tensors, for one member.

    Args:
      tensors: those that are there.
      late_ranks: whose tensors are still on their way, of all members; all of them know it.
      fetch: brings this member's; it raises `CollectiveFailedError` if that is not possible.
      open: connections, which are closed at the end.
    """

    def __init__(
        self,
        tensors: Sequence[tf.Tensor] = (),
        *,
        late_ranks: Sequence[int] = (),
        fetch: Fetch | None = None,
        open: contextlib.ExitStack | None = None,
    ) -> None:
        self.late_ranks = tuple(late_ranks)
        self._tensors = list(tensors)
        self._open = open or contextlib.ExitStack()
        self._coming: futures.Future[list[tf.Tensor]] | None = None
        if fetch is not None:
            thread = futures.ThreadPoolExecutor(1, thread_name_prefix="elastic-arrival")
            self._coming = thread.submit(fetch)
            thread.shutdown(wait=False)

    def tensors(self) -> list[tf.Tensor]:
        """The tensors, for which this waits.

        Raises:
          CollectiveFailedError: a peer went away meanwhile.
        """
        return self._tensors if self._coming is None else self._coming.result()

    def close(self) -> None:
        """Ends what is still on its way, and gives nothing to others any more."""
        self._open.close()
        if self._coming is not None:
            futures.wait([self._coming])
            self._coming = None
