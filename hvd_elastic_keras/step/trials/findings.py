"""What trials have found about a model, in a form that another worker can be told.

The worker that is first makes trials; others take its word. They are ready sooner, and no two
workers can differ over how the parts of a step are weighed, which nobody would notice.
"""

from __future__ import annotations

import msgspec

from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch


class StepFindings(msgspec.Struct, frozen=True):
    """About one step of a model. Metrics, their parts and terms of the loss are meant by number.

    Attributes:
      terms: how many the loss has.
      staged: how many numbers beside gradients a micro-batch adds to a step.
      shared: whether workers share a step; if not, each computes whole batches.
      sums: terms of the loss that are sums over the examples.
      means: parts of `MicroBatch.metrics_and_parts` that are averaged where others are added.
      not_together: why micro-batches are computed one after the other; empty if they need not be,
        None if nobody has tried.
      told: what people should know of it.
    """

    terms: int
    staged: int
    shared: bool = True
    sums: tuple[int, ...] = ()
    means: tuple[int, ...] = ()
    not_together: str | None = None
    told: tuple[str, ...] = ()

    @property
    def comparable(self) -> StepFindings:
        """Without what makes no difference to what workers add up."""
        return msgspec.structs.replace(self, not_together=None, told=())

    def are_about(self, micro_batch: MicroBatch) -> bool:
        """Whether they can be about the model of this micro-batch."""
        return (self.terms, self.staged) == shape_of(micro_batch)


class Findings(msgspec.Struct, frozen=True):
    """About the steps of a training; None where there is no such step."""

    training: StepFindings | None = None
    evaluation: StepFindings | None = None


def encode(findings: Findings) -> str:
    """As text, the same for the same findings."""
    return msgspec.json.encode(findings).decode()


def decode(text: str) -> Findings:
    """From text; no findings from an empty one, or from that of another release."""
    if not text:
        return Findings()
    try:
        return msgspec.json.decode(text, type=Findings)
    except msgspec.DecodeError:
        return Findings()


def comparable(findings: Findings) -> str:
    """What must be the same in all workers, or what they add would not fit together."""
    both = (findings.training, findings.evaluation)
    return encode(Findings(*(f and f.comparable for f in both)))


def shape_of(micro_batch: MicroBatch) -> tuple[int, int]:
    """Terms of the loss, and numbers beside gradients; an eager one must have run."""
    summed = micro_batch.summed
    return len(micro_batch.notes.terms), int(summed[-1].shape[0]) if summed else 0
