"""The direction of imports, and that the command lines answer without TensorFlow."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest

PACKAGE = "hvd_elastic_keras"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE
HEAVY = {"tensorflow", "keras", "horovod", "tf_keras"}
LEVELS = {
    **dict.fromkeys(["common"], 0),
    **dict.fromkeys(["settings"], 1),
    **dict.fromkeys(["launchers", "observe", "keras_internals"], 2),
    **dict.fromkeys(["master", "worker", "data"], 3),
    **dict.fromkeys(["step", "state"], 4),
    **dict.fromkeys(["audit"], 5),
    **dict.fromkeys(["loop"], 6),
    **dict.fromkeys(["api"], 7),
    **dict.fromkeys(["cli"], 8),
    **dict.fromkeys(["chaos"], 9),
}
"""The rooms, from the ground up; a room may only import from lower ones, and from itself."""
DOORS = {"run", "ctl", "report", "doctor", "elastic", "horovod", "_version"}
"""Modules at the top level: they import what they open to, and nothing imports them."""
CONTROL = {
    *("common", "settings", "launchers", "observe", "master", "cli", "chaos"),
    *("run", "ctl", "report", "doctor"),
}
"""What never reaches TensorFlow, except for the process of a worker."""
WORKER_PROCESSES = (f"{PACKAGE}.cli.worker_main", f"{PACKAGE}.cli.script_main")
WORKERS_WING = {"worker", "data", "keras_internals", "step", "state", "audit", "loop", "api"}
CONTROLS_WING = {"master", "launchers", "cli", "chaos"}


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


@functools.cache
def syntax_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """Absolute names of all modules that a module imports, at the top or in functions."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    result: set[str] = set()
    for node in statements(syntax_of(module)):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                result.add(full if full in MODULES else base)
    return frozenset(result)


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


def own_imports_of(module: str) -> set[str]:
    return {name for name in imports_of(module) if name.startswith(f"{PACKAGE}.")}


def offences(
    modules: Iterable[str], of: Callable[[str], Collection[object]]
) -> dict[str, Collection[object]]:
    """What each of these modules does against a rule; modules that do nothing are left out."""
    modules = list(modules)
    assert modules
    return {module: found for module in modules if (found := of(module))}


def test_the_rules_know_all_rooms() -> None:
    found = {area(module) for module in MODULES} - {""}
    assert found == LEVELS.keys() | DOORS


def test_a_room_imports_from_lower_ones_only() -> None:
    def not_lower(module: str) -> set[str]:
        here = area(module)
        others = {area(name) for name in own_imports_of(module)} - {here, "_version"}
        return {name for name in others if LEVELS.get(name, 99) >= LEVELS[here]}

    assert offences(in_areas(set(LEVELS)), not_lower) == {}


def test_there_is_no_circle_of_modules() -> None:
    graph = {module: own_imports_of(module) & MODULES.keys() for module in MODULES}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_there_is_no_circle_of_folders() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        folder = module.rpartition(".")[0]
        others = {name.rpartition(".")[0] for name in own_imports_of(module)}
        graph.setdefault(folder, set()).update(others - {folder, PACKAGE})
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_the_control_side_never_reaches_tensorflow() -> None:
    def heavy(module: str) -> dict[str, str]:
        return {
            name: importer
            for name, importer in reachable_from(module).items()
            if name.partition(".")[0] in HEAVY
        }

    assert offences((m for m in in_areas(CONTROL) if m not in WORKER_PROCESSES), heavy) == {}


def test_the_workers_wing_knows_nothing_of_master_and_launchers() -> None:
    def of_control(module: str) -> set[str]:
        return {name for name in own_imports_of(module) if area(name) in CONTROLS_WING}

    assert offences(in_areas(WORKERS_WING), of_control) == {}


OTHERS_THAN_KERAS_INTERNALS = [m for m in MODULES if area(m) != "keras_internals"]


def test_private_names_of_keras_and_tensorflow_are_in_one_folder() -> None:
    def private(module: str) -> set[str]:
        folders = ("keras.src", "tensorflow.python")
        return {name for name in imports_of(module) if name.startswith(folders)}

    assert offences(OTHERS_THAN_KERAS_INTERNALS, private) == {}


