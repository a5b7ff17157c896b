"""Processes that another launcher has started as several: a place from Horovod's, else refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import keras
import pytest

from hvd_elastic_keras import ElasticCallback, Trainer
from hvd_elastic_keras.common.errors import CollectiveFailedError, ConfigurationError
from hvd_elastic_keras.settings import env, launched_by
from hvd_elastic_keras.worker.launched_session import LaunchedSession, session_of_launcher
from hvd_elastic_keras.worker.rounds import rounds_of_process
from hvd_elastic_keras.worker.session import EntryReport

SEVERAL = {
    "horovodrun": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    "mpirun of MPICH": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "mpirun of MVAPICH": {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"},
    "srun": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"},
}
ONE = {
    "nothing": {},
    "horovodrun": {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    "a batch script of Slurm": {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
    "own launcher below another": {"PMI_SIZE": "4", "PMI_RANK": "2", env.MASTER: "localhost:1"},
    "nonsense": {"PMI_SIZE": "many"},
    "own world of one": {"HOROVOD_SIZE": "1", "HOROVOD_RANK": "0", "HOROVOD_ELASTIC": "1"},
}
DOORS: dict[str, Callable[[], object]] = {
    "ElasticCallback": ElasticCallback,
    # With an elastic state, and with hvd.init().
    "rounds": rounds_of_process.__wrapped__,
    "Trainer": lambda: Trainer(compiled(), None),
}


PLACE = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "192.0.2.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
    "HOROVOD_GLOO_IFACE": "eth1",
    "HOROVOD_HOSTNAME": "b",
}
"""What `horovodrun` tells the second process on the second of two hosts."""


def compiled() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment of a process that nobody has started as one of several."""
    for _, *names in launched_by.OTHER_LAUNCHERS:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    for name in (*launched_by.HOROVOD_DRIVER, *PLACE, env.MASTER):
        monkeypatch.delenv(name, raising=False)
    session_of_launcher.cache_clear()
    yield monkeypatch
    session_of_launcher.cache_clear()


@pytest.mark.parametrize("name", SEVERAL)
def test_several_processes_are_told_from_what_a_launcher_sets(
    name: str, clean: pytest.MonkeyPatch
) -> None:
    for variable, value in SEVERAL[name].items():
        clean.setenv(variable, value)
    assert launched_by.other_launcher() == launched_by.OtherLauncher(
        name.partition(" ")[0], rank=1, size=2
    )


@pytest.mark.parametrize("name", ONE)
def test_one_process_is_fine(name: str, clean: pytest.MonkeyPatch) -> None:
    for variable, value in ONE[name].items():
        clean.setenv(variable, value)
    assert launched_by.other_launcher() is None


def test_the_elastic_driver_of_horovod_may_start_more_at_any_time(
    clean: pytest.MonkeyPatch,
) -> None:
    clean.setenv("HOROVOD_ELASTIC", "1")
    clean.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    clean.setenv("HOROVOD_SIZE", "1")
    other = launched_by.other_launcher()
    assert other == launched_by.OtherLauncher("horovodrun", rank=0, size=1)
    assert "as hosts come and go" in other.refusal("a.py --flag")
    assert other.refusal("a.py --flag").endswith("run --num_workers=1 a.py --flag")


@pytest.mark.parametrize("door", DOORS)
def test_each_way_to_train_is_refused_before_anything_trains(
    door: str, clean: pytest.MonkeyPatch
) -> None:
    clean.setenv("OMPI_COMM_WORLD_SIZE", "4")
    clean.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(ConfigurationError, match=r"^mpirun has started 4 .*--num_workers=4 "):
        DOORS[door]()


def test_the_others_end_with_the_same_code_without_a_word(
    clean: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean.setattr(launched_by, "FIRST_SPEAKS_S", 0.0)
    clean.setenv("PMI_SIZE", "4")
    clean.setenv("PMI_RANK", "3")
    with pytest.raises(SystemExit) as raised:
        ElasticCallback()
    assert raised.value.code == 1
    assert capsys.readouterr() == ("", "")


def test_a_process_of_horovodrun_has_the_place_that_it_was_given(
    clean: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_all(clean, PLACE)
    session = session_of_launcher()
    assert session is not None
    session.join(NoCommunicator(), 8, warm_up_s=1.0)
    place = session.enter(EntryReport(has_state=False, progress=0, step=0))
    assert (place.rank, place.size, place.local_rank, place.local_size) == (3, 4, 1, 2)
    assert (place.cross_rank, place.cross_size, len(place.members)) == (1, 2, 4)
    assert place.sync
    launched = session.launched
    assert (launched.iface, launched.hostname, launched.port) == ("eth1", "b", 4711)
    assert capsys.readouterr().out == ""  # rank 0 speaks for all


@pytest.mark.parametrize(
    "lacking", ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"]
)
def test_without_the_store_of_horovodrun_there_is_no_place(
    lacking: str, clean: pytest.MonkeyPatch
) -> None:
    set_all(clean, PLACE)
    clean.delenv(lacking)
    assert launched_by.launched_place() is None
    assert launched_by.other_launcher() is not None


def test_the_elastic_driver_of_horovod_gives_no_place_and_is_refused(
    clean: pytest.MonkeyPatch,
) -> None:
    set_all(clean, {**PLACE, "HOROVOD_RANK": "0", "HOROVOD_ELASTIC": "1"})
    with pytest.raises(ConfigurationError, match=r"^horovodrun has started .*--num_workers=4 "):
        ElasticCallback()


def test_a_lost_process_ends_the_others_with_what_would_have_helped(
    clean: pytest.MonkeyPatch,
) -> None:
    set_all(clean, {**PLACE, "HOROVOD_RANK": "0"})
    launched = launched_by.launched_place()
    assert launched is not None
    session = LaunchedSession(launched)
    report = EntryReport(has_state=True, progress=3, step=3, failure="a collective failed: gone")
    with pytest.raises(CollectiveFailedError, match=r"^a collective failed: gone\. .*=4 "):
        session.enter(report)


class NoCommunicator:
    """For a session that makes no use of it."""

    in_collective = False

    def computing(self) -> bool:
        return False

    def abort(self, through_round: int) -> bool:
        raise AssertionError("nobody aborts anything under horovodrun")


def set_all(clean: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        clean.setenv(name, value)
