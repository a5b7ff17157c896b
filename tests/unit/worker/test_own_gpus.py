"""A worker that does not see the GPUs that it was asked to have."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.common.errors import ConfigurationError, WorkerLeavingError
from hvd_elastic_keras.settings import env
from hvd_elastic_keras.settings.job_options import JobOptions
from hvd_elastic_keras.worker.elastic_session import ElasticSession
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.own_gpus import check_gpus


class ToldSession(ElasticSession):
    """Is connected to nobody, and notes what it would tell."""

    def __init__(self, environment: env.WorkerEnvironment, others_train: bool) -> None:
        super().__init__(environment)
        self.is_late = others_train
        self.told: list[object] = []
        self.client.post = self.told.append  # type: ignore[method-assign]
        self.client.tell = self.told.append  # type: ignore[method-assign]

    def others_train(self, training: int) -> bool:
        return self.is_late


def worker(monkeypatch: pytest.MonkeyPatch, seen: int, wanted: int, late: bool) -> Membership:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"] * seen)
    options = JobOptions(otherwise={"gpus_per_worker": wanted})
    environment = env.WorkerEnvironment(
        "host:1", "token", "w2", "/job", hostname="node2", options=options
    )
    return Membership(ToldSession(environment, late), environment)


@pytest.mark.parametrize(("seen", "wanted"), [(1, 1), (2, 1), (0, 0)])
def test_with_what_it_was_asked_to_have_it_trains(
    monkeypatch: pytest.MonkeyPatch, seen: int, wanted: int
) -> None:
    check_gpus(worker(monkeypatch, seen, wanted, late=False))


def test_before_anybody_trains_the_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="A worker on node2 sees 1 GPUs, but --gpus_per_w"):
        check_gpus(worker(monkeypatch, 1, 2, late=False))


def test_a_newcomer_leaves_and_the_others_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    membership = worker(monkeypatch, 0, 1, late=True)
    with pytest.raises(WorkerLeavingError, match="sees 0 GPUs"):
        check_gpus(membership)
    assert isinstance(membership.session, ToldSession)
    notice, leaving = membership.session.told
    assert isinstance(notice, protocol.Notice)
    assert "w2 leaves, and the others train on" in notice.text
    assert isinstance(leaving, protocol.Leaving)
