"""Scripts for Horovod that have not been changed are found without running them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from hvd_elastic_keras.cli.script_warnings import warning_of_flags, warnings_of_files
from hvd_elastic_keras.cli.source_files import check_script, file_of, source_digests
from hvd_elastic_keras.common.errors import ConfigurationError

UNPORTED = {
    "import horovod.tensorflow as hvd\nhvd.init()": r"line 1.*horovod as hvd`",
    "import os\nimport horovod.tensorflow.keras as h": r"tensorflow\.keras in line 2.*as h`",
    "from horovod import keras as hvd": r"horovod\.keras in line 1",
    "def main():\n    import horovod.keras as hvd": "line 2",
    "from horovod.tensorflow import init, rank": r"horovod\.tensorflow",
    "import horovod.torch as hvd": "Keras models on TensorFlow",
}
FINE = (
    "import keras",
    "import hvd_elastic_keras.horovod as hvd",
    "import horovod.tensorflow as hvd\nfrom hvd_elastic_keras import ElasticCallback",
    "import horovod.tensorflow as hvd\nif True:\n    from hvd_elastic_keras.elastic import run",
    "import horovods",
    "this is no Python",
)


@pytest.mark.parametrize("text", UNPORTED)
def test_a_script_with_horovod_alone_is_refused_with_the_line_to_change(
    text: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    with pytest.raises(ConfigurationError, match=UNPORTED[text]) as raised:
        check_script([str(script)], tmp_path)
    assert str(raised.value).startswith("train.py imports horovod")


@pytest.mark.parametrize("text", FINE)
def test_other_scripts_are_not(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    check_script([str(script)], tmp_path)


def test_the_modules_beside_a_script_count(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from lib import loops\nimport helper")
    (tmp_path / "helper.py").write_text("import train\nimport horovod.tensorflow as hvd")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text("")
    loops = tmp_path / "lib" / "loops.py"
    loops.write_text("from . import deep")
    (tmp_path / "lib" / "deep.py").write_text("x = 1")
    with pytest.raises(ConfigurationError, match=r"helper\.py imports horovod\.tensorflow"):
        check_script([str(script)], tmp_path)
    (tmp_path / "lib" / "deep.py").write_text("from hvd_elastic_keras import Trainer")
    check_script([str(script)], tmp_path)


def test_a_module_is_found_as_python_finds_it_and_so_are_its_imports(tmp_path: Path) -> None:
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "train.py").write_text("import own.deep.loops\nfrom . import near")
    for name in ("own/__init__.py", "own/__main__.py", "own/deep/loops.py", "own/near.py"):
        (tmp_path / name).write_text("")
    assert file_of(["-m", "own", "x"], tmp_path) == tmp_path / "own" / "__main__.py"
    assert file_of(["-m", "own.train"], tmp_path) == tmp_path / "own" / "train.py"
    assert file_of(["-m", "json.tool"], tmp_path).name == "tool.py"  # an installed one
    digests = source_digests(["-m", "own.train"], "", tmp_path)
    names = {"own/train.py", "own/__init__.py", "own/deep/loops.py", "own/near.py"}
    assert digests.keys() == names
    digests = source_digests(["-m", "own.near"], "", tmp_path)
    assert digests.keys() == {"own/near.py", "own/__init__.py"}  # Python runs both
    (tmp_path / "own" / "near.py").write_text("import horovod.tensorflow as hvd")
    with pytest.raises(ConfigurationError, match=r"near\.py imports horovod\.tensorflow"):
        check_script(["-m", "own.train"], tmp_path)
    for name in ("own.missing", "own/train", ".own.train", "own..train", "own.deep"):
        with pytest.raises(ConfigurationError, match=f"no module {re.escape(name)} to run in"):
            file_of(["-m", name], tmp_path)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(ConfigurationError, match="leave out -m"):
        file_of(["-m", "train.py"], tmp_path)


def test_a_module_that_only_a_hook_finds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As packages are that were installed to be edited."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "__init__.py").write_text("raise RuntimeError('it is not imported')")
    (tmp_path / "source" / "train.py").write_text("")

    class Hook:
        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            file = tmp_path / "source" / "__init__.py"
            return spec_from_file_location(name, file) if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Hook])
    assert file_of(["-m", "edited.train"], tmp_path) == tmp_path / "source" / "train.py"


def test_run_refuses_such_a_script_before_it_starts_anything(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import horovod.tensorflow as hvd\nhvd.init()\n")
    job_dir = tmp_path / "job"
    result = subprocess.run(
        [sys.executable, "-m", "hvd_elastic_keras.run", f"--job_dir={job_dir}", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: train.py imports horovod.tensorflow in line 1")
    assert len(result.stderr.splitlines()) == 1
    assert not job_dir.exists()


IS_FLAG = {"num_workers", "notls", "tls"}.__contains__


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (["good.py", "--num_workers=4"], "--num_workers=4"),
        (["good.py", "x", "--num_workers", "4", "--y"], "--num_workers"),
        (["good.py", "--num_workers=4", "--notls"], "--num_workers=4 --notls"),
        (["good.py", "--tls", "--", "--num_workers=4"], "--tls"),
        (["good.py", "--", "--num_workers=4"], ""),
        (["--", "good.py", "--num_workers=4"], ""),
        (["good.py", "--workers=4", "num_workers=4"], ""),
        (["good.py"], ""),
    ],
)
def test_a_flag_of_run_behind_the_script_is_told_of(script: list[str], told: str) -> None:
    text = warning_of_flags(script, IS_FLAG, as_module=False)
    assert bool(text) == bool(told)
    assert not told or text.startswith(f"warning: {told} stands after good.py")


def test_the_warning_of_a_module_is_a_command_that_runs_it() -> None:
    text = warning_of_flags(["own.train", "--tls"], IS_FLAG, as_module=True)
    assert "run -m --tls own.train." in text
    assert text.endswith("run -m -- own.train --tls.")


@pytest.mark.parametrize(
    ("words", "warns"),
    [
        ("good.py --num_workers=4", True),
        ("--num_workers=2 good.py --noaudit", True),
        ("-- good.py --num_workers=4", False),
        # Refused before the script, and so clearly the script's own.
        ("good.py --epochs=4 --seed=1 --model=x --output=y --config=z.yaml --data_dir=d", False),
    ],
)
def test_run_warns_of_it_and_still_goes_on(words: str, warns: bool, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import hvd_elastic_keras")
    result = subprocess.run(
        [sys.executable, "-m", "hvd_elastic_keras.run", "--dry_run", *words.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert ("stands after good.py, so that the script gets it" in result.stdout) == warns


def assert_told(folder: Path, script: str, told: str) -> None:
    """A script gets one warning, which holds a text; or none, if the text is empty."""
    (folder / "good.py").write_text(script)
    texts = warnings_of_files(["good.py"], folder)
    assert len(texts) == bool(told)
    assert told in "".join(texts)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("open('log.txt', 'a')", "open in line 2 of good.py"),
        ("with open('log.txt', mode='ab') as f: pass", "open in line 2 of good.py"),
        ("Path('log.txt').open('a+')", "open in line 2 of good.py"),
        ("import io; io.open('log.txt', 'a')", "io.open in line 2 of good.py"),
        ("h = logging.FileHandler('log.txt')", "logging.FileHandler in line 2 of good.py"),
        ("logging.handlers.RotatingFileHandler('x')", "logging.handlers.RotatingFileHandler in"),
        ("logging.basicConfig(level=20, filename='x')", "logging.basicConfig in line 2 of good.py"),
        ("open('log.txt', 'w')", ""),
        ("open('a')", ""),
        ("Path('log.txt').open()", ""),
        ("image = Image.open('apple.png')", ""),
        ("logging.basicConfig(level=20)", ""),
        ("logging.basicConfig(filename='x', filemode='w')", "logging.basicConfig in line 2"),
        ("log = open('log.txt', 'w')", "open in line 2 of good.py"),
        ("json.dump(found, open('found.json', 'w'))", ""),
        ("with open('found.json', 'w') as f: json.dump(found, f)", ""),
        ("data = open('data.txt')", ""),
        ("import hvd_elastic_keras; open('log.txt', 'a')", ""),
        ("this is no Python", ""),
    ],
)
def test_a_script_that_appends_to_files_is_told_that_all_workers_do(
    tmp_path: Path, line: str, told: str
) -> None:
    assert_told(tmp_path, f"import logging\n{line}\n", told)


def test_a_module_of_the_script_that_appends_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("from helper import note\n")
    (tmp_path / "helper.py").write_text("def note(text):\n    open('log', 'a').write(text)\n")
    (text,) = warnings_of_files(["good.py"], tmp_path)
    assert "(open in line 2 of helper.py)" in text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("for f in glob.glob('*.h5'): os.remove(f)", "removes files (os.remove in line 2 of"),
        ("os.unlink('x'); Path('y').unlink()", "(os.unlink in line 2 of good.py, unlink in line 2"),
        ("Path('y').rmdir()", "(rmdir in line 2 of good.py)"),
        ("shutil.rmtree('out')", ""),
        ("names.remove('x')", ""),
    ],
)
def test_a_script_that_removes_files_is_told_that_replacements_do(
    tmp_path: Path, line: str, told: str
) -> None:
    assert_told(tmp_path, f"import os\n{line}\n", told)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("s = optuna.create_study(storage='sqlite:///o.db')", "(optuna.create_study in line 1 of"),
        ("s = load_study(study_name='a', storage=path)", "(load_study in line 1 of good.py)"),
        ("s = optuna.create_study(storage=None, sampler=sampler)", ""),
        ("s = optuna.create_study(direction='minimize')", ""),
        ("mlflow.tensorflow.autolog()", "(mlflow.tensorflow.autolog in line 1 of good.py)"),
        ("with mlflow.start_run() as run: pass", "begins runs of an experiment tracker (mlflow."),
        ("wandb.init(project='p')", "See docs/tracking.md"),
        ("mlflow.log_metric('loss', 1)", ""),
    ],
)
def test_a_script_with_a_study_or_a_tracker_that_all_workers_share_is_told(
    tmp_path: Path, line: str, told: str
) -> None:
    assert_told(tmp_path, f"{line}\n", told)
