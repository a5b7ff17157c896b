"""The user's model module, which defines the model and the data in two functions.

    def model() -> keras.Model                     # required
    def dataset(split) -> data                     # required; split is "train" or "validation",
                                                   # or what --split says; "predict" to predict
    def loss() / optimizer() / metrics()           # optional, if model() does not compile
    def callbacks() -> list                        # optional

`dataset` returns arrays `(x, y)` or `(x, y, sample_weight)`, or a `Source` or a deterministic
`tf.data.Dataset` of such examples. It may return them alone or with a function, as `(source,
preprocess)`. For "validation" it may return None. Every function may have any of these parameters,
by name: `config` (the reference configuration, an `ml_collections.ConfigDict`), `seed`, `data_dir`.
`dataset` may also have `epoch`.

The workers and the check before a job load the module and its data here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import ml_collections
import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.batch_plan import Share
from hvd_elastic_keras.common.errors import DataError, ModelModuleError, explain
from hvd_elastic_keras.data.plan.partition import Partition
from hvd_elastic_keras.data.sources.source import DataLike, as_source, is_source, split_preprocess
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.step import deterministic_step

REQUIRED = ("model", "dataset")
OPTIONAL = ("loss", "optimizer", "metrics", "callbacks")
PARAMETERS = ("config", "seed", "data_dir")
DATASET_PARAMETERS = (*PARAMETERS, "split", "epoch")


_CONTRACT = (
    "A model module defines model() -> keras.Model and dataset(split) -> arrays, a source or "
    "tf.data.Dataset. A script that trains by itself is started without --model: "
    "python -m hvd_elastic_keras.run script.py"
)


class ModelModule:
    """A loaded module, with the values that its functions may ask for."""

    def __init__(self, name: str, *, config: Any, seed: int, data_dir: str) -> None:
        self.name = name
        self.seed = seed
        self._values = {"config": config, "seed": seed, "data_dir": data_dir}
        self._module = import_model_module(name)
        for function in REQUIRED:
            self._check_defined(function)
        for function in (*REQUIRED, *OPTIONAL):
            self._check_parameters(function)

    def model(self, *, compiled: bool = True) -> keras.Model:
        """Returns the model. Its initial weights follow from the seed alone.

        Args:
          compiled: whether the model must be compiled; else it is returned as `model()` has made
            it.

        Raises:
          ModelModuleError: `model()` returned no Keras model, or the model cannot be compiled.
        """
        keras.utils.set_random_seed(self.seed)
        model = self._call("model")
        if not isinstance(model, keras.Model):
            raise ModelModuleError(
                f"model() of {self.name} returned {type(model).__name__}, expected a keras.Model."
            )
        if not compiled:
            return model
        parts = {p: self._call(p) for p in ("loss", "optimizer", "metrics") if self._has(p)}
        if parts or not model.compiled:
            if model.compiled and "loss" not in parts:
                raise ModelModuleError(
                    f"model() of {self.name} compiles the model, and there is also "
                    f"{' and '.join(f'{p}()' for p in parts)}. Compile in one place: leave that "
                    "out, or define loss() too and do not compile in model()."
                )
            if "loss" not in parts:
                raise ModelModuleError(
                    f"model() of {self.name} is not compiled and there is no loss(). Define "
                    'loss(), for example `return "sparse_categorical_crossentropy"`, or compile '
                    "the model in model()."
                )
            parts.setdefault("optimizer", "adam")
            model.compile(**parts)
        return model

    def dataset(self, split: str) -> DataLike | None:
        """Returns the data of a split; a function of the epoch if `dataset` has that parameter.

        Raises:
          ModelModuleError: there is no training data.
        """
        function = self._module.dataset
        if "epoch" in inspect.signature(function).parameters:
            data = self._call("dataset", split=split, epoch=0)
            if data is None:
                self._check_absent(split)
                return None
            preprocess = split_preprocess(data)[1]

            def of_epoch(epoch: int) -> DataLike:
                return split_preprocess(self._call("dataset", split=split, epoch=epoch))[0]

            return of_epoch if preprocess is None else (of_epoch, preprocess)
        data = self._call("dataset", split=split)
        if data is None:
            self._check_absent(split)
        return data

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """The user's Keras callbacks."""
        return list(self._call("callbacks")) if self._has("callbacks") else []

    def _check_absent(self, split: str) -> None:
        if split == "train":
            raise ModelModuleError(
                f'dataset(split="train") of {self.name} returned None, expected arrays such as '
                "(x, y), a source, or a tf.data.Dataset."
            )

    def _has(self, name: str) -> bool:
        return callable(getattr(self._module, name, None))

    def _call(self, name: str, **extra: Any) -> Any:
        function: Callable[..., Any] = getattr(self._module, name)
        wanted = inspect.signature(function).parameters
        values = {**self._values, **extra}
        return function(**{p: values[p] for p in wanted if p in values})

    def _check_defined(self, name: str) -> None:
        if not self._has(name):
            raise ModelModuleError(f"{self.name} has no function {name}(). {_CONTRACT}")

    def _check_parameters(self, name: str) -> None:
        if not self._has(name):
            return
        allowed = DATASET_PARAMETERS if name == "dataset" else PARAMETERS
        parameters = inspect.signature(getattr(self._module, name)).parameters.values()
        for parameter in parameters:
            needed = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            )
            if needed and parameter.name not in allowed:
                raise ModelModuleError(
                    f"{name}() of {self.name} asks for {parameter.name!r}. It may ask for "
                    f"{', '.join(allowed)}, or give the parameter a default."
                )


