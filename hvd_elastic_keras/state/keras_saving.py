"""Saving in scripts that several workers run: one worker writes, the others wait for it.

`Model.save`, `save_weights` and `export`, `keras.saving.save_model` and `save_weights`,
`tf.saved_model.save` (with all their other names) and `ExportArchive.write_out` take effect once.
All workers return from these calls when the file is there, so that the script may load it. In a
script that does not know this package, so do the functions in `LIBRARIES`.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.common.errors import is_users_file
from hvd_elastic_keras.state import one_writer, tensorflow_checkpoints
from hvd_elastic_keras.state.one_writer import WHY

METHODS = (
    (keras.Model, "save"),
    (keras.Model, "save_weights"),
    (keras.Model, "export"),
    (keras.export.ExportArchive, "write_out"),
)
FUNCTIONS = (
    *((keras.saving, "save_model", "filepath"), (keras.saving, "save_weights", "filepath")),
    (tf.saved_model, "save", "export_dir"),
)
"""By module: function, and the name of the parameter that is the path."""
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
WRITERS = ("/tensorflow/", "/keras/src/", f"{Path(__file__).parents[1]}/")
"""Parts of the paths of files whose code says by itself which worker writes."""
UNFINISHED = ".saving."
"""Begins the names of files that are not yet in their place."""
Save = Callable[..., Any]


def install() -> None:
    """Changes Keras's saving if there are other workers. Does nothing in a single process."""
    if one_writer.is_alone() or patches.is_installed(WHY):
        return
    for owner, name in METHODS:
        patches.install(owner, name, _by_one_worker(getattr(owner, name)), WHY)
    for owner, name, path in FUNCTIONS:
        original = getattr(owner, name)
        _replace_everywhere(original, _by_one_worker(original, path))
    tensorflow_checkpoints.install()


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


def install_for_directories(applies: Callable[[], bool]) -> None:
    """Has one worker remove and make the directories of a script, once for the whole job.

    This is for what the script's own code does with `os.mkdir`, `os.makedirs` and `Path.mkdir`, and
    for `shutil.rmtree` and `tf.io.gfile.rmtree`, which libraries such as Keras Tuner call, too.
    Another worker would find a directory that it is to make. A worker that is started later runs
    the script from its beginning, and would remove what the training has written.

    Args:
      applies: says at each call whether one worker shall act for all.
    """
    removes = functools.partial(_once_for_all, follow=lambda path: None, callers=_may_remove)
    _replace_everywhere(shutil.rmtree, removes(shutil.rmtree, applies))
    patches.install(tf.io.gfile, "rmtree", removes(tf.io.gfile.rmtree, applies), WHY)
    for make in (os.mkdir, os.makedirs):
        _replace_everywhere(make, _once_for_all(make, applies, _make_directory))
    patches.install(Path, "mkdir", _once_for_all(Path.mkdir, applies, _make_directory), WHY)


def _make_directory(path: Any) -> None:
    """Makes a directory that another worker has made, maybe on another machine."""
    os.makedirs(path, exist_ok=True)


def _may_remove(caller: str) -> bool:
    """Whether code in a file removes what a script has made, and not temporary files."""
    of_library = "/site-packages/" in caller and not any(part in caller for part in WRITERS)
    return of_library or is_users_file(caller)


def _once_for_all(
    original: Save,
    applies: Callable[[], bool],
    follow: Callable[[Any], None],
    callers: Callable[[str], bool] = is_users_file,
) -> Save:
    """Returns a function that one worker calls for all.

    Args:
      follow: what the others do with the path after that.
      callers: says whether this holds for calls from a file.
    """
    name = original.__name__
    turns_of = one_writer.turns_in_this_process()

    @functools.wraps(original)
    def once(path: Any, *args: Any, **kwargs: Any) -> Any:
        called_from = sys._getframe(1).f_code.co_filename
        may_exist = kwargs.get("exist_ok", False)  # all workers may make it
        is_meant = applies() and not may_exist and callers(called_from)
        turns = turns_of() if is_meant else None
        shared = None if turns is None else one_writer.shared_path(path)
        if turns is None or shared is None:
            return original(path, *args, **kwargs)
        with turns.turn(f"{name} {shared}", f"{name} of {shared}") as turn:
            if turn.is_mine:
                return original(path, *args, **kwargs)
        return follow(path)

    return once


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
    turns_of = one_writer.turns_in_this_process()

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # it says what is wrong
        path = one_writer.shared_path(arguments.arguments.get(path_name)) if applies() else None
        if path is None:
            return original(*args, **kwargs)
        if one_writer.is_direct():  # a `ModelCheckpoint`, which other workers may read meanwhile
            return _save(original, arguments, path)
        turns = turns_of()
        if turns is None:
            return original(*args, **kwargs)
        what = f"saving {path}"
        with turns.turn(path, what) as turn:
            if turn.is_mine:
                return _save(original, arguments, path)
        if _is_there(path):
            return None
        with turns.turn(path, what, again=True) as turn:
            if turn.is_mine and not _is_there(path):
                return _save(original, arguments, path)
        return None

    return save


def _is_there(path: str) -> bool:
    if "://" in path or Path(path).exists():
        return True
    # NumPy and Matplotlib add a suffix.
    return any(p.stem == Path(path).name for p in Path(path).parent.glob("*.*"))


def _save(original: Save, arguments: inspect.BoundArguments, path: str) -> Any:
    with one_writer.direct():
        name = Path(path).name
        if name.startswith(UNFINISHED) or not _is_one_file(path, arguments.arguments):
            return original(*arguments.args, **arguments.kwargs)

        # The name has no process number: if this worker is killed here, the worker that takes over
        # writes to the same file.
        temporary = Path(path).with_name(UNFINISHED + name)
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
