"""Values of flags from the command line, a file and the environment, in this order."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

import hvd_elastic_keras.run  # noqa: F401 - defines the flags
from hvd_elastic_keras.cli import take_over
from hvd_elastic_keras.cli.flags import settings
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.env import WorkerEnvironment


def resolved(*words: str) -> settings.Settings:
    return settings.resolved(words)


@pytest.fixture
def job_toml(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text('num_workers = 3\nepochs = 4\ntls = true\nssh_env = ["A", "B"]\n')
    return path


@pytest.mark.parametrize(
    ("typed", "in_file", "value", "source"),
    [
        (["--epochs=6"], "4", "6", settings.COMMAND_LINE),
        (["--epochs", "6"], "4", "6", settings.COMMAND_LINE),
        ([], "4", "4", "job.toml"),
        ([], "", "5", "HVD_ELASTIC_RUN_EPOCHS"),
    ],
)
def test_a_flag_counts_before_the_file_and_this_before_a_variable(
    typed: list[str],
    in_file: str,
    value: str,
    source: str,
    *,
    job_toml: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not in_file:
        job_toml.write_text(job_toml.read_text().replace("epochs = 4\n", ""))
    monkeypatch.setenv("HVD_ELASTIC_RUN_EPOCHS", "5")
    found = resolved(f"--config={job_toml}", *typed)
    with flagsaver.flagsaver():
        settings.parse_flags(["run", *found.words])
        assert str(flags.FLAGS.epochs) == value
        assert (flags.FLAGS.num_workers, flags.FLAGS.tls) == (3, True)
        assert flags.FLAGS.ssh_env == ["A", "B"]
    assert found.sources["epochs"].endswith(source)
    assert found.sources["num_workers"] == str(job_toml)


def test_a_typed_value_of_the_reference_configuration_counts_before_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_RUN_EPOCHS", "5")
    (tmp_path / "a.toml").write_text("epochs = 4\n")
    assert resolved("--config.epochs=6").words == ["--config.epochs=6"]
    file = f"--config={tmp_path / 'a.toml'}"
    assert resolved(file, "--config.epochs=6").words == ["--config.epochs=6"]
    (tmp_path / "a.toml").write_text('"config.epochs" = 7\n')
    assert resolved(file).words == ["--config.epochs=7"]


def test_without_any_source_the_command_line_is_as_it_was() -> None:
    words = ["--num_workers", "2", "--tls", "--config=digits", "script.py", "--config=x.toml"]
    assert resolved(*words).words == words


def test_a_negated_flag_counts_before_the_file(job_toml: Path) -> None:
    found = resolved(f"--config={job_toml}", "--notls")
    assert not any(word.startswith("--tls") for word in found.words)
    assert found.sources["tls"] == settings.COMMAND_LINE


def test_a_file_and_a_reference_configuration_go_together(job_toml: Path) -> None:
    found = resolved(f"--config={job_toml}", "--config=digits")
    assert [w for w in found.words if w.startswith("--config")] == ["--config=digits"]
    assert "--num_workers=3" in found.words


def test_the_file_may_be_named_by_a_variable(
    job_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_RUN_CONFIG", str(job_toml))
    assert "--num_workers=3" in resolved("script.py").words
    assert resolved("script.py").words[-1] == "script.py"


def test_a_single_value_of_the_reference_configuration_may_stand_in_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.toml").write_text('"config.learning_rate" = 0.5\n')
    assert resolved(f"--config={tmp_path / 'a.toml'}").words == ["--config.learning_rate=0.5"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_worker = 3\n", ["num_worker, which is no flag", "Did you mean num_workers?"]),
        ("zzzzz = 3\n", ["zzzzz, which is no flag", "leave it out"]),
        ("num_workers = \n", ["cannot be read"]),
        ("num_workers = 0\n", ["num_workers of", "=0 was given", "at least 1"]),
        ('num_workers = "x"\n', ["num_workers of", "=x was given"]),
        ('balance = "fast"\n', ["balance of", "even"]),
        ("num_workers = 1979-05-27\n", ["expected a text, a number"]),
        ("[num_workers]\na = 1\n", ["expected a text, a number"]),
        ('config = "other.toml"\n', ["no other such file"]),
        ("tls = 3\n", ["tls of"]),
        ('verbosity = "1"\n', ["verbosity, which is no flag of run"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        resolved(f"--config={path}")
    assert all(word in str(caught.value) for word in [*words, str(path)]), str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"a\.toml cannot be read"):
        resolved(f"--config={tmp_path / 'a.toml'}")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HVD_ELASTIC_RUN_NUM_WORKER", "1", ["Did you mean HVD_ELASTIC_RUN_NUM_WORKERS?", "Unset"]),
        ("HVD_ELASTIC_RUN_num_workers", "1", ["HVD_ELASTIC_RUN_num_workers"]),
        ("HVD_ELASTIC_RUN_", "1", ["no flag"]),
        ("HVD_ELASTIC_RUN_NUM_WORKERS", "", ["HVD_ELASTIC_RUN_NUM_WORKERS= was given"]),
        ("HVD_ELASTIC_RUN_TLS", "perhaps", ["HVD_ELASTIC_RUN_TLS=perhaps was given"]),
    ],
)
def test_a_wrong_variable_is_refused(
    name: str, value: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        resolved()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_variables_of_workers_are_not_those_of_flags() -> None:
    of_workers = WorkerEnvironment("h:1", "t", "w0", "/job").to_variables()
    assert [name for name in of_workers if name.startswith(env.RUN_PREFIX)] == []


def test_the_resolved_command_is_what_a_job_is_gone_on_with(
    job_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_RUN_SEED", "7")
    words = resolved(f"--config={job_toml}", "--job_dir=x", "script.py", "--seed=8").words
    command = take_over.what_was_asked_for(words)
    assert set(command[:-2]) == {
        "--num_workers=3",
        "--epochs=4",
        "--tls=true",
        "--ssh_env=A,B",
        "--seed=7",
    }
    assert command[-2:] == ("script.py", "--seed=8")
    monkeypatch.setenv("HVD_ELASTIC_RUN_SEED", "9")
    again = resolved(*command)
    assert again.words == list(command), "what was resolved counts before what has changed since"


def test_of_a_job_that_is_started_again_each_value_is_shown_with_its_first_source(
    job_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_RUN_SEED", "7")
    before = resolved(f"--config={job_toml}", "--max_workers=8", "script.py")
    monkeypatch.delenv("HVD_ELASTIC_RUN_SEED")
    # A second time, too: each start hands on what it was told.
    for _ in range(2):
        words = [*before.words[:-1], "--job_dir=x", "script.py"]
        handed_on = {name: s for name, s in before.sources.items() if name != "job_dir"}
        before = settings.resolved(words, handed_on)
        command = take_over.what_was_asked_for(before.words)
        before = dataclasses.replace(before, words=list(command))
    with flagsaver.flagsaver():
        settings.parse_flags(["run", *words])
        lines = list(before.lines({}, ""))
    assert lines == [
        f"set: epochs=4 ({job_toml}, when the job was started)",
        "set: job_dir=x (command line)",
        "set: max_workers=8 (command line, when the job was started)",
        f"set: num_workers=3 ({job_toml}, when the job was started)",
        "set: seed=7 (HVD_ELASTIC_RUN_SEED, when the job was started)",
        f"set: ssh_env=A,B ({job_toml}, when the job was started)",
        f"set: tls=True ({job_toml}, when the job was started)",
    ]


def test_each_value_that_is_no_default_is_shown_with_its_source(
    job_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_ELASTIC_RUN_SEED", "7")
    found = resolved(f"--config={job_toml}", "--min_workers=1", "--max_workers=8", "--dry_run")
    reference = {"global_batch_size": 64, "epochs": 9, "learning_rate": 0.1}
    with flagsaver.flagsaver():
        settings.parse_flags(["run", *found.words])
        lines = list(found.lines(reference, "configuration of wine"))
    assert lines == [
        f"set: epochs=4 ({job_toml})",
        "set: max_workers=8 (command line)",
        f"set: num_workers=3 ({job_toml})",
        "set: seed=7 (HVD_ELASTIC_RUN_SEED)",
        f"set: ssh_env=A,B ({job_toml})",
        f"set: tls=True ({job_toml})",
        "set: global_batch_size=64 (configuration of wine)",
    ]


def test_toml_is_read_with_the_standard_library_where_it_has_that() -> None:
    expected = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    assert settings.tomllib.__name__ == expected
