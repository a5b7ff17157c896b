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
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hvd_elastic_keras.cli.flags import find_model
from hvd_elastic_keras.common.errors import ConfigurationError

PACKAGE = "hvd_elastic_keras"
HOROVOD = "horovod"
FOR_TENSORFLOW = ("horovod", "horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")
AS_MODULE = "-m"
"""The first word of a script that is named as a module."""
LOG_FILES = ("FileHandler", "RotatingFileHandler", "TimedRotatingFileHandler")
"""Classes of `logging` that keep a file open."""
REMOVERS = ("os.remove", "os.removedirs")
"""Functions that remove files."""
REMOVERS_OF_PATHS = ("unlink", "rmdir")
"""Functions of `os` that remove files, and methods of paths with the same names."""
APPENDING = (
    "warning: this script appends to files, or keeps them open ({}). All workers run it, so that "
    "the file gets the lines of each, and a replacement that opens it with mode 'w' empties it. "
    "Give each worker a file of its own: with os.environ.get('HVD_ELASTIC_WORKER_ID', '') in its "
    "name. See docs/scripts.md."
)
REMOVING = (
    "warning: this script removes files ({}). All workers run it, and each replacement of a worker "
    "does so from the beginning, while the others train. Use shutil.rmtree, which is done once, or "
    "remove before you start the job. See docs/scripts.md."
)
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
    if any(_is_in(i.module, PACKAGE) for i in imports):
        return
    found = next((i for i in imports if _is_in(i.module, HOROVOD)), None)
    if found is None:
        return
    raise ConfigurationError(
        f"{found.path.name} imports {found.module} in line {found.line}, and nothing of "
        f"{PACKAGE}, so that each worker would be rank 0 of 1 and train alone. {_remedy(found)}"
    )


def _remedy(found: Import) -> str:
    if found.module not in FOR_TENSORFLOW and not _is_in(found.module, "horovod.tensorflow"):
        return f"{PACKAGE} trains Keras models on TensorFlow; this script needs horovodrun."
    return (
        f"Write `import {PACKAGE}.horovod as {found.alias}` there; docs/coming_from.md says what "
        "else differs. If an installed module of yours trains with this package, let the script "
        f"`import {PACKAGE}`."
    )


def warning_of_flags(
    script: Sequence[str], is_flag: Callable[[str], bool], *, as_module: bool
) -> str:
    """Returns a warning about flags of `run` after the name of a script; empty without any.

    Flags after `--` clearly belong to the script.

    Args:
      script: name and arguments of the script; `--` may precede the name.
      is_flag: whether `run` would take a flag of this name, given before the script.
      as_module: whether the script is named as a module.
    """
    name, *arguments = script
    run = f"run {AS_MODULE}" if as_module else "run"
    meant = itertools.takewhile(lambda word: word != "--", arguments) if name != "--" else ()
    words = [w for w in meant if w.startswith("--") and is_flag(w[2:].partition("=")[0])]
    if not words:
        return ""
    found = " ".join(words)
    return (
        f"warning: {found} stands after {name}, so that the script gets it, and run does not. For "
        f"run, put it before the script: {run} {found} {name}. If it is meant for the script, say "
        f"so with --: {run} -- {name} {found}."
    )


def warnings_of_files(script: Sequence[str], directory: Path) -> list[str]:
    """Returns warnings about files that each worker would write line by line, or remove.

    Files that are written at once, by each worker alike, are not among them. A script that imports
    this package says by itself who writes.

    Args:
      script: see `file_of`, like the directory.
    """
    files = list(_parsed_files(script, directory))
    if any(_is_in(found.module, PACKAGE) for file in files for found in file.imports):
        return []
    kept = {id(n.value) for file in files for n in file.nodes if isinstance(n, ast.Assign)}
    calls = [
        (node, f"{_dotted_name(node.func)} in line {node.lineno} of {file.path.name}")
        for file in files
        for node in file.nodes
        if isinstance(node, ast.Call)
    ]

    def appends(call: ast.Call) -> bool:
        return _appends(call, is_kept=id(call) in kept)

    return [
        warning.format(", ".join(found))
        for is_meant, warning in ((appends, APPENDING), (_removes, REMOVING))
        if (found := [place for node, place in calls if is_meant(node)])
    ]


def _removes(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in REMOVERS_OF_PATHS
    return is_method or _dotted_name(call.func) in REMOVERS


def _appends(call: ast.Call, *, is_kept: bool) -> bool:
    dotted = _dotted_name(call.func)
    name = dotted.rpartition(".")[2]
    given = {word.arg: word.value for word in call.keywords}
    if name == "basicConfig":
        return "filename" in given
    if name in LOG_FILES:
        return True
    if name != "open":
        return False
    # The first argument of the method of a path is what the second one of the function is.
    place = 0 if isinstance(call.func, ast.Attribute) and dotted != "io.open" else 1
    modes = "[awx][bt+]*" if is_kept else "a[bt+]*"
    return _is_text(given.get("mode", _argument(call, place)), modes)


def _argument(call: ast.Call, place: int) -> ast.expr | None:
    return call.args[place] if place < len(call.args) else None


def _is_text(node: ast.expr | None, pattern: str) -> bool:
    """Whether an argument is written as a text of this form."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and re.fullmatch(pattern, text) is not None


def _dotted_name(node: ast.expr) -> str:
    """Returns a name as it is written, with those before it: `logging.FileHandler`."""
    if isinstance(node, ast.Attribute):
        before = _dotted_name(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


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


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _imports_of_script(script: Sequence[str], directory: Path) -> Iterator[Import]:
    """Yields the imports of a script, and of the modules of its user that it imports."""
    for file in _parsed_files(script, directory):
        yield from file.imports


def _parsed_files(script: Sequence[str], directory: Path) -> Iterator[ParsedFile]:
    """Yields the files of a script, and of the modules of its user that it imports."""
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
