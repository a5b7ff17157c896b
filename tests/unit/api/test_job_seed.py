"""The seed of a job: imports of TensorFlow and Keras, in any order, draw nothing from it."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

OWN_SEED = """
import random
random.seed(3)
import keras
print(random.random(), "of the script")
"""
DRAWN = """
import random
from hvd_elastic_keras.api import job_seed
from hvd_elastic_keras.settings.job_options import JobSeed
job_seed.install(JobSeed(7))
{imports}
import numpy as np
print(random.random(), np.random.rand())
"""


@pytest.mark.parametrize("imports", ["import keras", "import tensorflow\nimport keras"])
def test_imports_draw_no_number_of_the_script(imports: str) -> None:
    program = DRAWN.format(imports=imports)
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    drawn = [float(word) for word in found.stdout.split()]
    assert drawn == [random.Random(7).random(), np.random.RandomState(7).rand()]


def test_a_script_that_seeds_itself_before_it_imports_keras_draws_as_alone() -> None:
    first = DRAWN.partition("{imports}")[0]
    found = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for program in (OWN_SEED, first + OWN_SEED)
    ]
    assert "of the script" in found[0]
    assert found[0] == found[1]
