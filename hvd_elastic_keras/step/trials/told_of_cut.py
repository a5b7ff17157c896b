"""What people are told of a cut that makes a difference to plain `fit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras

from hvd_elastic_keras.step.micro_batches.across_examples import BATCH_NORM, MASK, WEIGHTS
from hvd_elastic_keras.step.micro_batches.micro_batch import MicroBatch
from hvd_elastic_keras.step.partition import told_of_step


@dataclasses.dataclass(frozen=True)
class Cut:
    """How batches are cut.

    Attributes:
      batch_size, micro_batch_size: examples.
      is_chosen: whether the user has said how large a micro-batch is.
    """

    batch_size: int
    micro_batch_size: int
    is_chosen: bool

    @property
    def cuts(self) -> bool:
        """Whether there is more than one micro-batch."""
        return self.micro_batch_size < self.batch_size


def about_draws(micro_batch: MicroBatch) -> list[str]:
    notes = micro_batch.notes
    return told_of_step.of_draws(notes.stateful_draws, in_python=notes.draws_in_python)


def about_order(micro_batch: MicroBatch) -> list[str]:
    if not micro_batch.notes.reads_after_apply:
        return []
    return [
        "train_step uses weights after optimizer.apply, where they are still those before: all "
        "workers apply at the end of a step. So what it makes of them is one step behind plain "
        "fit. Do it in on_train_batch_end of a callback, or before the gradients."
    ]


def about_variables(micro_batch: MicroBatch) -> list[str]:
    return told_of_step.of_variables(micro_batch.strays)


def about_logs(micro_batch: MicroBatch, cut: Cut) -> list[str]:
    names = micro_batch.notes.averaged_logs
    if not (micro_batch.runs_eagerly and cut.cuts and names):
        return []
    return [
        f"with run_eagerly nobody knows what {', '.join(names)} in the logs of a step follow from. "
        "They are averaged over micro-batches, which is not what plain fit shows if they are "
        "computed from metrics. Without run_eagerly they are found out."
    ]


def about_cut(micro_batch: MicroBatch, cut: Cut) -> list[str]:
    """Differences to plain `fit` that come from the cut, and are known."""
    pieces = f"each micro-batch of {cut.micro_batch_size} examples"
    remedy = f"micro_batch_size={cut.batch_size} gives what plain fit gives, on one worker."
    noted = micro_batch.notes.across
    texts = []
    if BATCH_NORM in noted:
        texts.append(f"batch normalisation normalises over {pieces}")
    if MASK in noted:
        texts.append(f"a loss with a mask is averaged over the values that count in {pieces}")
    if WEIGHTS in noted:
        texts.append(f"a loss is divided by the sum of the sample weights of {pieces}")
    if not texts:
        texts.append(f"random operations mix examples within {pieces}")
    return [f"{text}, not of the whole batch of {cut.batch_size}; {remedy}" for text in texts]


def about_zeros(terms: Sequence[str], cut: Cut) -> list[str]:
    """Of terms of the loss that were 0 in all trials.

    Args:
      terms: their names.
    """
    if not terms:
        return []
    names = ", ".join(dict.fromkeys(terms))
    return [
        f"the loss ({names}) was 0 for all examples of the first batch, so that nobody can tell "
        "whether it is the mean or the sum of the losses of examples. It is taken for a mean. If "
        f"it is a sum that will not stay 0, use micro_batch_size={cut.batch_size}, or divide it by "
        "the number of examples."
    ]


def about_training_logs(apart: Sequence[keras.Metric], cut: Cut) -> list[str]:
    """Of the metrics in them that do not follow from the parts of a batch."""
    if not apart:
        return []
    return [
        f"these metrics of a batch do not follow from its parts: {_names(apart)}. The training "
        f"logs have those of micro-batches of {cut.micro_batch_size} examples, averaged; "
        f"micro_batch_size={cut.batch_size} gives what plain fit gives, on one worker."
    ]


def about_evaluation(apart: Sequence[keras.Metric], _: Cut) -> list[str]:
    """The same of an evaluation, which is not cut because of them."""
    if not apart:
        return []
    return [
        f"these metrics of a batch do not follow from its parts: {_names(apart)}. "
        "Each evaluation is computed whole on every worker."
    ]


def _names(metrics: Sequence[keras.Metric]) -> str:
    return ", ".join(m.name for m in metrics)


def refusal_across_examples(culprits: Sequence[str], cut: Cut) -> str:
    """Of a loss that compares the examples of a batch.

    Args:
      culprits: names of the terms of the loss that do so, as far as they are known.
    """
    what = f"The loss ({', '.join(culprits)})" if culprits else "The loss"
    return (
        f"{what} of a batch is neither the mean nor the sum of the losses of its parts, expected "
        "one that looks at each example by itself. A loss that compares the examples of a batch "
        "(contrastive, in-batch negatives, triplets) would see the "
        f"{cut.micro_batch_size} examples of a micro-batch in place of the {cut.batch_size} of the "
        f"batch. Use micro_batch_size={cut.batch_size}: one worker computes a whole batch, the "
        "others stand by, and the result is that of plain fit. Or choose a smaller "
        f"micro_batch_size (as micro_batch_size={cut.micro_batch_size}), if comparing within each "
        "part is what you want: the result is the same for any number of workers, but not that of "
        "plain fit."
    )
