"""Keras's global seed generator, which `keras.random` uses without a seed.

Keras makes the generator when the first number is drawn, with a seed from Python's `random`. A
training needs it earlier, because it is part of the state that workers share. So this module makes
it early, and afterwards leaves everything as after plain `fit`. The next draws of a script, such as
the weights of its second model, must not depend on whether its training was elastic.
"""

from __future__ import annotations

import random
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.random.seed_generator import global_seed_generator, make_default_seed

from hvd_elastic_keras.keras_internals import tensorflow_names
from hvd_elastic_keras.settings.job_options import JobSeed

# Keras up to 3.12, the last one for Python 3.10, has no constant for the name that it uses.
GLOBAL_SEED_GENERATOR = getattr(seed_generator, "GLOBAL_SEED_GENERATOR", "global_seed_generator")

_FIRST_VALUE = "hvd_elastic_keras_first_value_of_global_seed"
"""Kept beside the generator, so that `keras.utils.clear_session` forgets both."""
_UNUSED = "hvd_elastic_keras_unused_global_seed"
"""A generator that was forgotten. Steps that are kept from one `fit` to the next still use it."""


def global_seed() -> Any:
    """Returns the generator's `keras.Variable`, made with the seed that Keras would use next."""
    if global_state.get_global_attribute(GLOBAL_SEED_GENERATOR) is None:
        python_state = random.getstate()
        unused = global_state.get_global_attribute(_UNUSED)
        if unused is not None:
            unused.state.assign([make_default_seed(), 0])
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, unused)
        made = global_seed_generator().state
        random.setstate(python_state)
        global_state.set_global_attribute(_FIRST_VALUE, _values(made))
    return global_seed_generator().state


_jobs: list[JobSeed] = []
"""The seed of the job, if there is one."""


def note_job_seed(seed: JobSeed) -> None:
    """Tells Keras the seed, as `keras.utils.set_random_seed` does."""
    _jobs[:] = [seed]
    global_state.set_global_attribute("global_random_seed", seed.number)


def random_seed() -> int:
    """Returns the seed given to `keras.utils.set_random_seed`, else the job's, else 0."""
    of_job = _jobs[0].number if _jobs else 0  # `keras.utils.clear_session` forgets Keras's own
    return int(global_state.get_global_attribute("global_random_seed") or of_job) % 2**31


def python_is_seeded() -> bool:
    """Whether Python's `random` gives the same numbers in all workers."""
    return bool(_jobs) or global_state.get_global_attribute("global_random_seed") is not None


def order_is_free() -> bool:
    """Whether nobody has given TensorFlow a seed, from which the order of arrays follows in Keras.

    With a seed, Keras reads arrays in the same order in every epoch; without one, in another.
    """
    number = tensorflow_names.global_seed()
    is_drawn = bool(_jobs) and _jobs[0].is_drawn
    return number is None or (is_drawn and number == tensorflow_names.DEFAULT_GRAPH_SEED)


def leave_as_after_fit() -> None:
    """Forgets a generator made early that nobody has used, and draws the seed of a used one."""
    first = global_state.get_global_attribute(_FIRST_VALUE)
    if first is None:
        return
    global_state.set_global_attribute(_FIRST_VALUE, None)
    if _values(global_seed()) == first:
        global_state.set_global_attribute(_UNUSED, global_seed_generator())
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)
    else:
        make_default_seed()  # as Keras did when it made the generator


def _values(variable: Any) -> list[int]:
    return [int(v) for v in keras.ops.convert_to_numpy(variable)]
