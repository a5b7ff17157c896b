"""Checks whether TensorFlow, Keras and Horovod can be imported, and have tested versions.

It also looks for programs and packages that only some jobs need.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hvd_elastic_keras.cli.checks.finding import OK, PROBLEM, WARNING, Finding
from hvd_elastic_keras.common import versions
from hvd_elastic_keras.common.errors import error_in
from hvd_elastic_keras.settings import env

PROBE = "hvd_elastic_keras.worker.probes.imports"
IMPORT_TIMEOUT_S = 300.0
"""Limit for the imports: on a busy machine with a cold disk, TensorFlow alone may take a minute."""
DISTRIBUTION = "hvd-elastic-keras"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TESTED_SYSTEM = "Linux x86_64"


def set_up(otherwise: str) -> str:
    """Returns how to fix an installation: the setup script of a checkout, else `otherwise`."""
    script = versions.CHECKOUT / "scripts" / "setup"
    return f"Run {script}" if script.is_file() else otherwise


def python() -> Finding:
    """Checks the Python interpreter and the system that it runs on."""
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    found = f"{version} on {system} ({sys.executable})"
    if not versions.PYTHON.holds(version):
        remedy = "Install one of these; scripts/setup takes PYTHON=/path/to/it"
        return Finding(PROBLEM, "Python", found, str(versions.PYTHON), remedy)
    if system != TESTED_SYSTEM:
        return Finding(WARNING, "Python", found, f"{TESTED_SYSTEM}, as nothing else is tested")
    return Finding(OK, "Python", found)


def packages() -> Finding:
    """Checks whether the requirements of `setup.py` are installed, without the three big ones."""
    missing = [name for name in _required() if not _is_installed(name)]
    if not missing:
        return Finding(OK, "packages", "all that are required are installed")
    remedy = set_up(f"Run {sys.executable} -m pip install {' '.join(missing)}")
    return Finding(PROBLEM, "packages", f"{', '.join(missing)} missing", "all of them", remedy)


def _required() -> list[str]:
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []  # used from its sources: a missing package shows when it is imported
    # The text after a semicolon says for which extra, or which Python, a line is.
    named = [m.group() for line in lines if ";" not in line and (m := NAME.match(line))]
    return [name for name in named if name not in versions.COMPARED]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def big_three(
    timeout_s: float = IMPORT_TIMEOUT_S, imported: dict[str, Any] | None = None
) -> Iterator[Finding]:
    """Checks TensorFlow, Keras and Horovod, up to the first that cannot be used.

    A separate process imports them, because an import may end its process in any way.

    Args:
      timeout_s: seconds for all three imports.
      imported: dictionary to which the data found about each package is added.
    """
    lines, end = _probe(timeout_s)
    began = ""
    for line in lines:
        if "begins" in line:
            began = line["begins"]
        elif "found" in line:
            began = ""
            if imported is not None:
                imported.update(line)
            yield JUDGES[line["found"]](line)
        else:
            began = ""
            yield _failed(line)
    if began or not lines:
        yield _unusable(began or "TensorFlow", end)


def _probe(timeout_s: float) -> tuple[list[dict[str, Any]], str]:
    """Returns the JSON lines of the process, and how the process has ended."""
    command = [sys.executable, "-W", "ignore", "-m", PROBE]
    variables = env.child_environment({}, {})
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=variables
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        text = said.decode() if isinstance(said, bytes) else said
        return json_lines(text), f"importing it has not ended after {timeout_s:g} s"
    return json_lines(done.stdout), _how_it_ended(done.returncode, done.stderr)


def json_lines(text: str) -> list[dict[str, Any]]:
    """Returns the JSON objects among the lines that a process has printed. Ignores other lines.

    >>> json_lines('{"a": 1}\\nnoise\\n[2]\\n')
    [{'a': 1}]
    """
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _how_it_ended(code: int, errors: str) -> str:
    if code >= 0:
        last = error_in(errors)[-1:]
        return f"importing it ends the process with exit code {code}: {' '.join(last)}"
    name = signal.Signals(-code).name
    why = ", an instruction that this processor lacks" if -code == signal.SIGILL else ""
    return f"importing it kills the process by {name}{why}"


def _failed(line: Mapping[str, Any]) -> Finding:
    if "refusal" in line:  # a refusal says itself what to do
        return Finding(PROBLEM, line["failed"], line["refusal"])
    return _unusable(line["failed"], line["why"])


def _unusable(name: str, why: str) -> Finding:
    return Finding(PROBLEM, name, why, "an import without an error", REMEDIES[name])


def _tensorflow(found: Mapping[str, Any]) -> Finding:
    text, releases = found["version"], versions.TENSORFLOW
    if not releases.holds(found["version"]):
        return Finding(WARNING, "TensorFlow", text, f"{releases} (tested)", REMEDIES["TensorFlow"])
    gpus = f", sees {found['gpus']} GPUs" if found["gpus"] else ""
    return Finding(OK, "TensorFlow", text + gpus)


def _keras(found: Mapping[str, Any]) -> Finding:
    return Finding(OK, "Keras", f"{found['version']}, with all private names that are relied on")


def _horovod(found: Mapping[str, Any]) -> Finding:
    """Judges Horovod: useless without Gloo; without the patch, a failure may end the survivors."""
    text, wanted = found["version"], versions.wanted_horovod()
    remedy = REMEDIES["Horovod"]
    if not found["gloo"]:
        return Finding(PROBLEM, "Horovod", f"{text} without Gloo", "one with Gloo", remedy)
    if versions.PATCHED not in text:
        what = "without the project's patch: a worker that is killed may end others"
        return Finding(WARNING, "Horovod", f"{text} {what}", wanted or "a patched one", remedy)
    if wanted and text != wanted:
        return Finding(WARNING, "Horovod", f"{text}, of another checkout", wanted, remedy)
    return Finding(OK, "Horovod", f"{text} (patched), {'NCCL' if found['nccl'] else 'Gloo'}")


JUDGES = {"TensorFlow": _tensorflow, "Keras": _keras, "Horovod": _horovod}
_PIP = f"Run {sys.executable} -m pip install"
REMEDIES = {
    "TensorFlow": set_up(f"{_PIP} 'tensorflow{versions.TENSORFLOW.requirement}'"),
    "Keras": set_up(f"{_PIP} 'keras{versions.KERAS.requirement}'"),
    "Horovod": set_up("Build it for this TensorFlow with scripts/build_horovod_wheel (BUILD.md)"),
}


def optional() -> Iterator[Finding]:
    """Checks each optional program and package. None of them is needed for a job on this host."""
    yield program("ssh", "openssh-client", "--hosts, --hostfile, --host_discovery_script")
    yield program("openssl", "openssl", "--tls")
    yield library("kubernetes", "--launcher=kubernetes")


def program(name: str, package: str, needed_by: str) -> Finding:
    """Checks for a program of the system.

    Args:
      package: the package of Debian and Ubuntu that holds the program.
    """
    path = shutil.which(name)
    if path:
        return Finding(OK, name, path)
    missing = f"not installed; only {needed_by} would need it"
    return Finding(OK, name, missing, remedy=f"sudo apt-get install {package}")


def library(name: str, needed_by: str) -> Finding:
    """Checks for a Python package."""
    if importlib.util.find_spec(name):
        return Finding(OK, name, "installed")
    missing = f"not installed; only {needed_by} would need it"
    return Finding(OK, name, missing, remedy=f"{sys.executable} -m pip install {name}")
