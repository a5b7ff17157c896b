"""Time per step of two workers on a slow network, against a plain Horovod loop.

The same two processes compute both, alternately. They run in their own network namespace, whose
loopback is limited (`tc … tbf`). Both directions share that limit, so this is a line of half the
rate in each direction. Each process has a processor for itself, as on two hosts. Needs root. The
output has medians over repetitions, and their ratios.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from absl import app, flags

from hvd_elastic_keras.settings import env

env.set_defaults(
    {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HOROVOD_CYCLE_TIME": "1",
        # One thread is usual on one processor. But then it is luck whether a collective begins
        # before the end of the backward pass, in all loops here alike.
        "TF_NUM_INTEROP_THREADS": "2",
    }
)

import horovod.tensorflow as hvd  # noqa: E402
import keras  # noqa: E402
import networks  # noqa: E402
import numpy as np  # noqa: E402
import processors  # noqa: E402
import rows  # noqa: E402
import tensorflow as tf  # noqa: E402

from hvd_elastic_keras.common.batch_plan import share_of  # noqa: E402
from hvd_elastic_keras.data.input.pipeline import Pipeline  # noqa: E402
from hvd_elastic_keras.data.sources.source import as_source  # noqa: E402
from hvd_elastic_keras.keras_internals.model_variables import variables_of  # noqa: E402
from hvd_elastic_keras.settings.options import COMPRESSIONS, NO_COMPRESSION  # noqa: E402
from hvd_elastic_keras.step.compiled_steps import compiled_step  # noqa: E402
from hvd_elastic_keras.step.partition import gradients as gradient_parts  # noqa: E402
from hvd_elastic_keras.step.step_options import StepOptions  # noqa: E402
from hvd_elastic_keras.step.world import world_of_process  # noqa: E402

_RATE = flags.DEFINE_string("rate", "1gbit", "Of the network; empty does not limit it.")
_NETWORK = flags.DEFINE_enum("model", "large_mlp", ["large_mlp", "small_resnet"], "The model.")
_MICRO_BATCHES = flags.DEFINE_list("micro_batches", ["1", "4"], "Of each worker.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 7, "Measured turns of each kind.")
_STEPS = flags.DEFINE_integer("steps", 3, "Of a turn.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 1024, "Examples of a step.")
_WORKER = flags.DEFINE_boolean("worker", False, "One of the two processes: for this script itself.")

IN_NAMESPACE = """
ip link set lo up
{limit}
exec {python} -m horovod.runner.launch --gloo -np 2 -H localhost:2 --network-interfaces lo "$@"
"""
LIMIT = "tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 50ms"
NO_LIMIT = 2**62
PLAIN, LEAST = "plain loop", "least with {} bits"
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Turn = Callable[[], None]


class Examples:
    """Random examples."""

    def __init__(self, model: keras.Model) -> None:
        random = np.random.default_rng(0)
        size = _BATCH_SIZE.value * _STEPS.value
        self.x = random.random((size, *model.input_shape[1:]), np.float32)
        self.y = random.integers(0, 10, size)


def examples_of_a_worker(model: keras.Model) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the examples of one worker for one step."""
    examples, count = Examples(model), _BATCH_SIZE.value // hvd.size()
    return tf.constant(examples.x[:count]), tf.constant(examples.y[:count])


def compiled_model() -> keras.Model:
    """Returns a model that is the same on both workers."""
    keras.utils.set_random_seed(0)
    model = getattr(networks, _NETWORK.value)()
    model.compile(keras.optimizers.SGD(0.01), LOSS)
    model.optimizer.build(model.trainable_variables)
    return model


def plain_turn() -> Turn:
    """Returns a loop as in Horovod's documentation, with the worker's examples in memory."""
    model = compiled_model()
    x, y = examples_of_a_worker(model)

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    def turn() -> None:
        for _ in range(_STEPS.value):
            step().numpy()

    return turn


