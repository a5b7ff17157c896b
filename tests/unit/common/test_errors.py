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


def test_the_lines_of_the_user_are_shown_and_not_those_of_libraries(tmp_path: Path) -> None:
    source = (
        "import json\n"
        "class Code(json.JSONEncoder):\n"
        "    def default(self, value):\n        return value['missing']\n"
        "for indent in range(1):\n"
        "    json.dumps([{1}], cls=Code, indent=1)\n"
    )
    text = printed_by(source, tmp_path)
    assert "encoder.py" in text
    lines = error_in(text)
    assert [line.partition(", line ")[2] for line in lines if "File" in line] == [
        "6, in <module>",
        "4, in default",
    ]
    assert "^" in "".join(lines), "the marks of the last line"
    assert lines[-1] == "TypeError: 'set' object is not subscriptable"


def test_marks_without_spaces_before_them_end_no_traceback() -> None:
    frame = ['  File "/home/me/train.py", line 3, in <module>', "    _train(it)", "^^^^^^^^^"]
    inner = ['  File "/home/me/train.py", line 1, in _train', "    it[a]"]
    lines = ["Traceback (most recent call last):", *frame, *inner, "KeyError: 'a'"]
    assert error_in("\n".join(lines)) == lines


def test_the_message_of_autograph_is_shown_to_its_end() -> None:
    message = ["TypeError: in user code:", '    File "train.py", line 5, in mix  *']
    message += ["        return a * b, b", "    TypeError: Input 'y' has type float32"]
    generated = '  File "/tmp/__autograph_generated_file0.py", line 12, in tf__mix'
    own = '  File "/home/me/train.py", line 6, in <module>'
    text = "\n".join(["Traceback (most recent call last):", own, generated, *message])
    assert error_in(text) == ["Traceback (most recent call last):", own, MORE, *message]


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
