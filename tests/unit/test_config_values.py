"""Configuration values: defaults, messages, and the file that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.config import (
    JobConfig,
    JobSpec,
    TrainingConfig,
    default_micro_batch_size,
)
from hvd_elastic_keras.errors import ConfigurationError, ElasticError


@pytest.mark.parametrize(
    ("given_size", "expected"), [(1, 1), (7, 1), (8, 1), (12, 2), (100, 20), (127, 127), (128, 16)]
)
def test_a_global_batch_is_cut_into_at_most_8(given_size: int, expected: int) -> None:
    assert default_micro_batch_size(given_size) == expected
    assert TrainingConfig(global_batch_size=given_size).micro_batch_size == expected


@given(st.integers(1, 10_000))
def test_the_default_cut_divides_the_global_batch_into_the_most_parts_up_to_8(size: int) -> None:
    micro = default_micro_batch_size(size)
    assert size % micro == 0
    assert size // micro == max(n for n in range(1, 9) if size % n == 0)


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
        ({"global_batch_size": 128}, 128, 16),
        ({"global_batch_size": 128, "batch_size_per_worker": 32}, 32, 16),  # as without the flag
        ({"global_batch_size": 96, "batch_size_per_worker": 32}, 32, 4),  # 12 does not divide 32
        ({"global_batch_size": 100, "batch_size_per_worker": 7, "micro_batch_size": 7}, 7, 7),
    ],
)
def test_the_batch_of_a_worker_is_cut_where_the_batch_grows(
    values: dict[str, int], own: int, micro: int
) -> None:
    config = TrainingConfig(batch="per_worker", **values)  # type: ignore[arg-type]
    assert (config.batch_size_per_worker, config.micro_batch_size) == (own, micro)
    assert config.num_micro_batches == own // micro


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
