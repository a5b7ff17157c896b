"""What the function of a notebook or script is when a worker has read it."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_keras.cli.functions import function_files
from hvd_elastic_keras.common import files

SCRIPT = """
def prepare(x):
    return [value["age"] for value in x]


class Pipeline:
    def run(self):
        return (lambda x: prepare(x))([{}])


def train():
    return Pipeline().run()
"""


def sent(function: Any, tmp_path: Path) -> Any:
    """A worker's copy."""
    content = function_files.pickled_call(function, (), {})
    files.write_secret(tmp_path / function_files.CALL, content)
    return function_files.load_call(tmp_path)[0]


@pytest.fixture
def script() -> dict[str, Any]:
    """The names of a module that a worker cannot import."""
    names: dict[str, Any] = {"__name__": "a_script_of_a_user"}
    exec(compile(SCRIPT, "a_script_of_a_user.py", "exec"), names)
    return names


def test_tracebacks_of_a_worker_name_the_file_and_the_lines_of_the_script(
    script: dict[str, Any], tmp_path: Path
) -> None:
    copy = sent(script["train"], tmp_path)
    assert copy is not script["train"]
    with pytest.raises(KeyError) as caught:
        copy()
    frames = traceback.extract_tb(caught.value.__traceback__)[1:]
    assert {f.filename for f in frames} == {"a_script_of_a_user.py"}
    assert [f.lineno for f in frames if f.name != "<listcomp>"] == [12, 8, 8, 3]


def test_a_worker_s_copy_is_sent_on_with_its_file_name(
    script: dict[str, Any], tmp_path: Path
) -> None:
    copy = sent(sent(script["train"], tmp_path), tmp_path)
    assert copy.__code__.co_filename == "a_script_of_a_user.py"


def test_what_pickles_by_name_still_does(tmp_path: Path) -> None:
    assert sent(pickle.dumps, tmp_path) is pickle.dumps
