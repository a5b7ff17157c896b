"""The remote end of an ssh connection: becomes the worker that the launcher asks for.

    python -m hvd_elastic_keras.launchers.ssh_end

Reads a `RemoteStart` on standard input. `hvd_elastic_keras.run` then finds the token in a pipe that
is its standard input.
"""

from __future__ import annotations

import os
import sys

import msgspec

from hvd_elastic_keras.launchers.ssh import RemoteStart
from hvd_elastic_keras.settings import env


def main() -> None:
    """Replaces this process by `hvd_elastic_keras.run`."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=RemoteStart)
    source, sink = os.pipe()
    os.write(sink, start.token.encode())
    os.close(sink)
    os.dup2(source, 0)
    command = [sys.executable, "-m", "hvd_elastic_keras.run", *start.arguments]
    os.execve(sys.executable, command, env.child_environment(start.variables, {}))


if __name__ == "__main__":
    main()
