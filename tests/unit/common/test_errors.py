"""Of an error, people see its name, its place and its first lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_keras.common.errors import MORE, error_in, head_of, in_one_line

ADVICE = "\nObject VAE cannot be saved:\nit has no get_config.\n\nExample:\n\n" + "\n".join(
    f"class Layer{n}:\n    pass" for n in range(30)
)


def printed_by(source: str, directory: Path) -> str:
    """What a process prints to stderr that runs a script."""
    script = directory / "script.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stderr


def test_of_an_error_with_pages_of_advice_the_first_lines_are_shown(tmp_path: Path) -> None:
    source = (
        f"def save():\n    raise NotImplementedError({ADVICE!r})\n"
        "def even(n):\n    odd(n - 1) if n else save()\n"
        "def odd(n):\n    even(n - 1)\n"
        "even(40)\n"
    )
    lines = error_in("a line of the script\n" + printed_by(source, tmp_path))
    assert len(lines) < 25
    assert any(line.endswith("in save") for line in lines)
    assert lines.index("NotImplementedError: ") + 1 == lines.index("Object VAE cannot be saved:")
    assert "a line of the script" not in lines
    assert lines[-1] == MORE


def test_the_last_of_several_errors_is_the_one_that_is_shown(tmp_path: Path) -> None:
    source = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['name']\n"
    lines = error_in(printed_by(source, tmp_path))
    assert lines[-1] == "KeyError: 'name'"
    assert not any("ZeroDivisionError" in line for line in lines)


def test_an_error_without_a_traceback_is_found_after_an_older_one_with_it(tmp_path: Path) -> None:
    text = printed_by("1 / 0", tmp_path) + "error: epochs=0 was given.\nfinished\n"
    assert error_in(text) == ["error: epochs=0 was given.", "finished"]


@pytest.mark.parametrize("text", ["", "one\ntwo\n", "Traceback (most recent call last):\n"])
def test_without_an_error_the_last_lines_are_shown(text: str) -> None:
    assert error_in(text) == text.splitlines()


def test_an_error_fits_into_one_line() -> None:
    assert in_one_line(NotImplementedError(ADVICE)) == (
        "NotImplementedError: Object VAE cannot be saved: it has no get_config."
    )
    assert in_one_line(ValueError()) == "ValueError"
    assert len(in_one_line(ValueError("long " * 1000))) < 330


def test_the_place_of_a_syntax_error_is_kept() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("model = (", "model.py", "exec")
    assert "model = (" in "\n".join(head_of(caught.value))
