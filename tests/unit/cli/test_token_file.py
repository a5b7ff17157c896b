"""A job may be given its token by a file (`--token_file`), which must be a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_keras.cli.flags import join_flags
from hvd_elastic_keras.common.errors import ConfigurationError

GOOD = "0123456789abcdefABCDEF-_" * 2


def token_in(path: Path, content: str, mode: int = 0o600) -> str:
    """What a job takes for its token, with this content in a file."""
    path.write_text(content)
    path.chmod(mode)
    return join_flags.token_of_job(str(path))


def test_the_token_is_what_stands_in_the_file(tmp_path: Path) -> None:
    assert token_in(tmp_path / "token", f"{GOOD}\n", mode=0o440) == GOOD
    assert join_flags.token_of_job(None) == "", "without a file it is a new one"


@pytest.mark.parametrize("content", ["", GOOD[:31], GOOD * 11, f"{GOOD} {GOOD}", GOOD + "ä", "{}"])
def test_what_is_no_token_is_refused_without_being_told(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError, match="does not hold a token") as refused:
        token_in(tmp_path / "token", content)
    assert GOOD[:8] not in str(refused.value)


def test_a_file_that_everybody_can_read_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can be read by everybody.*chmod o="):
        token_in(tmp_path / "token", GOOD, mode=0o644)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigurationError, match="/nowhere/token cannot be read"):
        join_flags.token_of_job("/nowhere/token")