def least_turn(bits: int) -> Turn:
    """Returns the least work of a step: compute the first gradients, then send all bytes.

    The computation is a forward pass, and the backward pass up to the first part that is worth
    sending (`parts_of`). With 0 bits it is the whole computation, which every loop needs, and
    nothing is sent.
    """
    model = compiled_model()
    x, y = examples_of_a_worker(model)
    variables = [v.value for v in model.trainable_variables]
    backwards = variables[::-1]
    first = gradient_parts.parts_of([int(np.prod(v.shape)) * v.dtype.size for v in backwards])[0]
    wanted = [backwards[i] for i in first] if bits else variables
    # Not a constant of the graph: TensorFlow computes collectives of constants only once.
    gradients = tf.zeros([sum(int(np.prod(v.shape)) for v in variables) * bits // 32])

    @tf.function
    def compute() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        return list(tape.gradient(loss, wanted))

    @tf.function
    def reduce() -> tf.Tensor:
        return hvd.allreduce(gradients, op=hvd.Sum, name=f"least{bits}")

    def turn() -> None:
        for _ in range(_STEPS.value):
            compute()[0].numpy()
            if bits:
                reduce()[0].numpy()

    return turn


def elastic_turn(micro_batches: int, compression: str, least_bytes: int) -> Turn:
    """Returns steps of this package, with the worker's examples in memory."""
    model = compiled_model()
    examples = Examples(model)
    source = as_source((examples.x, examples.y), seed=0, shuffle=True, name="x")
    workers = hvd.size()
    pipeline = Pipeline(source, _BATCH_SIZE.value, _BATCH_SIZE.value // workers // micro_batches)
    options = StepOptions(together=None, compression=compression)
    gradient_parts.LEAST_BYTES = least_bytes
    step = compiled_step(model, variables_of(model), pipeline, train=True, options=options)
    share = share_of(hvd.rank(), workers, pipeline.num_micro_batches)
    batches = list(pipeline.batches(0, share, 0))

    def turn() -> None:
        gradient_parts.LEAST_BYTES = least_bytes  # the first step is traced here
        for number, batch in enumerate(batches):
            step(batch, number)

    return turn


def kinds() -> Iterator[tuple[str, Turn]]:
    """Yields all kinds to compare, the plain loop first."""
    yield PLAIN, plain_turn()
    for bits in (32, 16, 0):
        yield LEAST.format(bits), least_turn(bits)
    in_parts = gradient_parts.LEAST_BYTES
    for count in map(int, _MICRO_BATCHES.value):
        name = f"{count} micro-batch{'es' if count > 1 else ''}"
        yield f"{name}, one collective", elastic_turn(count, NO_COMPRESSION, NO_LIMIT)
        for compression in COMPRESSIONS:
            yield f"{name}, {compression}", elastic_turn(count, compression, in_parts)


def work() -> None:
    """Measures, as one of two workers; rank 0 prints."""
    processors.take(int(os.environ["HOROVOD_RANK"]))
    hvd.init()
    world_of_process().enter_round(hvd.rank(), hvd.size())
    turns = dict(kinds())
    times: dict[str, list[float]] = {name: [] for name in turns}
    for repetition in range(_REPETITIONS.value + 1):
        for name, turn in turns.items():
            hvd.allreduce(tf.zeros([1]), name="turn").numpy()
            began = time.perf_counter()
            turn()
            if repetition:  # the first repetition traces
                times[name].append((time.perf_counter() - began) / _STEPS.value)
    if hvd.rank() == 0:
        tell(times)


def tell(times: dict[str, list[float]]) -> None:
    """Prints seconds per step of each kind, and shows the rows."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        ratio = median / medians[PLAIN]
        least = min(times[name]) / min(times[PLAIN])
        print(
            f"{name:34}{median * 1e3:8.1f} ms/step   ratio {ratio:.2f}, of the fastest {least:.2f}",
            flush=True,
        )
    network = _RATE.value or "loopback"
    found = []
    for name, median in medians.items():
        if "micro-batch" in name:
            bits = 16 if name.endswith("16") else 32
            row = rows.Row(
                what=f"a step of two workers, {network}, {name}",
                against="a plain Horovod loop",
                ratio=median / medians[PLAIN],
                limit=f"computing alone, or until a first part is there, then {bits} bits of each",
                from_limit=median / max(medians[LEAST.format(b)] for b in (0, bits)),
            )
            found.append(row)
    rows.show(found)


def main(arguments: list[str]) -> None:
    """Prints the table."""
    if _WORKER.value:
        work()
        return
    limit = LIMIT.format(rate=_RATE.value) if _RATE.value else ""
    script = IN_NAMESPACE.format(limit=limit, python=shlex.quote(sys.executable))
    command = [sys.executable, *sys.argv, "--worker"]
    subprocess.run(["unshare", "--net", "sh", "-ec", script, "sh", *command], check=True)


if __name__ == "__main__":
    app.run(main)
