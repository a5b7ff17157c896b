"""One worker downloads and prepares a data set of tensorflow-datasets, and the others wait.

All workers run the same script, and those that write the same files at the same time fail.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.state import one_writer

MODULE = "tensorflow_datasets.core.dataset_builder"
WHY = "one worker prepares a data set"


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
        if turns is not None and path is not None:
            what = f"preparing the data set in {path}"
            with turns.turn(path, what) as turn:
                if turn.is_mine:
                    return original(self, *args, **kwargs)
            if not os.path.exists(path):  # this worker's machine has a disk of its own
                with turns.turn(path, what, again=True) as turn:
                    if turn.is_mine:
                        return original(self, *args, **kwargs)
            # As a builder does that is made when the files are there already.
            self.info.read_from_directory(self.data_dir)
        return original(self, *args, **kwargs)

    patches.install(builder, "download_and_prepare", prepare, WHY)
