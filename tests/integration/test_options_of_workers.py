"""Options from a job's command line, script, file and environment, with real workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.harness.fit_job import gate
from tests.harness.job import LIMIT_S, Job

SCRIPT = """
import keras, numpy as np
from hvd_elastic_keras import ElasticCallback
from tests.harness.fault_model import FaultPoint, watch

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2), FaultPoint()])
model.compile("sgd", "mse")
watch(model)
x = np.ones((80, 4), "float32")
elastic = ElasticCallback(
    checkpoint_every_n_epochs=1, checkpoint_every_n_steps=1, keep_checkpoints=4, audit=True,
    deterministic=True,
)
model.fit(x, x[:, :2], batch_size=16, epochs=3, verbose=0, callbacks=[elastic])
counts = elastic._options
print("counts", counts.keep_checkpoints, counts.micro_batches, counts.on_nonfinite)
"""


TYPED = (
    *("--num_workers=2", "--noaudit", "--nodeterministic"),
    *("--checkpoint_every_n_epochs=0", "--checkpoint_every_n_steps=0"),
)
FROM_ELSEWHERE = ("--keep_checkpoints=5", "--on_nonfinite=skip", "--micro_batches=loop")
"""The values of file and environment, as flags."""


class JobWithVariables(Job):
    """A job whose launcher has flags' values in variables, at its first start."""

    variables: Mapping[str, str] = {
        "HVD_ELASTIC_RUN_MICRO_BATCHES": "loop",
        "HVD_ELASTIC_RUN_ON_NONFINITE": "stop",
    }

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.variables}

    def start_again(self, *flags: str) -> None:
        self.variables = {}
        self._arguments = [f"--job_dir={self.job_dir}", *flags]
        self.start_launcher()


def test_the_command_line_counts_before_the_script_and_this_before_file_and_environment(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.toml").write_text('keep_checkpoints = 5\non_nonfinite = "skip"\n')
    flags = (f"--config={tmp_path / 'job.toml'}", *TYPED)
    script = (str(tmp_path / "train.py"),)
    with JobWithVariables(tmp_path, *flags, plan=[gate(7)], command=script) as job:
        job.wait_for_fault("gate")
        job.kill_launcher()
        # The values are the same as before, but now they would have priority over the script.
        job.start_again(*FROM_ELSEWHERE, *TYPED)
        assert job.process.wait(LIMIT_S) == 2
        told = f"got --keep_checkpoints from {tmp_path / 'job.toml'}, and this command gets it from"
        assert f"{told} the command line" in job.output
        job.start_again("--resume")
        job.wait_for("master_restarted")
        job.ctl("add", "1")
        job.wait_for("round_opened", lambda e: e["reason"] == "w2 joins")
        job.plan.open_gate("gate")
        job.finish()
        assert "counts 4 loop skip" in job.output
        assert {e["step"] for e in job.events("checkpoint_saved")} <= {15}, "at the end, if at all"
        assert not (job.job_dir / "ledger").exists()
