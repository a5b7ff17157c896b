"""Saving in scripts that several workers run: one worker writes, the others wait for it.

`Model.save`, `save_weights` and `export`, `keras.saving.save_model` and `save_weights` (with all
their other names) and `ExportArchive.write_out` take effect once. All workers return from these
calls when the file is there, so that the script may load it. In a script that does not know this
package, so do the functions in `LIBRARIES`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker.launched_session import session_of_launcher
from hvd_elastic_keras.worker.turns import turns_of_worker

METHODS = (
    (keras.Model, "save"),
    (keras.Model, "save_weights"),
    (keras.Model, "export"),
    (keras.export.ExportArchive, "write_out"),
)
WHY = "one worker saves, the others wait"
FUNCTIONS = ("save_model", "save_weights")
"""Functions of `keras.saving` that are replaced."""
LIBRARIES = {
    "numpy": (
        *(("", "save", "file"), ("", "savez", "file"), ("", "savez_compressed", "file")),
        ("", "savetxt", "fname"),
    ),
    "matplotlib.figure": (("Figure", "savefig", "fname"),),
    "pandas": (
        *(("DataFrame", "to_csv", "path_or_buf"), ("Series", "to_csv", "path_or_buf")),
        *(("DataFrame", "to_pickle", "path"), ("DataFrame", "to_parquet", "path")),
    ),
}
"""By module: class (or none), function, and the name of the parameter that is the path."""
FILES = (".keras", ".h5", ".hdf5")
"""Suffixes of paths that Keras writes as one file, unless it is told to do otherwise."""
Save = Callable[..., Any]


class _Here(threading.local):
    direct = False


_here = _Here()


@contextlib.contextmanager
def direct() -> Iterator[None]:
    """Lets this worker save by itself, without asking the others."""
    before, _here.direct = _here.direct, True
    try:
        yield
    finally:
        _here.direct = before


def install() -> None:
    """Changes Keras's saving if there are other workers. Does nothing in a single process."""
    alone = env.worker_environment() is None and session_of_launcher() is None
    if alone or patches.is_installed(WHY):
        return
    for owner, name in METHODS:
        patches.install(owner, name, _by_one_worker(getattr(owner, name)), WHY)
    for name in FUNCTIONS:
        original = getattr(keras.saving, name)
        _replace_everywhere(original, _by_one_worker(original))


def install_for_libraries(applies: Callable[[], bool]) -> None:
    """Changes the saving of other libraries, as soon as the script has imported them.

    Args:
      applies: says at each call whether one worker shall write for all.
    """

    def change(module_name: str) -> None:
        for class_name, name, path in LIBRARIES[module_name]:
            module = sys.modules[module_name]
            owner = getattr(module, class_name) if class_name else module
            original = getattr(owner, name, None)
            if original is None:
                continue
            replacement = _by_one_worker(original, path, applies)
            if class_name:
                patches.install(owner, name, replacement, WHY)
            else:
                _replace_everywhere(original, replacement)

    for module_name in LIBRARIES:
        patches.after_import([module_name], functools.partial(change, module_name))


def _replace_everywhere(original: Save, replacement: Save) -> None:
    """Replaces a function, also where a script has imported it before.

    An example is `from keras.models import save_model`.
    """
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", {})
        aliases = list(names) if module_name == "__main__" else [original.__name__]
        for alias in aliases:
            if names.get(alias) is original:
                patches.install(module, alias, replacement, WHY)


def _by_one_worker(
    original: Save, path_name: str = "filepath", applies: Callable[[], bool] = lambda: True
) -> Save:
    signature = inspect.signature(original)
    pid = os.getpid()

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        is_own = _here.direct or os.getpid() != pid or not applies()
        turns = None if is_own else turns_of_worker()
        try:
            arguments = signature.bind(*args, **kwargs)
        except TypeError:
            turns = None  # the original says what is wrong
        path = None if turns is None else _shared_path(arguments.arguments.get(path_name))
        if turns is None or path is None:
            return original(*args, **kwargs)
        what = f"saving {path}"
        with turns.turn(path, what) as mine:
            if mine:
                return _save(original, arguments, path)
        if _is_there(path):
            return None
        with turns.turn(path, what, again=True) as mine:
            if mine and not _is_there(path):
                return _save(original, arguments, path)
        return None

    return save


def is_own(given: Any) -> bool:
    """Whether a path is in this worker's directory for temporary files: no other worker has it."""
    return isinstance(given, str | os.PathLike) and _shared_path(given) is None


def _shared_path(given: Any) -> str | None:
    """Returns the same text for the same file; None if no other worker writes there."""
    if not isinstance(given, str | os.PathLike):
        return None
    text = os.fspath(given)
    if isinstance(text, bytes):
        return None
    if "://" in text:
        return text
    path = Path(os.path.realpath(text))
    scratch = Path(os.path.realpath(tempfile.gettempdir()))
    is_own = scratch.name.startswith(env.SCRATCH_PREFIX) and scratch in path.parents
    return None if is_own else str(path)


def _is_there(path: str) -> bool:
    if "://" in path or Path(path).exists():
        return True
    # NumPy and Matplotlib add a suffix.
    return any(p.stem == Path(path).name for p in Path(path).parent.glob("*.*"))


def _save(original: Save, arguments: inspect.BoundArguments, path: str) -> Any:
    with direct():
        if not _is_one_file(path, arguments.arguments):
            return original(*arguments.args, **arguments.kwargs)

        # The name has no process number: if this worker is killed here, the worker that takes over
        # writes to the same file.
        temporary = Path(path).with_name(f".saving.{Path(path).name}")
        arguments.arguments["filepath"] = str(temporary)
        try:
            result = original(*arguments.args, **arguments.kwargs)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return result


def _is_one_file(path: str, arguments: dict[str, Any]) -> bool:
    """Whether the path is one file, which can be written beside its place and then moved there."""
    return (
        "://" not in path
        and path.endswith(FILES)
        and arguments.get("zipped") is not False
        and arguments.get("max_shard_size") is None
        and arguments.get("overwrite", True) is True
    )
