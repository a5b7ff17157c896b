"""The source files that a job trains; they must be the same on all hosts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_elastic_keras.cli import find_model
from hvd_elastic_keras.cli.check_script import files_of_script


def source_digests(script: Sequence[str], model: str, directory: Path) -> dict[str, str]:
    """Returns the SHA-256 of the files of a script or model module, by their names on any host.

    A script, or a module given by its path, includes the modules beside it that it imports. A
    dotted module, or a name of the zoo, includes all Python files of its directory.
    """
    base = base_of(script, model, directory)
    if script or model.endswith(".py"):
        files = files_of_script((base / (script[0] if script else model)).resolve())
    else:
        files = sorted(base.rglob("*.py"))
    return {_name(path, base): _digest(path) for path in files}


def base_of(script: Sequence[str], model: str, directory: Path) -> Path:
    """Returns the directory of this host to which the names of files are relative.

    Raises:
      ModelModuleError: there is no such model.
    """
    by_path = script or model.endswith(".py")
    return directory.resolve() if by_path else find_model.directory_of(model).resolve()


def differences(wanted: Mapping[str, str], base: Path) -> list[str]:
    """Returns the files that are missing or have other content than wanted."""
    return [name for name, digest in wanted.items() if _digest(base / name) != digest]


def _name(path: Path, base: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file; empty if there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
