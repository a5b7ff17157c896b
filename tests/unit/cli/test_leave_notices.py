"""A cloud takes a machine back: what its metadata service says, and what is done then."""

from __future__ import annotations

import datetime
import json
import threading

import pytest
import requests

from hvd_elastic_keras.cli import leave_notices
from hvd_elastic_keras.cli.leave_notices import (
    Aws,
    GoogleCloud,
    Notice,
    NoticeWatch,
    Provider,
    aws_notice,
)
from tests.harness.metadata_service import MetadataService

LIMIT_S = 60.0


def test_google_cloud_says_whether_the_machine_is_preempted() -> None:
    with MetadataService() as service:
        cloud = GoogleCloud(service.host)
        assert cloud.notice() is None
        service.preempted = True
        assert cloud.notice() == Notice("Google Cloud preempts this machine", 30.0)


def test_aws_says_when_the_machine_goes_to_who_has_a_token_that_holds() -> None:
    with MetadataService() as service:
        cloud = Aws(f"http://{service.host}")
        assert cloud.notice() is None
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=100)
        service.instance_action = {"action": "terminate", "time": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
        service.forget_tokens()
        notice = cloud.notice()
        assert notice is not None
        assert notice.text == "AWS will terminate this machine"
        assert 0 < notice.within_s <= 100
        assert service.tokens_given == 2


@pytest.mark.parametrize("content", [b"", b"null", b'{"action": "stop"}', b'{"action": 1}'])
def test_a_notice_of_another_form_is_a_notice(content: bytes) -> None:
    moment = datetime.datetime.now(datetime.timezone.utc)
    assert aws_notice(content, moment).within_s == 120.0


@pytest.mark.parametrize("time", ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00"])
def test_a_time_that_is_over_or_has_no_zone_leaves_some_time(time: str) -> None:
    moment = datetime.datetime.now(datetime.timezone.utc)
    content = json.dumps({"action": "stop", "time": time}).encode()
    assert aws_notice(content, moment).within_s in (0.0, 120.0)


def test_the_end_is_asked_for_twice_and_a_service_that_fails_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leave_notices, "ASK_EVERY_S", 0.01)
    ends = threading.Semaphore(0)
    with MetadataService() as service:
        service.fails = True
        clouds: dict[str, Provider] = {
            "aws": Aws(f"http://{service.host}"),
            "gcp": GoogleCloud(service.host),
        }
        watch = threading.Thread(target=NoticeWatch(clouds, ends.release).run, daemon=True)
        watch.start()
        assert service.failed.acquire(timeout=LIMIT_S)
        assert service.failed.acquire(timeout=LIMIT_S)
        assert service.failed.acquire(timeout=LIMIT_S)
        assert not ends.acquire(blocking=False)
        now = datetime.datetime.now(datetime.timezone.utc)
        service.instance_action = {"action": "stop", "time": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
        service.fails = False
        assert ends.acquire(timeout=LIMIT_S)
        assert ends.acquire(timeout=LIMIT_S)
        watch.join(LIMIT_S)
    told = capsys.readouterr().err
    assert told.count("the metadata service of aws does not answer") == 1
    assert told.count("the metadata service of gcp does not answer") == 1
    assert "AWS will stop this machine in 0 s: leaving" in told


def test_a_service_that_is_not_there_is_an_error_of_a_request() -> None:
    with MetadataService() as service:
        host = service.host
    with pytest.raises(requests.RequestException):
        GoogleCloud(host).notice()
