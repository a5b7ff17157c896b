"""Finds out whether another launcher has started this process: `horovodrun`, `mpirun` or `srun`."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.settings import env

OTHER_LAUNCHERS = (
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS: it is also set in a batch script, which runs only once.
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Name of a launcher, and its variables for the rank of a process and the number of processes."""
HOROVOD_STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")
"""Variables with the address of the store by which `horovodrun`'s processes find each other."""
FIRST_SPEAKS_S = 10.0
"""Seconds that all ranks but rank 0 stay silent before they end.

Most launchers end them earlier, as soon as rank 0 has ended.
"""
HOROVOD_DRIVER = ("HOROVOD_ELASTIC", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
"""Both are set by the elastic `horovodrun`, which may start more processes at any time."""


@dataclasses.dataclass(frozen=True)
class OtherLauncher:
    """Another launcher, which started this process as one of several. Each would train alone."""

    name: str
    rank: int
    size: int

    def refusal(self, command: str) -> str:
        """Returns an error text that says what to run instead.

        `command` is the script with its arguments.
        """
        several = f"{self.size} processes" if self.size > 1 else "processes as hosts come and go"
        return (
            f"{self.name} has started {several}, each of which would train alone here. Start one "
            f"command, which starts the workers itself: {elastic_command(self.size, command)}"
        )


def elastic_command(size: int, script: str) -> str:
    """Returns the command that starts `size` workers of a script elastically."""
    return f"python -m hvd_elastic_keras.run --num_workers={max(size, 1)} {script}"


@dataclasses.dataclass(frozen=True)
class LaunchedPlace:
    """The place that `horovodrun -np N` gives a process, among N processes that never change."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    address: str
    port: int
    iface: str
    hostname: str
    gloo_timeout_s: int


def launched_place() -> LaunchedPlace | None:
    """Returns this process's place from `horovodrun`; None without `horovodrun` or if elastic."""
    found = other_launcher()
    address, port = env.text(HOROVOD_STORE[0]), env.number(HOROVOD_STORE[1])
    grows = bool(env.text("HOROVOD_ELASTIC"))
    if found is None or found.name != "horovodrun" or grows or not (address and port):
        return None
    return LaunchedPlace(
        rank=found.rank,
        size=found.size,
        local_rank=env.number("HOROVOD_LOCAL_RANK"),
        local_size=env.number("HOROVOD_LOCAL_SIZE"),
        cross_rank=env.number("HOROVOD_CROSS_RANK"),
        cross_size=env.number("HOROVOD_CROSS_SIZE"),
        address=address,
        port=port,
        iface=env.text("HOROVOD_GLOO_IFACE"),
        hostname=env.text("HOROVOD_HOSTNAME", "localhost"),
        gloo_timeout_s=env.number("HOROVOD_GLOO_TIMEOUT_SECONDS") or 30,
    )


def other_launcher() -> OtherLauncher | None:
    """Returns the other launcher that started this process and more; None if there is none.

    None also if this package started the process.
    """
    if env.is_worker():
        return None
    grows = all(map(env.text, HOROVOD_DRIVER))
    for name, rank, size in OTHER_LAUNCHERS:
        count = env.number(size)
        if count > 1 or (grows and name == "horovodrun"):
            return OtherLauncher(name, env.number(rank), count)
    return None
