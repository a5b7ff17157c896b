"""Finding models and configurations by name, and rewriting the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hvd_elastic_keras.run  # noqa: F401 - defines the flags
from hvd_elastic_keras.cli.flags import find_model
from hvd_elastic_keras.cli.flags.find_model import (
    config_path,
    directory_of,
    short_name,
    with_config_path,
)
from hvd_elastic_keras.common.errors import ConfigurationError, ModelModuleError


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of two models, `net` (configs default and small) and `bare` (none)."""
    root = tmp_path / "unit_zoo"
    for name in ("net", "bare"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").touch()
        (root / name / "model.py").touch()
    (root / "__init__.py").touch()
    configs = root / "net" / "configs"
    configs.mkdir()
    for name in ("__init__", "default", "small"):
        (configs / f"{name}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(find_model, "ZOO", "unit_zoo")
    monkeypatch.setattr(find_model, "DEFAULT_MODEL", "net")
    yield root
    for name in [m for m in sys.modules if m.startswith("unit_zoo")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("model", "expected"),
    [("net", "net"), ("a.b.net", "net"), ("dir/net.py", "net"), ("/a.b/net.py", "net")],
)
def test_the_short_name_is_the_last_part(model: str, expected: str) -> None:
    assert short_name(model) == expected


@pytest.mark.parametrize("model", ["net", "unit_zoo.net", "unit_zoo.net.model"])
def test_a_model_is_found_by_zoo_name_or_dotted_name(zoo: Path, model: str) -> None:
    assert directory_of(model) == zoo / "net"


def test_a_model_is_found_by_path(zoo: Path) -> None:
    assert directory_of(str(zoo / "net" / "model.py")) == zoo / "net"


@pytest.mark.parametrize("model", ["nets", "unit_zoo.nets", "no.such.module", "", "..net", "a b"])
def test_an_unknown_model_is_refused_with_the_names_of_the_zoo(zoo: Path, model: str) -> None:
    with pytest.raises(ModelModuleError, match="bare, net"):
        directory_of(model)


def test_a_path_without_a_file_is_refused() -> None:
    with pytest.raises(ModelModuleError, match=r"no model module nowhere/m\.py"):
        directory_of("nowhere/m.py")


def test_a_configuration_is_found_by_name_or_path(zoo: Path) -> None:
    small = zoo / "net" / "configs" / "small.py"
    assert config_path("net", "small") == small
    assert config_path("anything", str(small)) == small


def test_an_unknown_configuration_is_refused_with_the_known_ones(zoo: Path) -> None:
    with pytest.raises(ConfigurationError, match="Use one of: default, small"):
        config_path("net", "huge")
    with pytest.raises(ConfigurationError, match="There is no"):
        config_path("bare", "huge")
    with pytest.raises(ConfigurationError, match="no configuration file"):
        config_path("net", "nowhere/c.py")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ["--config=DEFAULT"]),
        (["--model=net"], ["--model=net", "--config=DEFAULT"]),
        (["--model", "net"], ["--model", "net", "--config=DEFAULT"]),
        (["--config=small"], ["--config=SMALL"]),
        (["--config", "small", "--epochs=2"], ["--epochs=2", "--config=SMALL"]),
        (["--config=small", "--model=net"], ["--model=net", "--config=SMALL"]),
        (["--config.lr=0.1"], ["--config.lr=0.1", "--config=DEFAULT"]),
        (["--epochs", "2"], ["--epochs", "2", "--config=DEFAULT"]),
        (["-epochs", "2"], ["-epochs", "2", "--config=DEFAULT"]),
        (["--model=bare"], ["--model=bare"]),
        (["--help"], ["--help"]),
        (["--model=net", "--helpfull"], ["--model=net", "--helpfull"]),
        (["--data_dir", "help"], ["--data_dir", "help", "--config=DEFAULT"]),
        (["script.py", "--config=x"], ["script.py", "--config=x"]),
        (["--num_workers=4", "script.py", "a"], ["--num_workers=4", "script.py", "a"]),
        (["--num_workers", "4", "script.py"], ["--num_workers", "4", "script.py"]),
        (["--", "script.py", "--config=x"], ["--", "script.py", "--config=x"]),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_the_command_line_gets_the_path_of_the_configuration(
    zoo: Path, given: list[str], expected: list[str]
) -> None:
    configs = zoo / "net" / "configs"
    paths = {"SMALL": str(configs / "small.py"), "DEFAULT": str(configs / "default.py")}
    for word, path in paths.items():
        expected = [argument.replace(word, path) for argument in expected]

    # Overrides of single values must come behind the configuration.
    expected = sorted(expected, key=lambda a: not a.startswith("--config=/"))

    assert with_config_path(["run", *given]) == ["run", *expected]
