"""What is said about flags of pods that make no sense, before the cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from absl.testing import flagsaver

from hvd_elastic_keras.cli.flags import settings
from hvd_elastic_keras.cli.flags.kubernetes_flags import PodsRequest, pods_request
from hvd_elastic_keras.common.errors import ConfigurationError

PODS = ["--launcher=kubernetes", "--image=any"]


def asked_for(*line: str) -> PodsRequest | None:
    with flagsaver.flagsaver():
        settings.parse_flags(["run", *line])
        return pods_request()


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no service account of a pod here."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "list.yaml").write_text("- a\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--image=a"], "--image was given without --launcher=kubernetes"),
        (["--launcher=kubernetes"], "was given without --image. Give the image"),
        ([*PODS, "--hosts=a:2"], "--hosts was given together with --launcher=kubernetes"),
        ([*PODS, "--master_only"], "--master_only was given together with --launcher=kubernetes"),
        ([*PODS, "--job_name=My_job"], "--job_name=My_job was given, expected at most"),
        ([*PODS, "--master_host=master"], "--master_host=master was given without --port"),
        (
            [*PODS, "--pod_template=no.yaml"],
            "--pod_template=no.yaml cannot be read: .*No such file",
        ),
        ([*PODS, "--pod_template=broken.yaml"], "--pod_template=broken.yaml cannot be read"),
        (
            [*PODS, "--pod_template=list.yaml"],
            "--pod_template has list as spec, expected the specification",
        ),
        ([*PODS, "--queue=spot"], "no cluster is found|is not installed"),
    ],
)
def test_flags_that_make_no_sense_are_refused(line: list[str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        asked_for(*line)


def test_without_the_flag_workers_are_no_pods() -> None:
    assert asked_for() is None
