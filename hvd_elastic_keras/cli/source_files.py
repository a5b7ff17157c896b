"""The source files that a job trains: the same on all hosts, and no unchanged script for Horovod.

Under `run`, Horovod's own `hvd.init()` makes each worker rank 0 of 1. That is fine in a script that
trains with this package, because this package makes the real rounds. In any other script, each
worker trains alone. A script that imports Horovod must therefore also import something of this
package, somewhere in its own files. `check_script` refuses others before any worker runs one to its
end.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hvd_elastic_keras.cli.flags import find_model
from hvd_elastic_keras.common.errors import ConfigurationError

PACKAGE = "hvd_elastic_keras"
HOROVOD = "horovod"
FOR_TENSORFLOW = ("horovod", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")
AS_MODULE = "-m"
"""The first word of a script that is named as a module."""
MOST_FILES = 1000
"""Most files of a script that are examined."""


def is_module(script: Sequence[str]) -> bool:
    """Returns whether a script is named as a module."""
    return script[0] == AS_MODULE


def name_of(script: Sequence[str]) -> str:
    """Returns a script or module as it stands on a command line, without its arguments."""
    return " ".join(script[:2] if is_module(script) else script[:1])


def file_of(script: Sequence[str], directory: Path) -> Path:
    """Returns the file of a script, or of a module that is run as `python -m` runs it.

    Args:
      script: the path of the script, or `AS_MODULE` and the name of the module; then arguments.
      directory: where the job is started.

    Raises:
      ConfigurationError: there is no such module. A file may be missing.
    """
    if not is_module(script):
        return (directory / script[0]).resolve()
    name = script[1]
    if all(part.isidentifier() for part in name.split(".")):
        for path in _places_of(name, directory):
            package = path / "__main__.py"
            in_order = [path.with_suffix(".py"), package]
            if (path / "__init__.py").is_file():
                in_order.reverse()
            for candidate in in_order:
                if candidate.is_file():
                    return candidate.resolve()
    is_file = name.endswith(".py") and (directory / name).is_file()
    remedy = f"leave out {AS_MODULE}" if is_file else "check the name"
    raise ConfigurationError(
        f"There is no module {name} to run in {directory}, nor an installed one: `python -m "
        f"{name}` would have to run it, too. To start it, {remedy}."
    )


def _places_of(name: str, directory: Path) -> Iterator[Path]:
    """Yields where a module may be, without its suffix. Nothing is imported."""
    first, *others = name.split(".")
    for place in (directory, *map(Path, sys.path)):
        yield place.joinpath(first, *others)
    with contextlib.suppress(ImportError, ValueError):
        # Packages that are installed to be edited may be found by a hook only.
        spec = importlib.util.find_spec(first)
        for location in (spec and spec.submodule_search_locations) or ():
            yield Path(location, *others)


def source_digests(script: Sequence[str], model: str, directory: Path) -> dict[str, str]:
    """Returns the SHA-256 of the files of a script or model module, by their names on any host.

    A script, or a module given by its path, includes the modules beside it that it imports. A
    dotted module, or a name of the zoo, includes all Python files of its directory.
    """
    base = base_of(script, model, directory)
    if script or model.endswith(".py"):
        files = files_of_script(script or [model], base)
    else:
        files = sorted(base.rglob("*.py"))
    if script and is_module(script):  # installed ones are elsewhere on other hosts
        files = [path for path in files if path.is_relative_to(base)]
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


@dataclasses.dataclass(frozen=True)
class Import:
    """An import in a file."""

    module: str
    path: Path
    line: int
    alias: str


@dataclasses.dataclass(frozen=True)
class ParsedFile:
    """A file with all nodes of its code; none if Python cannot read it."""

    path: Path
    nodes: Sequence[ast.AST]
    imports: Sequence[Import]


def first_place(script: Sequence[str], directory: Path) -> Path:
    """Returns the directory in which Python first searches what a script imports."""
    return directory.resolve() if is_module(script) else file_of(script, directory).parent


def check_script(script: Sequence[str], directory: Path) -> None:
    """Raises `ConfigurationError` if a script imports Horovod and nothing of this package.

    Args:
      script: see `file_of`, like the directory.
    """
    imports = list(_imports_of_script(script, directory))
    if any(is_in(i.module, PACKAGE) for i in imports):
        return
    found = next((i for i in imports if is_in(i.module, HOROVOD)), None)
    if found is None:
        return
    raise ConfigurationError(
        f"{found.path.name} imports {found.module} in line {found.line}, and nothing of "
        f"{PACKAGE}, so that each worker would be rank 0 of 1 and train alone. {_remedy(found)}"
    )


def _remedy(found: Import) -> str:
    if found.module not in FOR_TENSORFLOW and not is_in(found.module, "horovod.tensorflow"):
        return f"{PACKAGE} trains Keras models on TensorFlow; this script needs horovodrun."
    return (
        f"Write `import {PACKAGE}.horovod as {found.alias}` there; docs/coming_from.md says what "
        "else differs. If an installed module of yours trains with this package, let the script "
        f"`import {PACKAGE}`."
    )


def files_of_script(script: Sequence[str], directory: Path) -> list[Path]:
    """Returns the files of a script, and of its user's modules that it imports, in any depth.

    Args:
      script: see `file_of`, like the directory.
    """
    found, first = dict.fromkeys(_own_files(script, directory)), first_place(script, directory)
    for i in _imports_of_script(script, directory):
        found.update(dict.fromkeys(_files_of(i.module, _place(i, first))))
    return list(found)


def _own_files(script: Sequence[str], directory: Path) -> list[Path]:
    """Returns the file of a script or module, and those of the packages that the module is in."""
    around = _files_of(script[1], directory.resolve()) if is_module(script) else []
    return [file_of(script, directory), *around]


def _place(found: Import, first: Path) -> Path:
    """Returns the directory in which an imported module is searched."""
    return found.path.parent if found.module[0] == "." else first


def is_in(module: str, package: str) -> bool:
    """Returns whether a module is a package or in it, by their names."""
    return module == package or module.startswith(f"{package}.")


def _imports_of_script(script: Sequence[str], directory: Path) -> Iterator[Import]:
    """Yields the imports of a script, and of the modules of its user that it imports."""
    for file in parsed_files(script, directory):
        yield from file.imports


def parsed_files(script: Sequence[str], directory: Path) -> Iterator[ParsedFile]:
    """Yields the files of a script, and of the modules of its user that it imports.

    Args:
      script: see `file_of`, like the directory.
    """
    seen: set[Path] = set()
    todo, first = _own_files(script, directory), first_place(script, directory)
    while todo and len(seen) < MOST_FILES:
        path = todo.pop(0)
        if path in seen:
            continue
        seen.add(path)
        file = _parsed(path)
        yield file
        for found in file.imports:
            todo += _files_of(found.module, _place(found, first))


def _parsed(path: Path) -> ParsedFile:
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        nodes = []  # Python will report the error
    return ParsedFile(path, nodes, list(_imports_in(path, nodes)))


def _imports_in(path: Path, nodes: Iterable[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, path, node.lineno, name.asname or "hvd")
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if base != HOROVOD:
                yield Import(base, path, node.lineno, "hvd")
            for name in node.names:
                # `from horovod import tensorflow as hvd` imports the module of that name.
                module = f"{base}{'' if base.endswith('.') else '.'}{name.name}"
                yield Import(module, path, node.lineno, name.asname or "hvd")


def _files_of(module: str, place: Path) -> list[Path]:
    """Returns the files of a module in a directory, including those of its parent packages."""
    level = len(module) - len(module.lstrip("."))
    directory = (place, *place.parents)[max(0, level - 1)]
    parts = module.lstrip(".").split(".")
    paths = [directory.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    candidates = [c for p in paths for c in (p.with_suffix(".py"), p / "__init__.py")]
    return [c for c in candidates if c.is_file()]
