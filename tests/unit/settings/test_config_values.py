"""Configuration values: defaults, messages, and the file that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.common.errors import ConfigurationError, ElasticError
from hvd_elastic_keras.settings.job_config import JobConfig
from hvd_elastic_keras.settings.job_spec import JobSpec
from hvd_elastic_keras.settings.training_config import BatchCut, TrainingConfig


@pytest.mark.parametrize(
    ("size", "plain", "batch_norm"),
    [
        (1, [1], [1]),
        (7, [1] * 7, [7]),
        (8, [1] * 8, [8]),
        (12, [2] * 6, [12]),
        (15, [2] * 7 + [1], [15]),
        (16, [2] * 8, [16]),
        (17, [3] * 5 + [2], [17]),
        (31, [4] * 7 + [3], [31]),
        (32, [4] * 8, [16, 16]),
        (33, [5] * 6 + [3], [17, 16]),
        (48, [6] * 8, [16, 16, 16]),
        (64, [8] * 8, [16] * 4),
        (65, [9] * 7 + [2], [22, 22, 21]),
        (100, [13] * 7 + [9], [20] * 5),
        (127, [16] * 7 + [15], [22] * 5 + [17]),
        (128, [16] * 8, [16] * 8),
        (129, [17] * 7 + [10], [22] * 5 + [19]),
        (256, [32] * 8, [32] * 8),
        (1000, [125] * 8, [125] * 8),
    ],
)
def test_a_batch_is_cut_by_one_rule(size: int, plain: list[int], batch_norm: list[int]) -> None:
    for cut in (BatchCut(), TrainingConfig(global_batch_size=size).cut):
        assert parts(size, cut.of(size, has_batch_norm=False)) == plain
        assert parts(size, cut.of(size, has_batch_norm=True)) == batch_norm


def parts(size: int, micro: int) -> list[int]:
    return [min(micro, size - start) for start in range(0, size, micro)]


@given(st.integers(1, 10_000))
def test_no_batch_is_cut_into_more_than_8_and_batch_norm_sees_16_examples(size: int) -> None:
    plain, batch_norm = (parts(size, BatchCut().of(size, bn)) for bn in (False, True))
    assert len(plain) <= 8
    assert len(plain) > 4 or size < 5
    assert len(batch_norm) <= len(plain)
    assert min(batch_norm) >= min(16, size)
    assert len(batch_norm) > 1 or size < 32


@pytest.mark.parametrize("has_batch_norm", [False, True])
def test_a_size_that_is_given_is_kept_whatever_the_model_has(has_batch_norm: bool) -> None:
    config = TrainingConfig(global_batch_size=64, micro_batch_size=4)
    assert [cut.of(64, has_batch_norm) for cut in (BatchCut(4), config.cut)] == [4, 4]
    assert BatchCut(100).of(64, has_batch_norm) == 64


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"global_batch_size": 0}, ["global_batch_size=0", ">= 1"]),
        ({"micro_batch_size": -1}, ["micro_batch_size=-1", ">= 1"]),
        (
            {"global_batch_size": 100, "micro_batch_size": 32},
            ["global_batch_size=100", "micro_batch_size=32", "96 or 128", "divides 100"],
        ),
        ({"global_batch_size": 8, "micro_batch_size": 16}, ["micro_batch_size=16", "of 16,"]),
        ({"epochs": 0}, ["epochs=0", ">= 1"]),
        ({"steps": 0}, ["steps=0", ">= 1"]),
        ({"seed": -1}, ["seed=-1", "2147483647"]),
        ({"seed": 2**31}, ["seed=2147483648"]),
        ({"deterministic": 1}, ["deterministic=1", "True or False"]),
        ({"drop_remainder": "no"}, ["drop_remainder='no'", "True or False"]),
        ({"epochs": None}, ["epochs", "steps", "never end"]),
    ],
)
def test_a_training_value_out_of_range_is_named_with_what_is_expected(
    values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TrainingConfig(**values)
    assert all(word in str(caught.value) for word in words), caught.value
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ElasticError)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_workers": 0}, ["num_workers=0", ">= 1"]),
        ({"min_workers": 0}, ["min_workers=0", ">= 1"]),
        ({"max_restarts": -1}, ["max_restarts=-1", ">= 0"]),
        ({"num_workers": 17}, ["num_workers=17", "max_workers=16", "<="]),
        ({"min_workers": 3}, ["min_workers=3", "num_workers=2", "<="]),
    ],
)
def test_a_job_value_out_of_range_is_named_with_what_is_expected(
    values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        JobConfig(**values)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("values", "own", "micro"),
    [
        ({"global_batch_size": 128}, 128, 128),
        ({"global_batch_size": 128, "batch_size_per_worker": 32}, 32, 32),
        ({"global_batch_size": 128, "batch_size_per_worker": 32, "micro_batch_size": 16}, 32, 16),
        ({"global_batch_size": 100, "batch_size_per_worker": 7, "micro_batch_size": 7}, 7, 7),
    ],
)
def test_the_batch_of_a_worker_is_cut_only_on_request_where_the_batch_grows(
    values: dict[str, int], own: int, micro: int
) -> None:
    config = TrainingConfig(batch="per_worker", **values)  # type: ignore[arg-type]
    assert (config.batch_size_per_worker, config.cut_batch_size) == (own, own)
    for has_batch_norm in (False, True):
        assert config.cut.of(own, has_batch_norm) == micro


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch_size_per_worker": 8}, ["batch_size_per_worker=8", "batch='per_worker'"]),
        (
            {"batch": "per_worker", "batch_size_per_worker": 12, "micro_batch_size": 8},
            ["batch_size_per_worker=12 is not a multiple", "8 or 16", "divides 12"],
        ),
        ({"batch": "per_worker", "batch_size_per_worker": -1}, ["batch_size_per_worker=-1"]),
    ],
)
def test_a_batch_of_a_worker_that_makes_no_sense_is_refused(
    values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TrainingConfig(**values)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_job_specification_comes_back_from_its_file(tmp_path: Path) -> None:
    training = TrainingConfig(
        global_batch_size=96, epochs=None, steps=7, shuffle=False, deterministic=True
    )
    spec = JobSpec(training, "zoo.model", "data", {"lr": 0.1, "layers": [1, 2]})
    spec.save(tmp_path / "job.json")
    assert JobSpec.load(tmp_path / "job.json") == spec


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 1, "a": 2}'])
def test_a_file_that_is_no_job_specification_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"job\.json is not a job specification"):
        JobSpec.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a job specification"):
        JobSpec.load(tmp_path / "job.json")


@pytest.mark.parametrize("more", [{}, {"of_the_next_release": 1}])
def test_another_format_version_is_named_whatever_else_has_changed(
    tmp_path: Path, more: dict[str, int]
) -> None:
    path = tmp_path / "job.json"
    content = {"version": 2, "training": {"epochs": 1, **more}, "model": "m"}
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="has format version 2, expected 1"):
        JobSpec.load(path)
