"""Finds models and their configurations by name, without importing them (or TensorFlow)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hvd_elastic_keras.errors import ConfigurationError, ModelModuleError

DEFAULT_MODEL = "resnet50"
DEFAULT_CONFIG = "default"
ZOO = "model_zoo"


def short_name(model: str) -> str:
    """A name for people and directories.

    >>> short_name("path/to/my_model.py"), short_name("package.my_model")
    ('my_model', 'my_model')
    """
    return Path(model).stem if model.endswith(".py") else model.rpartition(".")[2]


def directory_of(model: str) -> Path:
    """The directory that holds a model's module, and `configs/` beside it.

    Raises:
      ModelModuleError: there is no such model.
    """
    if model.endswith(".py"):
        path = Path(model).resolve()
        if not path.is_file():
            raise ModelModuleError(f"There is no model module {model}. Check the path.")
        return path.parent
    for name in (f"{ZOO}.{model}", model) if "." not in model else (model,):
        location = _find(name)
        if location is not None:
            return location
    raise ModelModuleError(
        f"There is no model {model!r}. Use one of the model zoo ({', '.join(zoo_models())}), a "
        "dotted module that Python can import, or the path of a .py file."
    )


def zoo_models() -> list[str]:
    """Names in the model zoo."""
    location = _find(ZOO)
    if location is None:
        return []
    return sorted(p.parent.name for p in location.glob("*/model.py"))


def config_path(model: str, config: str) -> Path:
    """The file of a reference configuration, given by name or path.

    Raises:
      ConfigurationError: there is none of that name.
    """
    if config.endswith(".py"):
        path = Path(config).resolve()
        if path.is_file():
            return path
        raise ConfigurationError(f"There is no configuration file {config}. Check the path.")
    configs = directory_of(model) / "configs"
    path = configs / f"{config}.py"
    if path.is_file():
        return path
    known = sorted(p.stem for p in configs.glob("*.py") if p.stem != "__init__")
    raise ConfigurationError(
        f"There is no configuration {config!r} of {short_name(model)}. "
        + (f"Use one of: {', '.join(known)}." if known else f"There is no {configs}/*.py.")
    )


def with_config_path(arguments: list[str]) -> list[str]:
    """Replaces `--config=NAME` by `--config=PATH`, and adds the default one if there is any.

    ml_collections reads configurations from files; people name them.
    """
    result, model, config, own = [], DEFAULT_MODEL, "", True
    pending = ""
    rest: list[str] = []
    for position, argument in enumerate(arguments[1:], start=1):
        if pending == "model":
            model, pending = argument, ""
        elif pending == "config":
            config, pending = argument, ""
            continue
        elif own and not argument.startswith("-"):
            previous = arguments[position - 1]
            takes_value = position > 1 and previous.startswith("--") and "=" not in previous
            if not takes_value:
                rest = arguments[position:]
                break
        elif argument in ("--model", "-model"):
            pending = "model"
        elif argument in ("--config", "-config"):
            pending = "config"
            continue
        elif argument.lstrip("-").startswith("model="):
            model = argument.partition("=")[2]
        elif argument.lstrip("-").startswith("config="):
            config = argument.partition("=")[2]
            continue
        result.append(argument)
    asks_for_help = any(a.lstrip("-").startswith("help") for a in result)
    if rest or asks_for_help:
        config = ""
    else:
        path = _chosen_config(model, config)
        if path is not None:
            result.append(f"--config={path}")
    return [arguments[0], *result, *rest]


def _chosen_config(model: str, config: str) -> Path | None:
    if config:
        return config_path(model, config)
    default = directory_of(model) / "configs" / f"{DEFAULT_CONFIG}.py"
    return default if default.is_file() else None


def _find(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin).parent if spec.origin else None
