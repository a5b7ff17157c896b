"""The direction of imports, and that the command lines answer without TensorFlow."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "hvd_elastic_keras"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE
HEAVY = {"tensorflow", "keras", "horovod", "tf_keras"}
SHARED = {"batch_plan", "config", "env", "errors", "protocol", "files", "timeline", "console"}
SHARED |= {"_version", "ledger", "account"}
CONTROL = {
    "master",
    "launchers",
    "run",
    "ctl",
    "job_ledgers",
    "job_runner",
    "model_check",
    "model_location",
    "command_line",
}
TRAINING = {"worker", "data", "training", "checkpoint", "elastic", "horovod"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def area(module: str) -> str:
    """The folder or top-level module that rules are about; empty for the package itself."""
    return module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(node: ast.AST) -> list[ast.AST]:
    """All nodes that run, wherever they stand; not those for type checkers only."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        found += [child, *statements(child)]
    return found


def imports_of(module: str) -> set[str]:
    """Absolute names of all modules that a module imports, at the top or in functions."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    result: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                result.add(full if full in MODULES else base)
    return result


def reachable_from(module: str) -> dict[str, str]:
    """Everything imported in turn inside the package: name to the module that imports it."""
    seen: dict[str, str] = {}
    todo = [module]
    while todo:
        importer = todo.pop()
        for name in imports_of(importer):
            if name not in seen:
                seen[name] = importer
                if name in MODULES:
                    todo.append(name)
    return seen


def in_areas(areas: set[str]) -> list[str]:
    return [module for module in MODULES if area(module) in areas]


def test_the_areas_of_the_rules_exist_and_cover_the_package() -> None:
    found = {area(module) for module in MODULES} - {""}
    assert found == SHARED | CONTROL | TRAINING


@pytest.mark.parametrize("module", in_areas(SHARED | CONTROL))
def test_control_and_shared_modules_never_reach_tensorflow(module: str) -> None:
    heavy = {
        name: importer
        for name, importer in reachable_from(module).items()
        if name.partition(".")[0] in HEAVY
    }
    assert heavy == {}


@pytest.mark.parametrize("module", in_areas(TRAINING))
def test_training_modules_meet_the_control_side_in_shared_modules_only(module: str) -> None:
    own = {name for name in imports_of(module) if name.startswith(f"{PACKAGE}.")}
    wrong = {name for name in own if area(name) not in SHARED | TRAINING}
    assert wrong == set()


@pytest.mark.parametrize("module", in_areas(SHARED))
def test_shared_modules_import_shared_modules_only(module: str) -> None:
    own = {name for name in imports_of(module) if name.startswith(f"{PACKAGE}.")}
    assert {area(name) for name in own} <= SHARED


@pytest.mark.parametrize("module", [m for m in MODULES if m != f"{PACKAGE}.env"], ids=lambda m: m)
def test_only_env_touches_the_environment(module: str) -> None:
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    tree = ast.parse(MODULES[module].read_text())
    attributes = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    imported = {
        alias.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom) and n.module == "os"
        for alias in n.names
    }
    assert not names & (attributes | imported)


@pytest.mark.parametrize(
    "module",
    [
        "master.membership",
        "master.placement",
        "master.reasons",
        "master.restart_policy",
        "master.change_request",
        "master.slots",
        "master.status",
        "master.state",
        "master.actions",
        "data.partition",
        "data.passes",
        "training.schedule",
        "batch_plan",
        "training.cursor",
    ],
)
def test_pure_modules_know_no_clock_socket_or_process(module: str) -> None:
    impure = {"time", "datetime", "random", "os", "socket", "subprocess", "threading", "asyncio"}
    assert not {name.partition(".")[0] for name in imports_of(f"{PACKAGE}.{module}")} & impure


def test_the_rules_would_notice_a_wrong_import() -> None:
    assert "tensorflow" in reachable_from(f"{PACKAGE}.worker.communicator")
    assert f"{PACKAGE}.config" in imports_of(f"{PACKAGE}.run")


@pytest.mark.parametrize("modules", ["hvd_elastic_keras.run", "hvd_elastic_keras.ctl"])
def test_a_command_line_leaves_tensorflow_out_of_the_process(modules: str) -> None:
    assert heavy_after_importing(modules) == ("[]", "")


def test_both_command_lines_can_be_imported_together() -> None:
    assert heavy_after_importing("hvd_elastic_keras.run, hvd_elastic_keras.ctl") == ("[]", "")


def heavy_after_importing(modules: str) -> tuple[str, str]:
    """The heavy modules that a fresh process holds then, and the last line of its errors."""
    code = f"import sys, {modules}; print([m for m in {sorted(HEAVY)!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return result.stdout.strip(), "".join(result.stderr.splitlines()[-1:])
