"""The files of `Dataset.cache(filename)`: each worker has its own while the job runs.

TensorFlow lets one process write the files of a name, and any number read them once they are
complete. All workers of a job run the same script, so that all would write the same files at the
same time. `install` gives each worker a name of its own, in its directory for temporary files
(TMPDIR), unless the script's files are complete. At the end of a training, the script's files are
made from those of one worker, and the next job begins with them, as after plain Keras.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.settings import env

WHY = "workers do not write the same cache files"
COMPLETE = ".index"
"""TensorFlow writes the file with this suffix last."""
CLAIM = ".being_copied"

_own: dict[str, str] = {}
"""The own names of this worker, by the names that the script has given."""


def install() -> None:
    """Lets `Dataset.cache(filename)` use an own name. Does nothing in a job without a master."""
    if env.worker_environment() is not None:
        _rename(own_name)


def install_for_look() -> None:
    """Lets a process that looks at the first elements of some datasets keep them in memory."""
    _rename(lambda filename: filename if _is_complete(filename) else "")


def _rename(rename: Callable[[str], str]) -> None:
    if patches.is_installed(WHY):
        return
    original = tf.data.Dataset.cache
    pid = os.getpid()

    @functools.wraps(original)
    def cache(self: tf.data.Dataset, filename: Any = "", name: str | None = None) -> Any:
        is_name = isinstance(filename, str | os.PathLike) and os.getpid() == pid
        return original(self, rename(os.fspath(filename)) if is_name else filename, name)

    patches.install(tf.data.Dataset, "cache", cache, WHY)


def _is_complete(filename: str) -> bool:
    return bool(tf.io.gfile.exists(filename + COMPLETE))


def own_name(filename: str) -> str:
    """Returns the name that this worker uses: the given one if it is empty or its files exist."""
    if not filename or _is_complete(filename):
        return filename
    if filename not in _own:
        _own[filename] = os.path.join(tempfile.mkdtemp(prefix="cache-"), os.path.basename(filename))
    return _own[filename]


def publish() -> None:
    """Makes the script's files where this worker's are complete, unless another worker does it.

    It only makes local files. If the disk is full, the next job reads the data itself again.
    """
    for filename, own in _own.items():
        if "://" in filename or not os.path.exists(own + COMPLETE):
            continue
        if not os.path.exists(filename + COMPLETE):
            with contextlib.suppress(OSError):
                _copy(own, filename)


def _copy(own: str, filename: str) -> None:
    claim = Path(filename + CLAIM)
    claim.touch(exist_ok=False)
    try:
        data = Path(own).parent.glob("*.data-*")
        for path in (*data, Path(own + COMPLETE)):
            suffix = path.name.removeprefix(os.path.basename(own))
            try:
                os.link(path, filename + suffix)
            except OSError:  # for example, another disk
                shutil.copyfile(path, f"{filename}{suffix}{CLAIM}")
                os.replace(f"{filename}{suffix}{CLAIM}", filename + suffix)
    finally:
        claim.unlink()
