"""What a process becomes that a fork server has forked: as if Python had been started for it.

A script must not notice that libraries are there before it imports them. So TensorFlow and what
builds on it is hidden from it until then. If it sets an environment variable before, which they
might have read, or would import them from elsewhere, Python is started anew in this process.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import json
import logging
import os
import runpy
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from hvd_elastic_keras.common import env
from hvd_elastic_keras.launchers.keeper import FORKED, GO, KEEPER_PID

HIDDEN = ("tensorflow", "keras", "horovod", "hvd_elastic_keras")
"""Packages that read the environment when they are imported, and those that import them."""
Variable: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
HARMLESS = {
    (b"KERAS_BACKEND", b"tensorflow"),  # which it is
    (b"TF_CPP_MIN_LOG_LEVEL", b"2"),
    (b"TF_CPP_MIN_LOG_LEVEL", b"3"),
}
"""What scripts set before they import TensorFlow, and what changes no result then."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a fork server is asked for.

    Attributes:
      command: `script.py [arguments]` or `-m module [arguments]`.
      environment: of the new process.
      keeper: if given, the new process becomes this command, which is told of its child, and the
        child runs `command`.
    """

    command: list[str]
    environment: dict[str, str]
    keeper: list[str]

    def encode(self) -> bytes:
        """As JSON, also if a variable is no UTF-8."""
        return json.dumps(dataclasses.asdict(self)).encode()


def take_over(request_file: int, stdout: int, stderr: int) -> Request:
    """Makes this process, a child of the fork server, the one that was asked for."""
    with open(request_file, "rb") as file:
        file.seek(0)
        request = Request(**json.loads(file.read()))
    null = os.open(os.devnull, os.O_RDONLY)
    _move((null, stdout, stderr))
    if request.keeper:
        os.setsid()
        _fork_under_keeper(request)
    else:
        _set_environment(request.environment)
    return request


def _fork_under_keeper(request: Request) -> None:
    """Returns in the child; this process becomes its keeper."""
    keeper = os.getpid()
    source, sink = os.pipe()
    waits, go = os.pipe()
    listens, told = os.pipe()
    worker = os.fork()
    if worker:
        for fd in (sink, waits, told):
            os.close(fd)
        os.read(listens, 1)  # then it has a session, which is to be killed as a whole
        for fd in (source, go):
            os.set_inheritable(fd, True)
        command = [*request.keeper, FORKED, str(worker), str(source), str(go)]
        os.execve(command[0], command, request.environment)
    os.setsid()
    os.dup2(sink, 1)
    for fd in (source, sink, go, listens, told):
        os.close(fd)
    if os.read(waits, 1) != GO:  # the keeper has refused it, or is gone
        os._exit(1)
    os.close(waits)
    _set_environment({**request.environment, KEEPER_PID: str(keeper)})


def _move(standard: tuple[int, int, int]) -> None:
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # TMPDIR is another one
    if random := sys.modules.get("numpy.random"):
        random.seed()  # as at its import; Python's own numbers are new after a fork


def _as_imported(changed: Mapping[str, str | None]) -> None:
    """What the import of the libraries does beside."""
    env.set_variables(changed)
    if logging.root.handlers:  # TensorFlow has one of its own only where there is none
        logging.getLogger("tensorflow").handlers.clear()


def run(command: Sequence[str], changed: Mapping[str, str | None]) -> None:
    """Runs a command as `python COMMAND…` would; raises what its end raises.

    Args:
      changed: environment variables that imports of libraries set, or remove.
    """
    name, *arguments = command
    sys.orig_argv = [sys.executable, *command]
    if name == "-m":
        module, *arguments = arguments
        sys.argv = [module, *arguments]
        _as_imported(changed)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    sys.argv = [name, *arguments]
    ImportGuard(_starter_anew(command), lambda: _as_imported(changed)).arm()
    _run_script(name)


def _starter_anew(command: Sequence[str]) -> Callable[[], NoReturn]:
    before, directory = dict(os.environ), os.getcwd()
    umask = os.umask(0)
    os.umask(umask)

    def start_anew() -> NoReturn:
        os.chdir(directory)
        os.umask(umask)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os.execve(sys.executable, [sys.executable, *command], before)

    return start_anew


def _run_script(name: str) -> None:
    path = os.path.join(os.getcwd(), name)
    main = types.ModuleType("__main__")
    scope: dict[str, Any] = main.__dict__
    scope.update(
        __file__=path,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __cached__=None,
        __annotations__={},
    )
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, scope)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        own = error.__traceback__
        error.__traceback__ = trace = own and own.tb_next  # without this function
        sys.excepthook(type(error), error, trace)
        sys.exit(1)


class ImportGuard(importlib.abc.MetaPathFinder):
    """Hides packages until they are imported, and sees what would have mattered to their import.

    Args:
      start_anew: ends the program and starts it without these packages.
      on_import: what else their import does.
    """

    def __init__(self, start_anew: Callable[[], NoReturn], on_import: Callable[[], None]) -> None:
        self._start_anew = start_anew
        self._on_import = on_import
        self._is_armed = False
        self._lock = threading.Lock()
        self._hidden: dict[str, types.ModuleType] = {}
        self._loaded: dict[str, types.ModuleType] = {}
        self._path, self._finders = list(sys.path), list(sys.meta_path)
        self._putenv, self._unsetenv = os.putenv, os.unsetenv

    def arm(self) -> None:
        """From now on."""
        for name, module in list(sys.modules.items()):
            package = name.partition(".")[0]
            if package in HIDDEN:
                self._hidden[name] = sys.modules.pop(name)
            if name == package and name not in sys.stdlib_module_names:
                self._loaded[name] = module
        sys.meta_path.insert(0, self)
        # `os.environ` calls these.
        os.putenv, os.unsetenv = self._may_set, self._may_set
        # A child would go on with what is hidden here, or start the whole program anew.
        os.register_at_fork(before=self._may_fork)
        self._is_armed = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of what is hidden. See `MetaPathFinder.find_spec`; who only asks uncovers nothing."""
        module = self._hidden.get(fullname)
        known = module.__spec__ if module else None
        if module is None or known is None:
            return None
        loader = _Hidden(module, known, self._uncover)
        spec = importlib.machinery.ModuleSpec(fullname, loader, origin=known.origin)
        spec.submodule_search_locations = known.submodule_search_locations
        spec.has_location, spec.cached = known.has_location, known.cached
        return spec

    def _uncover(self) -> None:
        """At the import of the first one, all are there."""
        with self._lock:
            if not self._is_armed:
                return
            if self._would_import_others():
                self._start_anew()
            os.putenv, os.unsetenv = self._putenv, self._unsetenv
            sys.modules.update(self._hidden)
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            self._on_import()
            self._is_armed = False

    def _would_import_others(self) -> bool:
        """Whether the script has changed what is found, or by whom."""
        others = [finder for finder in sys.meta_path if finder is not self]
        if others != self._finders or any(
            sys.modules.get(name, hidden) is not hidden for name, hidden in self._hidden.items()
        ):
            return True
        return sys.path != self._path and any(
            _origin(name, others) != _origin_of(module.__spec__)
            for name, module in self._loaded.items()
        )

    def _may_set(self, key: Variable, wanted: Variable | None = None) -> None:
        name, value = os.fsencode(key), None if wanted is None else os.fsencode(wanted)
        if value != os.environb.get(name) and (name, value) not in HARMLESS:
            self._start_anew()
        if value is None:
            self._unsetenv(name)
        else:
            self._putenv(name, value)

    def _may_fork(self) -> None:
        if self._is_armed:
            self._start_anew()


class _Hidden(importlib.abc.Loader):
    """Loads nothing: the module is there. All else is asked of its own loader."""

    def __init__(
        self,
        module: types.ModuleType,
        spec: importlib.machinery.ModuleSpec,
        uncover: Callable[[], None],
    ) -> None:
        self._module = module
        self._spec = spec
        self._uncover = uncover

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        self._uncover()


def _origin(name: str, finders: Sequence[Any]) -> str | None:
    """Where a package would be imported from now."""
    specs = (finder.find_spec(name, None) for finder in finders)
    return _origin_of(next((spec for spec in specs if spec), None))


def _origin_of(spec: importlib.machinery.ModuleSpec | None) -> str | None:
    return spec.origin if spec else None
