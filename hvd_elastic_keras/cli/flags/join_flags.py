"""The flags of `run` for workers that join from other hosts, and for the master's address."""

from __future__ import annotations

import stat
import string
import sys
from pathlib import Path

from absl import flags

from hvd_elastic_keras.cli.flags import settings
from hvd_elastic_keras.common import host_port, tf_config
from hvd_elastic_keras.common.control import LEFT
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.settings import env

SHORTEST_TOKEN, LONGEST_TOKEN = 32, 512
"""Fewest and most characters of a token that a file gives to a job."""

JOIN = flags.DEFINE_string(
    "join",
    None,
    "Start one worker of a job whose master runs elsewhere: HOST:PORT of the master, or the job's "
    "directory if this host sees it. Model or script and all settings come from the master. With "
    "TF_CONFIG, this is one of the processes which that variable names, all started by the same "
    "command: worker 0 runs the master, the others find it by --job_dir.",
)
TOKEN_FILE = flags.DEFINE_string(
    "token_file",
    None,
    "With --join=HOST:PORT: a file that holds the job's token, or a copy of the job's master.json; "
    "- reads it from standard input. Without --join: a file with the token that the job is to "
    f"have, at least {SHORTEST_TOKEN} characters. Default: a new one for each start.",
)
HOST_NAME = flags.DEFINE_string(
    "host_name", None, "With --join: the name of this host in the job. Default: that of the system."
)
WORKER_ID = flags.DEFINE_string(
    "worker_id", "", "With --join: the id that the launcher has given this worker."
)
JOIN_TIMEOUT_S = flags.DEFINE_float(
    "join_timeout_s",
    300.0,
    "With --join: how many seconds to wait for a master that does not answer yet.",
    lower_bound=0.0,
)
LEAVE_EXIT_CODE = flags.DEFINE_integer(
    "leave_exit_code",
    LEFT,
    "With --join: exit code if the worker was asked to leave (SIGTERM, a revoked slot).",
    lower_bound=0,
    upper_bound=255,
)
MASTER_ONLY = flags.DEFINE_boolean(
    "master_only", False, "Start no worker here: they come by themselves (--join)."
)
BIND = flags.DEFINE_string(
    "bind",
    "127.0.0.1",
    "Address of this host at which the master listens. Workers of other hosts need one that they "
    "can reach; 0.0.0.0 is all of IPv4, :: all.",
)
PORT = flags.DEFINE_integer(
    "port", 0, "Port of the master. Default: a free one.", lower_bound=0, upper_bound=65535
)
TOKEN_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_")
ONLY_OF_JOINERS = (HOST_NAME, WORKER_ID, JOIN_TIMEOUT_S, LEAVE_EXIT_CODE)
OF_JOINERS = (JOIN, TOKEN_FILE, *ONLY_OF_JOINERS)
ALSO_OF_JOINERS = ("job_dir", "network_interface", "leave_on", "config")
"""Flags about this host, and `config`, which is set by the program itself."""


def of_announced_worker(
    address: str, token_file: str, host_name: str, worker_id: str, interface: str
) -> list[str]:
    """Returns the flags with which a launcher starts the joiner of a worker on another host.

    Args:
      interface: the network interface to use; empty: the joiner finds its own.
    """
    given = [
        f"--join={address}",
        f"--token_file={token_file}",
        f"--host_name={host_name}",
        f"--worker_id={worker_id}",
    ]
    return [*given, f"--network_interface={interface}"] if interface else given


def take_place_of_tf_config(job_dir: str) -> None:
    """Sets the flags of this process according to its place in `TF_CONFIG`.

    Raises:
      ConfigurationError: the variable is malformed, or there is no job directory.
    """
    place = tf_config.parse(env.tf_config())
    if not job_dir:
        raise ConfigurationError(
            f"--join={tf_config.VARIABLE} was given without --job_dir. Give one on a disk that all "
            "hosts see: by it the workers find their master."
        )
    if place.has_master:
        port = place.master.port
        values = {"join": None, "bind": host_port.ANY_IPV4, "port": port, "num_workers": 1}
    else:
        values = {"join": job_dir}
    for name, value in values.items():
        flags.FLAGS[name].value = value


def read_token(path: str) -> str:
    """Reads the content of --token_file.

    Raises:
      ConfigurationError: the file cannot be read.
    """
    try:
        return sys.stdin.readline() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"--token_file={path} cannot be read: {error}. Give a file that holds the token of the "
            "job, or -."
        ) from error


def token_of_job(path: str | None) -> str:
    """Returns the token that --token_file gives to the job; empty without that flag.

    Raises:
      ConfigurationError: everybody can read the token, or it is too easy to guess.
    """
    if not path:
        return ""
    if path == "-":
        raise ConfigurationError("--token_file=- was given without --join. Give a file.")
    token = read_token(path).strip()
    if Path(path).stat().st_mode & stat.S_IROTH:
        raise ConfigurationError(
            f"--token_file={path} can be read by everybody. Take their rights: chmod o= {path}"
        )
    if not (SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN and set(token) <= TOKEN_CHARACTERS):
        raise ConfigurationError(
            f"--token_file={path} does not hold a token: expected {SHORTEST_TOKEN} to "
            f"{LONGEST_TOKEN} letters, digits, - or _, got {len(token)} characters. Make one with: "
            "openssl rand -hex 32"
        )
    return token


def refuse_others() -> None:
    """Raises `ConfigurationError` if a flag is given whose value the master decides."""
    known = {f.name for f in OF_JOINERS} | set(ALSO_OF_JOINERS)
    names = settings.known_flags()
    given = [f"--{name}" for name in names if flags.FLAGS[name].present and name not in known]
    if given:
        raise ConfigurationError(
            f"{', '.join(given)} was given together with --join: the master decides that. Give it "
            "to the command that has started the job."
        )


def refuse_without_join() -> None:
    """Raises `ConfigurationError` if a flag is given that needs --join."""
    given = [f"--{f.name}" for f in ONLY_OF_JOINERS if flags.FLAGS[f.name].present]
    if given:
        raise ConfigurationError(f"{', '.join(given)} was given without --join. Add it.")
