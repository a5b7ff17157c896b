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


def python_is_seeded() -> bool:
    """Whether `keras.utils.set_random_seed` has seeded Python's `random`, too."""
    return global_state.get_global_attribute("global_random_seed") is not None


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
