"""Changes to other packages: each is named, and all can be undone."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

from hvd_elastic_keras.common import patches


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def own(self) -> str:
        return "own"


@pytest.fixture(autouse=True)
def without_patches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(patches, "_installed", [])
    yield
    patches.undo_all()


def test_what_was_replaced_comes_back_as_it_was() -> None:
    module = types.ModuleType("module")
    before = dict(vars(Owner)), dict(vars(module))
    patches.install(Owner, "own", lambda self: "first", "one")
    patches.install(Owner, "own", lambda self: "second", "two")
    patches.install(Owner, "inherited", lambda self: "other", "three")
    patches.install(module, "new", 5, "four")
    assert (Owner().own(), Owner().inherited(), module.new) == ("second", "other", 5)
    assert [(p.name, p.why) for p in patches.installed()] == [
        *(("own", "one"), ("own", "two"), ("inherited", "three"), ("new", "four"))
    ]
    assert patches.is_installed("three")
    patches.undo_all()
    assert (dict(vars(Owner)), dict(vars(module))) == before
    assert not patches.installed()
    assert not patches.is_installed("three")


ALL = """
import keras, sys
from hvd_elastic_keras.common import patches
originals = sys.excepthook, keras.Model.fit, keras.Model.save, keras.saving.save_model
import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import ElasticCallback
hvd.DistributedOptimizer(keras.optimizers.SGD())
print(sorted({f"{p.name}: {p.why}" for p in patches.installed()}))
assert keras.Model.fit is not originals[1] and keras.Model.save is not originals[2]
assert sys.excepthook is not originals[0] and hasattr(keras.optimizers.SGD, "lr")
patches.undo_all()
now = sys.excepthook, keras.Model.fit, keras.Model.save, keras.saving.save_model
assert now == originals and not hasattr(keras.optimizers.SGD, "lr")
"""
NAMED = [
    "_delete_file_if_exists: one worker saves, the others wait",
    "_write: one worker saves, the others wait",
    "excepthook: an uncaught ConfigurationError ends the job",
    "excepthook: an uncaught ElasticError has no traceback",
    "export: one worker saves, the others wait",
    "fit: fit with Horovod's optimizer is elastic",
    "lr: the name of Keras 2",
    "save: one worker saves, the others wait",
    "save_model: one worker saves, the others wait",
    "save_weights: one worker saves, the others wait",
    "update_checkpoint_state_internal: one worker saves, the others wait",
    "write: one worker saves, the others wait",
    "write_out: one worker saves, the others wait",
]


def test_a_worker_can_name_and_undo_all_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    pytest.importorskip("horovod.tensorflow")
    from hvd_elastic_keras.settings.env import WorkerEnvironment

    variables = WorkerEnvironment("127.0.0.1:1", "token", "w0", str(tmp_path)).to_variables()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        [sys.executable, "-c", ALL], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(NAMED)
