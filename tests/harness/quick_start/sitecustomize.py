"""Settings with which all Python processes of the tests start; they change no result.

Tests start hundreds of processes that import TensorFlow. With these settings, the import takes a
quarter less time. `tests/conftest.py` puts this directory on the path of all processes.
"""

import gc
import sys

# The imports make very many objects, and leave little garbage.
gc.set_threshold(200_000, 50, 1000)
# Keras imports it for pictures only, and does without it where it is not installed.
sys.modules["matplotlib"] = None  # type: ignore[assignment]
