"""Finds models and their configurations by name, without importing them (or TensorFlow)."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from hvd_elastic_keras.cli.flags.arguments import split_arguments
from hvd_elastic_keras.common import tf_config
from hvd_elastic_keras.common.errors import ConfigurationError, ModelModuleError

DEFAULT_MODEL = "resnet50"
ZOO = "model_zoo"


def short_name(model: str) -> str:
    """Returns the short name of a model, for people and directories.

    >>> short_name("path/to/my_model.py"), short_name("package.my_model")
    ('my_model', 'my_model')
    """
    return Path(model).stem if model.endswith(".py") else model.rpartition(".")[2]


def directory_of(model: str) -> Path:
    """Returns the directory that holds a model's module, and `configs/` beside it.

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
    """Returns the names of the models in the model zoo."""
    location = _find(ZOO)
    if location is None:
        return []
    return sorted(p.parent.name for p in location.glob("*/model.py"))


def config_path(model: str, config: str) -> Path:
    """Returns the file of a reference configuration, given by name or path.

    Raises:
      ConfigurationError: there is no configuration of that name.
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
    """Replaces `--config=NAME` by `--config=PATH`; without the flag, adds the default if any.

    ml_collections reads configurations from files, but people give names.

    Args:
      arguments: the command line, program first.

    Raises:
      ConfigurationError: there is no such configuration, or the job is a script, which would
        ignore it.
    """
    flags, rest = split_arguments(arguments[1:])
    values = {name: value for name, value, _ in flags}
    others = [word for name, _, words in flags if name != "config" for word in words]
    model, config = values.get("model", DEFAULT_MODEL), values.get("config", "")
    if rest and config:
        script = next(word for word in rest if word != "--")
        raise ConfigurationError(
            f"--config={config} was given together with the script {script}, which decides these "
            "values by itself. Give them to the script, or use --model."
        )
    joins = values.get("join", tf_config.VARIABLE) != tf_config.VARIABLE
    if rest or joins or any(name.startswith("help") for name in values):
        path = None
    else:
        path = config_path(model, config) if config else _default_config(model)
    chosen = [f"--config={path}"] if path else []
    # --config comes first, because flags for its single values (--config.x=1) may follow.
    return [arguments[0], *chosen, *others, *rest]


def _default_config(model: str) -> Path | None:
    """Returns the file of the default configuration of a model; None if there is none.

    `configs/__init__.py` may name it as DEFAULT; else it is `configs/default.py`.
    """
    configs = directory_of(model) / "configs"
    name = "default"
    if (configs / "__init__.py").is_file():
        for node in ast.parse((configs / "__init__.py").read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFAULT":
                name = ast.literal_eval(node.value)
    path = configs / f"{name}.py"
    return path if path.is_file() else None


def _find(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin).parent if spec.origin else None
