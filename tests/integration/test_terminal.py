"""A job on a terminal: what is drawn, and the terminal's state afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("pyte")

from tests.harness import inference_model
from tests.harness.faults import Fault
from tests.harness.inference_model import POINT, SIZE
from tests.harness.job import FAULT_MODEL, Job
from tests.harness.joiner import Joiner
from tests.harness.terminal_job import GO_ON, INTERRUPT, STOP, TerminalJob

LONG = (f"--model={FAULT_MODEL}", "--global_batch_size=64", "--micro_batch_size=8")
ESCAPE = "\x1b"


def test_progress_is_drawn_below_the_lines_and_ctrl_c_leaves_a_clean_terminal(
    tmp_path: Path,
) -> None:
    command = (*LONG, "--epochs=5000")
    with TerminalJob(tmp_path, "--num_workers=2", command=command) as job:
        job.wait_for_line("starting 2 workers")
        window = job.wait_for_lines(("epoch ", "━", " left"), ("loss ", "examples/s", "2 workers"))
        said = [line for line in job.scrolled + window if line.startswith("[")]
        assert all(line.startswith("[elastic] ") for line in said), "no lines of libraries"

        started = {e["worker_id"]: e["pid"] for e in job.events("worker_started")}
        os.kill(started["w1"], signal.SIGKILL)
        window = job.wait_for_line("ago: 2 → 1 worker: w1 was killed by SIGKILL")
        kills = [ln for ln in job.scrolled + window if ln.startswith("[elastic] w1 was killed")]
        assert len(kills) == 1

        job.resize(40)
        job.wait_for_lines(("epoch ", "━", " left"), ("loss ",), ("ago: ",))

        job.press(INTERRUPT)
        assert job.wait_for_end() == 128 + signal.SIGINT
        assert job.has_cursor
        window = job.window
        assert "".join(window).endswith(str(job.job_dir)), "the end of what is said last"
        # Lines for the wide window that were on their way when it became narrow stay above.
        said = next(i for i, ln in enumerate(window) if ln.startswith("[elastic] interrupted"))
        assert not any("ago: " in line or " left" in line for line in window[said:])
        assert f"{ESCAPE}[?25l" not in job.output, "a killed launcher would leave it hidden"


GATE = Fault("gate", "train", 0, step=10, action="wait")
SHORT = (*LONG, "--epochs=3")


def test_a_stopped_terminal_holds_up_nothing_and_shows_all_lines_later(tmp_path: Path) -> None:
    with TerminalJob(tmp_path, "--num_workers=2", command=SHORT, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        job.wait_for_line("epoch ", "━")
        job.press(STOP)
        other = job.wait_for_round(2)["members"][1]
        job.signal(other, signal.SIGKILL)
        job.wait_for("worker_ready", lambda e: e["worker_id"] == "w2")
        assert "w2" in job.ctl("status")
        assert not any("was killed" in line for line in job.window), "it is stopped"
        job.press(GO_ON)
        job.wait_for_line(f"[elastic] {other} was killed by SIGKILL; starting a replacement")
        job.plan.open_gate("gate")
        assert job.wait_for_end() == 0
        assert job.has_cursor
        lines = [ln for ln in job.scrolled + job.window if "finished after 24 steps" in ln]
        assert len(lines) == 1


def test_a_job_outlives_its_terminal_and_goes_on_in_a_log(tmp_path: Path) -> None:
    with TerminalJob(tmp_path, "--num_workers=2", command=SHORT, plan=[GATE]) as job:
        job.wait_for_fault("gate")
        log = job.job_dir / "logs" / "launcher.log"
        job.hang_up()
        job.wait(lambda: (log.exists() and "got SIGHUP" in log.read_text()) or None, "SIGHUP")
        assert "w1" in job.ctl("status")
        job.kill_launcher()
        job.start_launcher("--resume")
        assert job.wait_for("master_restarted")["workers"] == ["w0", "w1"]
        job.wait_for_line("taken over: w0, w1")
        job.hang_up()
        job.plan.open_gate("gate")
        job.finish()
        text = log.read_text()
        assert "the job goes on; what cannot be shown any more is in " in text
        assert "finished after 24 steps" in text
        assert "epoch 3/3  step 8/8" in text, "nothing is drawn any more: there are lines"
        assert ESCAPE not in text


def test_short_epochs_have_few_lines_also_if_rank_0_has_joined(tmp_path: Path) -> None:
    flags = ("--master_only", "--min_workers=1", "--epochs=60")
    with TerminalJob(tmp_path, *flags, command=LONG) as job:
        job.wait_for("waiting")
        with Joiner(job, "a") as joiner:
            job.wait_for_lines(("epoch ", "━"), ("loss ", "examples/s", "1 worker"))
            assert job.wait_for_end() == 0
            assert joiner.exit_code() == 0
        ends = [ln for ln in job.scrolled + job.window if ln.startswith("epoch ")]
        assert 2 <= len(ends) < 30, "the first one, the last, and one in ten seconds"
        assert all(" done  " in line for line in ends)
        assert ends[-1].startswith("epoch 60/60 done")


def test_an_evaluation_is_drawn_as_one(tmp_path: Path) -> None:
    weights = tmp_path / "some.weights.h5"
    inference_model.model().save_weights(weights)
    plan = [Fault("hold", POINT, rank=1, step=7 * 64, size=2, action="wait")]
    model = f"--model={inference_model.__file__}"
    cut = ("--global_batch_size=64", "--micro_batch_size=8")
    command = (model, "--job=evaluate", f"--checkpoint={weights}", *cut)
    with TerminalJob(tmp_path, "--num_workers=2", command=command, plan=plan) as job:
        job.wait_for_line("checking what is to be evaluated")
        job.wait_for_lines(("evaluating  ━", "/16"), ("loss ", "examples/s", "2 workers"))
        job.wait_for_fault("hold")
        job.plan.open_gate("hold")
        assert job.wait_for_end() == 0
        lines = job.scrolled + job.window
        assert sum(line.startswith(f"evaluated {SIZE:,} examples: ") for line in lines) == 1
        assert not any("step 16/16" in line for line in lines), "drawn, not written in lines"


@pytest.mark.slow
def test_a_quiet_job_tells_of_its_workers_and_its_end_only(tmp_path: Path) -> None:
    command = (*LONG, "--epochs=2")
    with Job(tmp_path, "--num_workers=2", "--quiet", command=command) as job:
        job.finish()
        lines = [ln for ln in job.output.splitlines() if not ln.startswith("warning: ")]
        assert len(lines) == 2
        assert lines[0].startswith("[elastic] round 1: 2 workers (w0, w1) start")
        assert lines[1].startswith("[elastic] finished after 16 steps")
        assert ESCAPE not in job.output
