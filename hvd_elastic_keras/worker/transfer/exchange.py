"""Gives all members of a round the root's tensors. Only members that lack them receive any."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Sequence

import msgspec
import tensorflow as tf

from hvd_elastic_keras.common.errors import CollectiveFailedError
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.tensor_bytes import Blanks, bytes_of, readable
from hvd_elastic_keras.worker.transfer import frames
from hvd_elastic_keras.worker.transfer.arrival import Arrival
from hvd_elastic_keras.worker.transfer.fetcher import Fetcher
from hvd_elastic_keras.worker.transfer.holder import Holder
from hvd_elastic_keras.worker.transfer.plan import Member, Plan

LEAST_BYTES = 4 * 2**20
"""Least size of a state that travels on sockets.

A broadcast of a smaller state is done before connections would be made."""

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One sync of all members of the round.

    Attributes:
      communicator: communicator of the round.
      is_root: whether this member is the root, whose tensors count.
      specs: shapes and dtypes of the root's tensors.
      key: key of the sync; see `handshake`.
      name: name of the collectives.
    """

    communicator: Communicator
    is_root: bool
    specs: Sequence[tf.TensorSpec]
    key: str
    name: str

    @property
    def size(self) -> int:
        """Size of all tensors in bytes."""
        return sum(map(bytes_of, self.specs))

    def arrival(
        self,
        own: Sequence[tf.Tensor],
        *,
        has_root_state: bool,
        compare: bool = False,
        may_be_late: bool = False,
    ) -> Arrival:
        """Returns the root's tensors: this member's own if it holds them, else fresh ones.

        This is a collective of all members.

        Args:
          own: tensors of this member.
          has_root_state: whether they equal the root's, as far as this member knows.
          compare: whether to check that by checksums.
          may_be_late: whether this member can go on before the tensors are there. If this is true
            of all members that lack them, no member waits.

        Raises:
          CollectiveFailedError: a peer went away meanwhile.
        """
        if self.size >= LEAST_BYTES:
            member = Member(False, may_be_late=may_be_late)
            found = self._exchanged(own, member, has_root_state=has_root_state, compare=compare)
            if found is not None:
                return found
        mine = own if self.is_root else self.specs
        return Arrival(self.communicator.broadcast_tensors(mine, self.name))

    def _exchanged(
        self, own: Sequence[tf.Tensor], member: Member, *, has_root_state: bool, compare: bool
    ) -> Arrival | None:
        """Returns the tensors from other members; None on all members if that is impossible."""
        communicator = self.communicator
        with contextlib.ExitStack() as stack:
            holder = self._holder(own, stack) if has_root_state else None
            if has_root_state:
                checksum = frames.checksum(readable(own)) if compare else None
                member = Member(True, checksum, holder.address if holder else None)
            told = communicator.gather_bytes(msgspec.json.encode(member), f"{self.name}.members")
            plan = Plan([msgspec.json.decode(m, type=Member) for m in told], self.size)
            if not plan.is_direct:
                return None
            fetcher = stack.enter_context(self._fetcher())
            lacks = communicator.rank in plan.behind
            failure = self._failure_to_connect(fetcher, plan) if lacks else None
            if communicator.any_true(failure is not None, f"{self.name}.connected"):
                # No member is lost: otherwise this collective would have failed.
                communicator.reaches_all = False
                reason = failure or "another member could not connect"
                log.warning("the state goes through the collective, to everybody: %s", reason)
                return None
            if plan.is_late:
                if holder is not None:
                    holder.forget_after(plan.num_fetchers(holder.address))
                fetch = functools.partial(self._fetched, fetcher) if lacks else None
                return Arrival(late_ranks=plan.behind, fetch=fetch, open=stack.pop_all())
            found = self._fetched(fetcher) if lacks else list(own)
            communicator.barrier(f"{self.name}.whole")
        return Arrival(found)

    def _holder(self, own: Sequence[tf.Tensor], stack: contextlib.ExitStack) -> Holder | None:
        """Begins to give the tensors of this member to others, if possible."""
        memory = readable(own)
        sizes = [len(piece) for piece in memory]
        host = self.communicator.address if self.communicator.reaches_all else ""
        if not host or sizes != [bytes_of(spec) for spec in self.specs]:
            return None
        try:
            holder = Holder(
                host,
                self.key,
                memory,
                silent_s=self.communicator.gloo_timeout_s,
                keep=self.communicator.keep,
            )
        except OSError as error:
            log.info("the state is not given from %s: %s", host, error)
            return None
        return stack.enter_context(holder)

    def _fetcher(self) -> Fetcher:
        return Fetcher(
            self.key, silent_s=self.communicator.gloo_timeout_s, keep=self.communicator.keep
        )

    def _failure_to_connect(self, fetcher: Fetcher, plan: Plan) -> OSError | None:
        try:
            fetcher.connect(plan.sources(self.communicator.rank))
        except OSError as error:
            return error
        return None

    def _fetched(self, fetcher: Fetcher) -> list[tf.Tensor]:
        blanks = Blanks(self.specs)
        try:
            fetcher.fetch(blanks.memory)
        except OSError as error:
            raise CollectiveFailedError(f"the state did not come whole: {error}") from error
        return blanks.tensors()
