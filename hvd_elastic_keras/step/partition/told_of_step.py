"""Messages about a step that people should read before the first step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DRAWS_IN_PYTHON = (
    "the model draws random numbers with numpy.random or Python's random in its step. They are not "
    "the same on all workers, and, without run_eagerly, the same in every step. Use keras.random."
)
EAGERLY = (
    "run_eagerly was given: one worker runs the step eagerly; several compile it, and do not call "
    "its Python code in each step."
)
WITHOUT_XLA = (
    "jit_compile is on: one worker compiles the step with XLA; several take it without, since XLA "
    "does not know their collectives."
)
FOR_EACH_MICRO_BATCH = (
    "the step calls Python code (tf.py_function or the like), with --deterministic once for each "
    "micro-batch and not once for each step."
)
NOT_TRACED = (
    "run_eagerly was given, and the step cannot be compiled, as several workers have to: {}. "
    "Expected a train_step that uses TensorFlow or keras.ops on the tensors that it is given, and "
    "not their values in Python. Train with one worker outside of a job, or change the step."
)


def of_draws(names: Sequence[str], *, in_python: bool) -> list[str]:
    """Returns messages about random numbers that differ from plain `fit`.

    Args:
      names: TensorFlow's names of operations that would draw from a state.
      in_python: whether Python code draws while the step is traced.
    """
    texts = [DRAWS_IN_PYTHON] if in_python else []
    if not names:
        return texts
    return [
        *texts,
        f"the model draws random numbers with {', '.join(names)}. They are the same for any number "
        "of workers, but not those of plain fit. keras.random, with or without a SeedGenerator, "
        "would give the same.",
    ]


def of_variables(names: Sequence[str]) -> list[str]:
    """Returns a message about variables that a step reads, but that new workers do not get."""
    if not names:
        return []
    return [
        "the step looks at variables that neither the model nor its layers hold: "
        f"{', '.join(names)}. Workers that come later do not get their values. Make them "
        "attributes of the model or of a layer."
    ]


def listed(texts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Returns all messages, each once."""
    return tuple(dict.fromkeys(text for some in texts for text in some))