def import_model_module(name: str) -> ModuleType:
    """Imports a module by path (`dir/my_model.py`), dotted name, or name in the model zoo.

    Raises:
      ModelModuleError: there is no such module, or it fails while it is imported.
    """
    try:
        if name.endswith(".py"):
            return _import_path(Path(name).resolve())
        if "." not in name and importlib.util.find_spec(f"model_zoo.{name}"):
            return importlib.import_module(f"model_zoo.{name}")
        return importlib.import_module(name)
    except ModelModuleError:
        raise
    except Exception as error:
        raise ModelModuleError(
            f"The model module {name} cannot be imported:\n{explain(error, file_of_model(name))}"
        ) from error


def file_of_model(name: str) -> Path | None:
    """Returns the file of a module that has been imported, at least in part; None if unknown."""
    if name.endswith(".py"):
        return Path(name).resolve()
    module = sys.modules.get(f"model_zoo.{name}") or sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return Path(file) if file else None


def _import_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelModuleError(f"There is no model module {path}.")
    _check_before_import(path)
    # The module can import its neighbours, as if it had been started as a script.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ModelModuleError(f"{path} is not a Python module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _check_before_import(path: Path) -> None:
    """Raises `ModelModuleError` for a script, before it is run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # the import will report where the error is
    bound = {name for statement in ast.walk(tree) for name in _bound_names(statement)}
    missing = [name for name in REQUIRED if name not in bound]
    if missing and "*" not in bound:
        raise ModelModuleError(
            f"{path} has no function {' and no function '.join(f'{m}()' for m in missing)}. "
            f"{_CONTRACT}"
        )


def _bound_names(statement: ast.AST) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.alias):
        return [statement.asname or statement.name]
    if isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        return [statement.id]
    return []


COMPARED_EXAMPLES = 32
"""Examples at the front of an epoch that must be the same whenever the dataset is read."""


def load_split(module: ModelModule, split: str) -> DataLike | None:
    """Returns the data of a split; None if there are none.

    The data do not depend on what this process has computed before.
    """
    keras.utils.set_random_seed(module.seed)
    return module.dataset(split)


def set_up() -> None:
    """Sets up TensorFlow as the job's options ask. Call it before everything else."""
    if env.run_options().deterministic:
        deterministic_step.enable_op_determinism()  # before the model computes anything


def load_module(spec: JobSpec) -> ModelModule:
    """Returns the module, with the values that its functions may ask for.

    Raises:
      ModelModuleError: the module does not keep its contract.
    """
    return ModelModule(
        spec.model,
        config=ml_collections.ConfigDict(spec.config),
        seed=spec.training.seed,
        data_dir=spec.data_dir,
    )


def check_reproducible(first: list[Any], second: list[Any], split: str) -> None:
    """Raises `DataError` if two loads of the same split begin differently."""
    for a, b in zip(first, second, strict=True):
        # NaN equals NaN here, whatever the dtype.
        if not (np.array_equal(a, b) or a.tobytes() == b.tobytes()):
            raise DataError(
                f'dataset(split="{split}") gives its examples in another order each time, so that '
                "a worker that joins later cannot continue. Seed every random part, for example "
                "shuffle(n, seed=seed + epoch) with `seed` and `epoch` as parameters of dataset(),"
                " or return arrays: they are shuffled for you."
            )


def is_dataset(data: DataLike) -> bool:
    """Returns whether the data are a `tf.data.Dataset`, alone or with a preprocessing function."""
    return isinstance(split_preprocess(data)[0], tf.data.Dataset)


def front(data: DataLike) -> list[Any]:
    """Returns the arrays of the first examples, in the order of the first epoch."""
    examples, _ = split_preprocess(data)
    if is_source(examples):
        source = as_source(data, seed=0, shuffle=True, name="the data")
        count = min(COMPARED_EXAMPLES, source.num_examples)
        partition = Partition(count, count, count)
        batch = next(source.batches(0, partition, Share(0, 1), 0))
        return [np.asarray(leaf) for leaf in tf.nest.flatten(batch, expand_composites=True)]
    if callable(examples) and not isinstance(examples, tf.data.Dataset):
        examples = examples(0)
    if isinstance(examples, tf.data.Dataset):
        first = examples.take(COMPARED_EXAMPLES).as_numpy_iterator()
        return [np.asarray(leaf) for example in first for leaf in tf.nest.flatten(example)]
    return [np.asarray(leaf[:COMPARED_EXAMPLES]) for leaf in tf.nest.flatten(examples)]
