"""The seed of a job: imports of TensorFlow and Keras, in any order, draw nothing from it."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

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
