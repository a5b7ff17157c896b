"""A worker that ends itself although its own code hangs leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hvd_elastic_keras.settings import env

HANGS = """
import threading
from hvd_elastic_keras.worker import end_process
end_process.LEAVE_WITHIN_S = 0.0
end_process.if_it_does_not_leave()
threading.Event().wait()
"""


def test_it_writes_its_stacks_and_takes_its_temporary_directory_with_it(tmp_path: Path) -> None:
    scratch = tmp_path / f"{env.SCRATCH_PREFIX}w0-x"
    scratch.mkdir()
    (scratch / "file").write_text("of the user")
    result = subprocess.run(
        [sys.executable, "-c", HANGS],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1, result.stderr
    assert "threading.py" in result.stderr
    assert not scratch.exists()
