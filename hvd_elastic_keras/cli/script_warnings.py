"""Warnings about a script that are shown before its workers start. None of it is run."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hvd_elastic_keras.cli.source_files import AS_MODULE, PACKAGE, is_in, parsed_files

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

STUDIES = ("create_study", "load_study")
"""Functions of Optuna that open a study."""
TRIALS = (
    "warning: this script keeps a study in a storage ({}). All workers run it, and each takes "
    "trials of its own: they would not train the same model. Leave storage out and seed the "
    "sampler, so that all workers make the same trials, or start a job for each trial. See "
    "docs/notebooks.md."
)
RUNS = ("wandb.init", "mlflow.start_run", "neptune.init_run")
"""Functions that begin a run of an experiment tracker. So does `autolog` of MLflow."""
TRACKING = (
    "warning: this script begins runs of an experiment tracker ({}). All workers run it, and so "
    "does each replacement: there are several runs in place of one. Let one worker begin the run. "
    "See docs/tracking.md."
)


def warning_of_flags(
    script: Sequence[str], is_flag: Callable[[str], bool], *, as_module: bool
) -> str:
    """Returns a warning about flags of `run` after the name of a script; empty without any.

    Flags after `--` clearly belong to the script.

    Args:
      script: name and arguments of the script; `--` may precede the name. Empty without a script.
      is_flag: whether `run` would take a flag of this name, given before the script.
      as_module: whether the script is named as a module.
    """
    if not script:
        return ""
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
    """Returns warnings about what each worker would do again outside of its process.

    They name files that each worker would write line by line, or remove, and studies and trackers.
    Files that are written at once, by each worker alike, are not among them. A script that imports
    this package says by itself who writes.

    Args:
      script: see `file_of`, like the directory.
    """
    files = list(parsed_files(script, directory))
    if any(is_in(found.module, PACKAGE) for file in files for found in file.imports):
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
        for is_meant, warning in (
            (appends, APPENDING),
            (_removes, REMOVING),
            (_shares_study, TRIALS),
            (_begins_run, TRACKING),
        )
        if (found := [place for node, place in calls if is_meant(node)])
    ]


def _removes(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in REMOVERS_OF_PATHS
    return is_method or _dotted_name(call.func) in REMOVERS


def _shares_study(call: ast.Call) -> bool:
    storage = next((word.value for word in call.keywords if word.arg == "storage"), None)
    is_none = isinstance(storage, ast.Constant) and storage.value is None
    named = _dotted_name(call.func).rpartition(".")[2] in STUDIES
    return named and storage is not None and not is_none


def _begins_run(call: ast.Call) -> bool:
    dotted = _dotted_name(call.func)
    return dotted in RUNS or (dotted.startswith("mlflow.") and dotted.endswith(".autolog"))


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
