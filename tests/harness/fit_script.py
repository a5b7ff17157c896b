"""A user's script with `model.fit`: `fit_script.py DIRECTORY CASE...`, see `fit_cases.py`.

What each worker ends with goes to `DIRECTORY/CASE/WORKER.npz` and `.json`. Without a launcher, the
worker is called "alone", and several cases may be given.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hvd_elastic_keras import ElasticCallback
from tests.harness import fault_model, faults
from tests.harness.fit_cases import CASES, X

HOOKS = tuple(
    f"on_{moment}_{end}"
    for moment in ("train", "epoch", "train_batch", "test", "test_batch")
    for end in ("begin", "end")
)


class Hooks(keras.callbacks.Callback):
    """Writes down all hooks with their logs; a late joiner gets the list with the state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []


def _recording(name: str) -> Any:
    def hook(self: Hooks, *position: int, logs: Any = None) -> None:
        self.calls.append([name, *(_plain(a) for a in (*position, logs) if a not in (None, {}))])

    return hook


for _name in HOOKS:
    setattr(Hooks, _name, _recording(_name))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return np.asarray(value).tolist()


def run(name: str, directory: Path) -> None:
    """One case, from the model to the results."""
    case = CASES[name]
    worker = fault_model.worker_id()
    files = directory / "files"
    files.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    model = case.model()
    fault_model.watch(model)
    elastic = worker != "alone" or not case.plain
    several = len(case.fits) > 1
    names = ("histories", "hooks", "states", "evaluations", "predictions")
    results: dict[str, Any] = {name: [] for name in names}

    def look() -> None:
        if several:
            logs = model.evaluate(X[:50], np.zeros(50), verbose=0, return_dict=True)
            results["evaluations"].append(_plain(logs))
            results["predictions"].append(_plain(model.predict(X[:5], verbose=0)))

    look()
    for make in case.fits:
        arguments = make(files)
        hooks = Hooks()
        sizes: list[tuple[int, int]] = []
        ours = ElasticCallback(
            micro_batch_size=4,
            on_membership_change=lambda old, new, sizes=sizes: sizes.append((old, new)),
        )
        ours.state.losses = []
        counting = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs, state=ours.state: state.losses.append(logs["loss"])
        )
        callbacks = [hooks, *([ours] if elastic else []), counting]
        callbacks += arguments.pop("callbacks", [])
        history = model.fit(**arguments, callbacks=callbacks, verbose=2)
        print("world sizes", sizes)
        results["states"].append(_plain(ours.state.losses))
        results["histories"].append({"epoch": history.epoch, **_plain(history.history)})
        results["hooks"].append(hooks.calls)
        look()
        if several and worker != "alone":
            faults.happen("between", int(worker[1:]), 0)
    _write(directory / worker, model, results)


def _write(path: Path, model: keras.Model, results: dict[str, Any]) -> None:
    variables = [*model.variables, *model.optimizer.variables]
    kept = [v for v in variables if "seed_generator" not in v.path]
    np.savez(
        path.with_suffix(".npz"),
        **{f"{i} {v.path.replace('/', ' ')}": np.asarray(v) for i, v in enumerate(kept)},
    )
    path.with_suffix(".json").write_text(json.dumps(results))


def main() -> int:
    """Runs the cases named; one that fails does not keep the others from running."""
    directory, *names = sys.argv[1:]
    if len(names) == 1:
        run(names[0], Path(directory) / names[0])
        return 0
    failed = 0
    for name in names:
        keras.utils.clear_session()
        try:
            run(name, Path(directory) / name)
        except Exception:
            failed = 1
            traceback.print_exc()
    return failed


if __name__ == "__main__":
    sys.exit(main())
