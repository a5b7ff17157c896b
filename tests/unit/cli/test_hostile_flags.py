"""Any value of any flag of `run` is taken or refused with one line, never with a traceback."""

from __future__ import annotations

import contextlib
import math

import pytest
from absl import flags
from absl.testing import flagsaver
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hvd_elastic_keras.cli.flags import job_flags
from hvd_elastic_keras.cli.flags import settings as cli_settings
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings.job_config import JobConfig

NAMES = [
    flag.name
    for flag in flags.FLAGS.get_key_flags_for_module(job_flags)
    if flag.name not in ("config", "job_dir")
]
VALUES = st.sampled_from(
    ["", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "9" * 5000, "\x00", "\u0663", "true"]
) | st.text(max_size=10)


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
@example({"heartbeat_timeout_s": "nan"})
def test_flags_are_taken_or_refused(given_flags: dict[str, str]) -> None:
    line = [f"--{name}={value}" for name, value in given_flags.items()]
    with flagsaver.flagsaver(), contextlib.suppress(ConfigurationError):
        try:
            cli_settings.parse_flags(["run", *line])
        except SystemExit as end:
            refused = end.code
        else:
            refused = None
            job_flags.training_config({})
            job_flags.given_options({}, {})
            config = job_flags.job_config()
            assert not any(math.isnan(value) for value in vars(config).values())
        assert refused in (None, 2)


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="heartbeat_timeout_s=nan was given"):
        JobConfig(heartbeat_timeout_s=float("nan"))
