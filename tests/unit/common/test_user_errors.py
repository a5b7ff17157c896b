"""Errors of a user's module are shown from the user's first line on."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from hvd_elastic_keras.api.model_module import import_model_module
from hvd_elastic_keras.common.errors import MOST_LINES, ModelModuleError, explain

DEEP = """
def deep(n):
    if not n:
        raise RuntimeError("too deep")
    {recursion}
"""


def raised(source: str, file: Path) -> BaseException:
    """What running a source raises."""
    file.write_text(source)
    try:
        exec(compile(source, str(file), "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_our_own_frames_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    text = explain(raised("def f():\n    return {}['nope']\nf()\n", file), file)
    assert text.startswith(f'  File "{file}", line 3, in <module>')
    assert text.endswith("KeyError: 'nope'")
    assert __file__ not in text


def test_without_a_frame_of_the_user_the_error_alone_is_told(tmp_path: Path) -> None:
    error = raised("1 / 0", tmp_path / "m.py")
    assert explain(error, tmp_path / "other.py") == "ZeroDivisionError: division by zero"
    assert explain(error, None) == "ZeroDivisionError: division by zero"


def test_the_middle_of_a_long_traceback_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    # By turns, or Python itself would say "repeated".
    recursion = "return deep(n - 1) if n % 2 else (lambda: deep(n - 1))()"
    text = explain(raised(DEEP.format(recursion=recursion) + "deep(30)\n", file), file)
    lines = text.splitlines()
    assert len(lines) == MOST_LINES + 2
    assert "  …" in lines
    assert lines[-1] == "RuntimeError: too deep"


@pytest.mark.parametrize(
    ("code", "words"),
    [("3", "ended the program (exit code 3)"), ("'set MY_DATA'", "the program: set MY_DATA")],
)
def test_a_module_that_exits_says_so(code: str, words: str, tmp_path: Path) -> None:
    error = raised(f"raise SystemExit({code})", tmp_path / "m.py")
    assert words in explain(error, tmp_path / "m.py")


def test_a_script_is_not_run_to_find_out_that_it_is_no_module(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    with pytest.raises(ModelModuleError, match=r"no function model\(\).*without --model"):
        import_model_module(str(script))
    assert not script.with_suffix(".ran").exists()


@pytest.mark.parametrize(
    "source",
    [
        "from {other} import model, dataset\n",
        "from {other} import *\n",
        "model = dataset = lambda split=None: None\n",
        "if True:\n    def model(): ...\n    async def dataset(split): ...\n",
    ],
)
def test_the_two_functions_may_come_from_anywhere(source: str, tmp_path: Path) -> None:
    other = tmp_path / "other_module.py"
    other.write_text("def model(): ...\ndef dataset(split): ...\n")
    module = tmp_path / "module_of_test.py"
    module.write_text(source.format(other="other_module"))
    found = import_model_module(str(module))
    assert callable(found.model)
    assert callable(found.dataset)


def test_an_error_in_an_import_is_shown_with_its_line(tmp_path: Path) -> None:
    module = tmp_path / "module_with_error.py"
    module.write_text("def model(): ...\ndef dataset(split): ...\nprint(undefined)\n")
    with pytest.raises(ModelModuleError, match=r"(?s)cannot be imported.*line 3.*NameError"):
        import_model_module(str(module))
