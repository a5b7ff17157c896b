"""The directories of checkpoints: how they get their names, and the leftovers of killed writers.

On disk:

    step-00000120                      whole
    .step-00000120.4711                being written by process 4711
    .step-00000120.4711.before         the checkpoint that it replaces, while both are renamed
    damaged-step-00000120              found to be damaged

On file systems that only TensorFlow reaches, a directory cannot be renamed in one operation. There,
a directory has its final name from the beginning. It is no checkpoint until it has its manifest,
which is written last.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from hvd_elastic_keras.common import files
from hvd_elastic_keras.state.checkpoint import manifest
from hvd_elastic_keras.state.checkpoint.places import Place

NAME = re.compile(r"step-(\d+)")
BEFORE = re.compile(r"\.(step-\d+)\.\d+\.before")
ASIDE = "damaged-"


def name_of(step: int) -> str:
    """Returns the name of the checkpoint of a step."""
    return f"step-{step:08d}"


def step_of(path: Place) -> int:
    """Returns the step of a checkpoint."""
    return int(path.name.removeprefix("step-"))


def checkpoints_in(directory: Place) -> list[Place]:
    """Returns the checkpoints of a directory, in no order. It may hold other things, too."""
    found = _named_in(directory)
    return found if isinstance(directory, Path) else [p for p in found if _is_finished(p)]


def terms_in(directory: Place) -> dict[Place, int | None]:
    """Returns the terms of the checkpoints; None if the manifest is missing or damaged."""
    return {path: _term_of(path) for path in checkpoints_in(directory)}


def by_age(directory: Place) -> list[Place]:
    """Returns the checkpoints, oldest first.

    Checkpoints of an earlier start of the job are older, whatever their step. The term of a
    checkpoint without a manifest is unknown: it counts as one of the newest start.
    """
    found = terms_in(directory)
    newest_term = newest(found)

    def age(path: Place) -> tuple[int, int]:
        term = found[path]
        return newest_term if term is None else term, step_of(path)

    return sorted(found, key=age)


def newest(terms: Mapping[Place, int | None]) -> int:
    """Returns the newest of some terms; 0 if there are none."""
    return max((term for term in terms.values() if term is not None), default=0)


def _term_of(path: Place) -> int | None:
    try:
        return manifest.read(path).term
    except (OSError, ValueError):
        return None


def of_job(job_dir: Path) -> list[Path]:
    """Returns the directories for checkpoints of all trainings of a job."""
    return [d / files.CHECKPOINTS for d in (job_dir, *job_dir.glob("training-*"))]


def remove_tree(directory: Place) -> None:
    """Removes a directory as far as possible, if it is there."""
    if isinstance(directory, Path):
        shutil.rmtree(directory, ignore_errors=True)
    else:
        directory.remove_tree()


@contextlib.contextmanager
def being_written(final: Place) -> Iterator[Place]:
    """Yields a directory to write to, which `put_in_place` then renames to `final`.

    If that does not happen, the directory is removed.
    """
    if isinstance(final, Path):
        with _removed_at_the_end(final.with_name(f".{final.name}.{os.getpid()}")) as temporary:
            yield temporary
        return
    final.remove_tree()
    try:
        yield final
    except BaseException:
        final.remove_tree()
        raise


def put_in_place(temporary: Place, final: Place) -> None:
    """Renames a directory. An existing one of that name stays until then, and if this fails."""
    if not isinstance(temporary, Path) or not isinstance(final, Path):
        return
    with _removed_at_the_end(temporary.with_name(f"{temporary.name}.before")) as before:
        if final.exists():
            final.rename(before)
        try:
            temporary.rename(final)
        except OSError:
            if before.exists():
                before.rename(final)
            raise
        manifest.sync(final.parent)


def remove_unfinished(directory: Place) -> None:
    """Removes checkpoints that killed processes left unfinished. None may write meanwhile.

    A checkpoint that one of these processes was about to replace gets its name back.
    """
    if not isinstance(directory, Path):
        for unfinished in [p for p in _named_in(directory) if not _is_finished(p)]:
            remove_tree(unfinished)
        return
    for path in directory.glob(".step-*"):
        replaced = BEFORE.fullmatch(path.name)
        if replaced and not path.with_name(replaced[1]).exists():
            with contextlib.suppress(OSError):
                path.rename(path.with_name(replaced[1]))
        else:
            shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Place) -> None:
    """Renames a damaged checkpoint if possible, so that it no longer counts as a checkpoint."""
    if not isinstance(path, Path):
        return
    aside = path.with_name(ASIDE + path.name)
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):  # on a disk that cannot be written, it stays
        path.rename(aside)


def _named_in(directory: Place) -> list[Place]:
    if not directory.is_dir():
        return []
    return [path for path in directory.iterdir() if NAME.fullmatch(path.name)]


def _is_finished(path: Place) -> bool:
    return (path / manifest.NAME).exists()


@contextlib.contextmanager
def _removed_at_the_end(directory: Path) -> Iterator[Path]:
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
