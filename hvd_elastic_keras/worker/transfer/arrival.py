"""The tensors that a member of a round gets in a sync: already there, or still on their way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent import futures

import tensorflow as tf

Fetch = Callable[[], list[tf.Tensor]]


class Arrival:
    """The root's tensors, for one member.

    Args:
      tensors: the tensors, if they are already there.
      late_ranks: ranks whose tensors are still on their way; the same on all members.
      fetch: fetches this member's tensors; it raises `CollectiveFailedError` if that fails.
      open: connections to close at the end.
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
        """Waits for the tensors and returns them.

        Raises:
          CollectiveFailedError: a peer went away meanwhile.
        """
        return self._tensors if self._coming is None else self._coming.result()

    def close(self) -> None:
        """Ends a fetch that is still running, and gives nothing to other members any more."""
        self._open.close()
        if self._coming is not None:
            futures.wait([self._coming])
            self._coming = None
