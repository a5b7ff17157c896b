"""Where progress ends up."""

from __future__ import annotations

import pytest

pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras.observe.screen import Screen
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.session import SoloSession


def test_a_script_that_has_imported_ipykernel_is_no_notebook() -> None:
    pytest.importorskip("ipykernel")
    assert Membership(SoloSession(), environment=None).screen is Screen.LINES
