"""All places where this package changes the code of another one, in this process.

| patch                                         | why                                              |
|-----------------------------------------------|--------------------------------------------------|
| `Model.save` and kin, `state/keras_saving.py` | one worker writes a file, the others wait for it |
| `shutil.rmtree`, `state/keras_saving.py`      | one worker removes, once for the whole job       |
| `Checkpoint.save`, `tensorflow_checkpoints.py`| the same, for `tf.train`                         |
| `create_file_writer`, `tensorflow_summaries.py` | the same, for `tf.summary`                     |
| `sys.excepthook`, `common/errors.py`          | an `ElasticError` is shown without a traceback   |
| `sys.excepthook`, `session_of_process.py`     | an uncaught `ConfigurationError` ends the job    |
| `Model.fit`, `api/horovod/fit.py`             | `fit` with Horovod's optimizer is elastic        |
| `Optimizer.lr`, `api/horovod/fit.py`    | scripts for Keras 2 use it                       |
| `Model.fit`, `api/unchanged_fit.py`           | `fit` of a script that `run` starts is elastic   |
| `Strategy.scope`, `api/unchanged_fit.py`      | workers share the batches, no strategy does      |
| `default_rng`, `api/job_seed.py`              | generators without a seed are alike in workers   |
| `random.seed`, `api/job_seed.py`              | imports draw from the script's own seed          |
| `Dataset.cache`, `sources/cache_files.py`     | workers do not write the same files              |
| `download_and_prepare`, `state/dataset_preparation.py` | the same, for tensorflow-datasets       |

They stay until the end of the process, or until `undo_all`. A function that is replaced only while
a step is traced uses `replaced`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import wrapt

_MISSING = object()


@dataclasses.dataclass(frozen=True)
class Patch:
    """A change of `owner.name`, where `owner` is a module or a class.

    Attributes:
      why: what it is for, in a few words.
      original: what the owner itself had there before; nothing if it had inherited it.
    """

    owner: Any
    name: str
    why: str
    original: Any = dataclasses.field(repr=False)

    def undo(self) -> None:
        """Restores what was there before."""
        if self.original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


_installed: list[Patch] = []


def installed() -> tuple[Patch, ...]:
    """Returns the patches of this process, the oldest first."""
    return tuple(_installed)


def install(owner: Any, name: str, replacement: Any, why: str) -> None:
    """Replaces `owner.name` until `undo_all`."""
    _installed.append(Patch(owner, name, why, vars(owner).get(name, _MISSING)))
    setattr(owner, name, replacement)


def is_installed(why: str) -> bool:
    """Whether there is a patch of this purpose."""
    return any(patch.why == why for patch in _installed)


def undo_all() -> None:
    """Restores all that was there before, the newest patch first."""
    while _installed:
        _installed.pop().undo()


def after_import(packages: Iterable[str], call: Callable[[], None]) -> None:
    """Calls `call` once, as soon as the program has imported all the packages completely.

    It is called at once if they have been imported already. It waits for all of them, because
    TensorFlow and Keras import each other: when one of them is complete, the other need not be.
    """
    missing = set(packages)

    def imported(module: Any) -> None:
        if module.__name__ in missing:
            missing.discard(module.__name__)
            if not missing:
                call()

    for package in sorted(missing):
        wrapt.register_post_import_hook(imported, package)


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Lets `owner.name(...)` call `function(original, ...)`, for calls from the present thread.

    Args:
      owner: a module or a class.
    """
    original = getattr(owner, name)
    thread = threading.get_ident()

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        return function(original, *args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)