def test_private_attributes_of_others_are_read_in_one_folder() -> None:
    """Those of this package's own objects are written as attributes, not as texts."""

    def private(module: str) -> list[str]:
        calls = [n for n in ast.walk(syntax_of(module)) if isinstance(n, ast.Call)]
        return [
            ast.unparse(call)
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr", "setattr")
            for name in call.args[1:2]
            if isinstance(name, ast.Constant) and re.match("_[a-z]", str(name.value))
        ]

    assert offences(OTHERS_THAN_KERAS_INTERNALS, private) == {}


MAY_TOUCH_THE_ENVIRONMENT = {
    f"{PACKAGE}.settings.env",
    # A program of its own, which cannot import the package: it hands all of it on.
    f"{PACKAGE}.launchers.keeper",
}


def test_only_env_touches_the_environment() -> None:
    def touched(module: str) -> set[str]:
        nodes = list(ast.walk(syntax_of(module)))
        attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        imported = {
            alias.name
            for n in nodes
            if isinstance(n, ast.ImportFrom) and n.module == "os"
            for alias in n.names
        }
        names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
        return names & (attributes | imported)

    assert offences((m for m in MODULES if m not in MAY_TOUCH_THE_ENVIRONMENT), touched) == {}


PURE = [
    *(m for m in MODULES if m.startswith(f"{PACKAGE}.master.machine.")),
    *(
        f"{PACKAGE}.{name}"
        for name in (
            "common.events",
            "common.goodput",
            "launchers.hosts",
            "chaos.outcome",
            "data.plan.partition",
            "data.plan.fit_passes",
            "loop.schedule",
            "common.batch_plan",
            "state.cursor",
        )
    ),
]


def test_pure_modules_know_no_clock_socket_or_process() -> None:
    def impure(module: str) -> set[str]:
        names = {"time", "datetime", "random", "os", "socket", "subprocess", "threading", "asyncio"}
        return {name.partition(".")[0] for name in imports_of(module)} & names

    assert offences(PURE, impure) == {}


def test_the_rules_would_notice_a_wrong_import() -> None:
    assert "tensorflow" in reachable_from(f"{PACKAGE}.worker.horovod_runtime")
    assert f"{PACKAGE}.settings.env" in imports_of(f"{PACKAGE}.run")


@pytest.mark.parametrize(
    "modules", [f"hvd_elastic_keras.{name}" for name in ("run", "ctl", "report", "doctor")]
)
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


OUTER = re.compile(
    r"hvd_elastic_keras\."
    r"((run|ctl|report|doctor|elastic|horovod)$|cli\b|chaos\b|audit\.report|worker\.probes\b"
    r"|launchers\.(kubernetes|ssh|discovery|hosts)"
    r"|observe\.(job_course|job_history|pages|report_page|tensorboard|timeline)"
    r"|api\.inference_|step\.predict_step|api\.horovod\b|common\.tf_config|worker\.launched_)"
)
"""Rooms that plug into the core: other places to run workers, pages, reports, tools, other jobs."""
CORE = re.compile(
    r"hvd_elastic_keras\."
    r"((common|settings|data|keras_internals|step|state|loop|worker|master)\b|launchers\.local"
    r"|api\.(prepare|train|build_loop|callback|trainer|training|elastic_loop|fit_))"
)
TIES = {
    "state.one_writer",
    *(f"worker.{name}" for name in ("membership", "other_launchers", "turns")),
}
"""Still ask `worker.launched_session` whether `horovodrun` has started this process."""


def test_the_core_imports_no_outer_room() -> None:
    found = {
        (module.removeprefix(f"{PACKAGE}."), imported.removeprefix(f"{PACKAGE}."))
        for module in MODULES
        if CORE.match(module) and not OUTER.match(module)
        for imported in imports_of(module)
        if OUTER.match(imported)
    }
    under_horovodrun = {(m, i) for m, i in found if i.startswith("worker.launched_")}
    assert found == under_horovodrun
    assert {module for module, _ in under_horovodrun} == TIES
