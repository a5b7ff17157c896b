"""Time per step of `model.fit` with `ElasticCallback`, alone, against plain `fit`.

Plain and elastic trainings are processes that take turns, an epoch each. A ratio is the median over
turns of the ratio of two epochs of one turn.
"""

from __future__ import annotations

import functools
import os
import statistics

from absl import app, flags

from hvd_elastic_keras.settings import env

env.set_defaults({"TF_CPP_MIN_LOG_LEVEL": "3"})

import keras  # noqa: E402
import networks  # noqa: E402
import numpy as np  # noqa: E402
import rows  # noqa: E402
from turns import Turns, trainings  # noqa: E402

from hvd_elastic_keras import ElasticCallback  # noqa: E402
from hvd_elastic_keras.settings.job_options import JobOptions  # noqa: E402
from hvd_elastic_keras.settings.options import AUTO, LOOP  # noqa: E402

BATCH_SIZE = 64
NETWORKS = {
    "tiny MLP": (networks.tiny_mlp, 300),
    "small ResNet": (networks.small_resnet, 20),
    "dropout net": (networks.dropout_net, 40),
    "transformer": (networks.transformer, 20),
    "depthwise net": (networks.depthwise_net, 20),
    "LSTM": (networks.recurrent_net, 40),
}
"""The networks, and the steps of an epoch of each, which takes about a second."""
PLAIN = "plain fit"
KINDS = {
    PLAIN: None,
    "elastic, 1 micro-batch": (AUTO, BATCH_SIZE),
    "elastic, default cut": (AUTO, None),
    "the same, in a loop": (LOOP, None),
}
"""How micro-batches are computed, and their size."""

_EPOCHS = flags.DEFINE_integer("epochs", 20, "Measured epochs of each kind.", lower_bound=1)
_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), "Of these networks.")


def train(network: str, kind: str, epochs: int, turns: Turns) -> None:
    """Trains one network in one way."""
    callbacks: list[keras.callbacks.Callback] = [turns]
    if cut := KINDS[kind]:
        how, size = cut
        os.environ[env.OPTIONS] = JobOptions(otherwise={"micro_batches": how}).encode()
        callbacks.append(ElasticCallback(micro_batch_size=size))
    keras.utils.set_random_seed(0)
    make, steps = NETWORKS[network]
    model = make()
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    random = np.random.default_rng(0)
    size = BATCH_SIZE * steps
    x = random.random((size, *model.input_shape[1:]), np.float32)
    y = random.integers(0, 10, size)
    model.fit(x, y, BATCH_SIZE, epochs=epochs, verbose=0, callbacks=callbacks)


def measure(network: str) -> list[rows.Row]:
    """Prints the times of a step, and compares them with plain `fit`."""
    epochs, (_, steps) = _EPOCHS.value, NETWORKS[network]
    kinds = {kind: functools.partial(train, network, kind, 1 + epochs) for kind in KINDS}
    with trainings(kinds) as running:
        turns = running.epochs(epochs)
    found = []
    for kind in KINDS:
        wall, processors = (
            statistics.median(turn[kind][i] / turn[PLAIN][i] for turn in turns) for i in range(2)
        )
        milliseconds = statistics.median(turn[kind].wall for turn in turns) / steps * 1e3
        print(
            f"{network:14}{kind:24}{milliseconds:8.2f} ms/step   ratio {wall:.2f}, "
            f"of the processors' time {processors:.2f}",
            flush=True,
        )
        if kind != PLAIN:
            found.append(row(f"a step of the {network}, {kind}", wall))
    return found


def row(what: str, ratio: float) -> rows.Row:
    """Returns a row against plain `fit`, which computes each example once."""
    limit = "one pass of the same examples"
    return rows.Row(what=what, against=PLAIN, ratio=ratio, limit=limit, from_limit=ratio)


def main(_: list[str]) -> None:
    """Prints the table."""
    rows.show([found for network in _NETWORKS.value for found in measure(network)])


if __name__ == "__main__":
    app.run(main)
