"""Computes in NumPy the results of a job whose batch grows with the workers.

Nothing here uses the code under test. The job tells which examples were in which step (notes of
`growing_model.py`) and how many workers took it (`events.jsonl`).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.job import Job

Arrays = tuple[np.ndarray, np.ndarray]
SIZE, FEATURES = 200, 4
RATE, MOMENTUM, DECAY = 0.2, 0.8, 0.9
_random = np.random.default_rng(5)
X = np.concatenate([_random.normal(size=(SIZE, FEATURES)), np.arange(SIZE)[:, None]], 1).astype(
    np.float32
)
LABELS = ((X[:, 0] > 0).astype(np.int64) + (X[:, 1] > X[:, 2])).astype(np.int64)
KERNEL = _random.normal(size=(FEATURES, 3)).astype(np.float32) / 4
BIAS = np.zeros(3, np.float32)


def sizes_by_step(job: Job) -> list[int]:
    """Returns the number of workers that took each optimizer step."""
    sizes: dict[int, int] = {}
    last = job.events("job_finished")[-1]["step"]
    for event in job.events("round_running"):
        sizes.update(dict.fromkeys(range(event["step"], last), event["world_size"]))
    return [sizes[step] for step in range(last)]


def batches_by_step(job: Job, sizes: list[int]) -> list[list[int]]:
    """Returns the examples of each optimizer step, without those computed for failed steps."""
    batches: list[list[int]] = [[] for _ in sizes]
    for notes in Path(job.plan.path).parent.glob("examples-*.jsonl"):
        for step, size, examples in map(json.loads, notes.read_text().splitlines()):
            if size == sizes[step]:
                batches[step] += examples
    return batches


def steps_by_epoch(sizes: list[int], per_worker: int) -> list[list[int]]:
    """Returns the step numbers of each epoch; the last step of an epoch takes the examples left."""
    epochs: list[list[int]] = [[]]
    left = SIZE
    for step, size in enumerate(sizes):
        if left == 0:
            epochs.append([])
            left = SIZE
        epochs[-1].append(step)
        left -= min(left, size * per_worker)
    assert left == 0, "the last epoch is complete"
    return epochs


def assert_every_example_once_per_epoch(
    sizes: list[int], batches: list[list[int]], per_worker: int
) -> int:
    """Asserts this and the sizes of steps; returns the number of epochs."""
    epochs = steps_by_epoch(sizes, per_worker)
    for steps in epochs:
        examples = [example for step in steps for example in batches[step]]
        assert sorted(examples) == list(range(SIZE))
        for step in steps[:-1]:
            assert len(batches[step]) == sizes[step] * per_worker
    return len(epochs)


def scales_by_step(sizes: list[int], reference: float, warm_up: int) -> list[float]:
    """Scales the rate linearly: down at once, up over `warm_up` steps. Returns a scale per step.

    Args:
      reference: the number of workers for which the model's learning rate is meant.
    """
    scales: list[float] = []
    ahead, before = [1.0], reference
    for size in sizes:
        if size != before:
            now, target = ahead[0], size / reference
            ahead = [target] if target <= now else np.linspace(now, target, warm_up + 1).tolist()
            before = size
        scales.append(ahead[0])
        ahead = ahead[1:] or ahead
    return scales


def expected_weights(
    batches: list[list[int]], scales: list[float], epochs: list[list[int]], decay: float = DECAY
) -> list[np.ndarray]:
    """Returns kernel and bias after SGD with momentum on these batches, in float64."""
    parts: list[Any] = [KERNEL.astype(np.float64), BIAS.astype(np.float64)]
    velocities = [np.zeros_like(part) for part in parts]
    rate = RATE
    for steps in epochs:
        rate *= decay
        for step in steps:
            x = X[batches[step], :FEATURES].astype(np.float64)
            logits = x @ parts[0] + parts[1]
            chances = np.exp(logits - logits.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            error = (chances - np.eye(3)[LABELS[batches[step]]]) / len(x)
            for i, gradient in enumerate((x.T @ error, error.sum(0))):
                velocities[i] = MOMENTUM * velocities[i] - rate * scales[step] * gradient
                parts[i] = parts[i] + velocities[i]
    return parts


def assert_trained_as_expected(
    job: Job, weights: list[np.ndarray], *, per_worker: int, reference: float, warm_up: int
) -> list[int]:
    """Compares a finished job's weights with NumPy's; returns the workers of each step."""
    sizes = sizes_by_step(job)
    batches = batches_by_step(job, sizes)
    assert_every_example_once_per_epoch(sizes, batches, per_worker)
    epochs = steps_by_epoch(sizes, per_worker)
    expected = expected_weights(batches, scales_by_step(sizes, reference, warm_up), epochs)
    for found, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-5)
    assert len(list(itertools.groupby(sizes))) > 1, "the number of workers has changed"
    return sizes
