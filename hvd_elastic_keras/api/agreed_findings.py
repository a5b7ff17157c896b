"""Brings all workers of a training to compute a step alike, by what one of them has found."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from hvd_elastic_keras.step.trials import findings
from hvd_elastic_keras.step.trials.findings import Findings

T = TypeVar("T")
log = logging.getLogger(__name__)


def made_alike(
    make: Callable[[Findings], tuple[T, Findings]], agreed: Callable[[str], str]
) -> tuple[T, Findings]:
    """What `make` makes by the findings that the first worker has told of, and these.

    Args:
      make: by what is known, or, where nothing is, by trials of its own.
      agreed: see `Session.findings`.
    """
    known = findings.decode(agreed(""))
    while True:
        made, mine = make(known)
        theirs = findings.decode(agreed(findings.encode(mine)))
        if known != Findings() and findings.comparable(known) == findings.comparable(mine):
            log.info("this worker goes by what another worker has found about the model")
        # Those that were known before cannot be about this model, if it has found others.
        if findings.comparable(theirs) == findings.comparable(mine) or theirs == known:
            return made, mine
        known = theirs
