"""Where progress ends up."""

from __future__ import annotations

import pytest

pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.observe.console import Screen
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.session import SoloSession


def test_a_launcher_hears_of_the_progress_wherever_the_worker_is() -> None:
    for joined in (False, True):
        place = env.WorkerEnvironment("127.0.0.1:1", "secret", "w0", "job", joined=joined)
        assert Membership(SoloSession(), place).screen is Screen.LAUNCHER


def test_a_script_that_has_imported_ipykernel_is_no_notebook() -> None:
    pytest.importorskip("ipykernel")
    assert Membership(SoloSession(), environment=None).screen is Screen.LINES
