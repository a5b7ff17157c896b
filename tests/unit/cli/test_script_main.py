"""`script_main` runs a script as `python script.py` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_elastic_keras.cli.job_request import worker_command

SCRIPTS = {
    "arguments and name": """
        import sys
        print(sys.argv, __name__, __file__)
    """,
    "modules beside it come first": """
        import sys
        import helpers
        print(helpers.__file__, sys.path[0])
    """,
    "pickles of its classes": """
        import pickle
        class Point:
            x = 3
        print(pickle.loads(pickle.dumps(Point())).x, type(Point()))
    """,
    "children begin with its file": """
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """,
    "flags of absl": """
        from absl import app, flags
        LAYERS = flags.DEFINE_integer("layers", 1, "")
        def main(argv):
            print(LAYERS.value, argv[1:], flags.FLAGS.get_key_flags_for_module("__main__") != [])
        if __name__ == "__main__":
            app.run(main)
    """,
    "end of exit handlers": """
        import atexit
        atexit.register(print, "last words")
        raise SystemExit(3)
    """,
    "an exit with a text": "raise SystemExit('no data')",
    "an error": """
        def fail():
            return 1 / 0
        fail()
    """,
    "an error of syntax": "print(1\n",
    "an error with a hook of its own": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("hooked", kind, trace.tb_lineno)
        raise KeyError("a")
    """,
    "code that is inspected": """
        import inspect
        def function():
            return 1  # one
        print(inspect.getsource(function))
    """,
}


def run(command: list[str], folder: Path) -> tuple[str, str, int]:
    path = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path},
    )
    return done.stdout, done.stderr, done.returncode


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_runs_as_python_runs_it(case: str, tmp_path: Path) -> None:
    lines = SCRIPTS[case].split("\n")
    script = "\n".join(line.removeprefix(" " * 8) for line in lines)
    (tmp_path / "train.py").write_text(script)
    for name in ("helpers", "json", "requests"):  # files of a user may have any name
        (tmp_path / f"{name}.py").write_text("")
    arguments = ["train.py", "--layers=2", "a b"]
    plain = run([sys.executable, *arguments], tmp_path)
    assert run(worker_command(arguments), tmp_path) == plain
    assert plain[0] or plain[1]


def test_a_script_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text("print('found')")
    (tmp_path / "code" / "train.py").write_text("import beside, sys\nprint(sys.argv, __file__)")
    plain = run([sys.executable, "code/train.py"], tmp_path)
    assert run(worker_command(["code/train.py"]), tmp_path) == plain
    assert plain[2] == 0


MODULES = {
    "a module that pickles at its end": "own.at_end",
    "a module of a package": "own.train",
    "a package": "own",
    "a module of a folder without __init__": "plain.train",
    "a module beside": "beside",
    "a module that fails": "own.fails",
}


@pytest.mark.parametrize("case", MODULES)
def test_a_module_runs_as_python_runs_it(case: str, tmp_path: Path) -> None:
    text = "import sys, beside\nprint(sys.argv, __name__, __package__, __spec__.name, __file__)\n"
    for folder in ("own", "plain"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(text)
    (tmp_path / "beside.py").write_text("print('found')")
    (tmp_path / "own" / "__init__.py").write_text("print('the package')")
    (tmp_path / "own" / "other.py").write_text("def fail(): raise KeyError('x')")
    (tmp_path / "own" / "__main__.py").write_text(f"from . import other\n{text}")
    (tmp_path / "own" / "at_end.py").write_text(
        "import atexit, pickle\nclass C: pass\natexit.register(lambda: print(pickle.dumps(C)))"
    )
    (tmp_path / "own" / "fails.py").write_text("from . import other\nother.fail()")
    arguments = ["-m", MODULES[case], "--layers=2", "a b"]
    plain = run([sys.executable, *arguments], tmp_path)
    output, errors, code = run(worker_command(arguments), tmp_path)
    assert (output, code) == (plain[0], plain[2])
    assert errors.splitlines()[-3:] == plain[1].splitlines()[-3:]


def test_whole_lines_on_stderr_are_shown_and_a_bar_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import logging, os, sys\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "for done in range(4):\n"
        "    print(f'\\r{done}/3', end='', file=sys.stderr, flush=True)\n"
        "print('first')\n"
        "print(file=sys.stderr)\n"
        "logging.info('two\\nlines')\n"
        "logging.getLogger('hvd_elastic_keras.loop').info('of this package')\n"
        "os.write(2, b'of a library\\n')\n"
        "sys.stderr.write('at the end')\n"
        "raise ValueError('bad')\n"
    )
    output, errors, code = run(worker_command(["train.py"]), tmp_path)
    assert output == "first\n3/3\nINFO:root:two\nlines\nat the end\n"
    lines = errors.splitlines()
    assert lines[0].endswith("INFO of this package")
    assert lines[1] == "of a library"
    assert lines[-1] == "ValueError: bad"
    assert code == 1
