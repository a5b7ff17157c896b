"""One worker downloads and prepares a data set of tensorflow-datasets, and the others wait.

All workers run the same script, and those that write the same files at the same time fail.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import one_writer

MODULE = "tensorflow_datasets.core.dataset_builder"
WHY = "one worker prepares a data set"
LIMIT_S = 86400.0
"""How long the others wait. A large data set takes hours, and the job has a limit for its start."""


def install() -> None:
    """Changes `download_and_prepare` as soon as the script has imported tensorflow-datasets."""
    patches.after_import([MODULE], _change)


def _change() -> None:
    builder = sys.modules[MODULE].DatasetBuilder
    original = builder.download_and_prepare
    turns_of = one_writer.turns_in_this_process()

    @functools.wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        turns, path = turns_of(), one_writer.shared_path(self.data_dir)
        if turns is None or path is None:
            return original(self, *args, **kwargs)
        what = f"preparing the data set in {path}"
        with turns.turn(path, what, limit_s=LIMIT_S) as turn:
            if turn.is_mine:
                return original(self, *args, **kwargs)
        if not self.data_path.exists():  # this worker's machine has a disk of its own
            with turns.turn(path, what, again=True, limit_s=LIMIT_S) as turn:
                if turn.is_mine and not self.data_path.exists():
                    return original(self, *args, **kwargs)
        # As a builder does that is made when the files are there already.
        self.info.read_from_directory(self.data_dir)
        return None

    patches.install(builder, "download_and_prepare", prepare, WHY)
