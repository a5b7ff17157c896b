"""A script in the style of Elastic Horovod's Keras examples, for tests: only the import is ours.

    horovod_fit_script.py OUTPUT [plain]

Every process that reaches the end leaves `<worker>.npz` and `<worker>.json` in OUTPUT. With
`plain`, Keras alone trains for one epoch as two workers of Horovod would.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from tests.harness import fault_model

OUTPUT = Path(sys.argv[1])
PLAIN = "plain" in sys.argv
OUTPUT.mkdir(parents=True, exist_ok=True)
EPOCHS, BATCHES, RATE = 3, 12, 0.02

hvd.init()
images, labels = fault_model.dataset("train")
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(480, seed=1).repeat()
dataset = dataset.batch(64 if PLAIN else 32)

keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential(
    [keras.Input((8, 8, 1)), fault_model.FaultPoint(), layers.Flatten(), layers.Dense(10)]
)
opt = keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9)
if not PLAIN:
    opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(loss=loss, optimizer=opt, metrics=["accuracy"])
fault_model.watch(model)

if PLAIN:
    opt.learning_rate = 2 * RATE
    history = model.fit(dataset, steps_per_epoch=BATCHES // 2, epochs=1, verbose=0)
    (OUTPUT / "plain.json").write_text(json.dumps(history.history["loss"]))
    sys.exit()

state = hvd.elastic.KerasState(model, batch=0, epoch=0, commits=0, rendezvous=0)


def on_state_reset():
    tf.keras.backend.set_value(state.model.optimizer.lr, RATE * hvd.size())
    state.model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None)


state.register_reset_callbacks([on_state_reset])


class CountingCommits(hvd.elastic.CommitStateCallback):
    def commit(self):
        self.state.commits += 1
        super().commit()


callbacks = [
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    CountingCommits(state, 2),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(str(OUTPUT / "checkpoint-{epoch}.keras")))


@hvd.elastic.run
def train(state):
    state.rendezvous += 1
    return state.model.fit(
        dataset,
        steps_per_epoch=BATCHES // hvd.size(),
        epochs=EPOCHS - state.epoch,
        callbacks=callbacks,
        verbose=1 if hvd.rank() == 0 else 0,
    )


history = train(state)
hvd.barrier()
worker = fault_model.worker_id()
np.savez(OUTPUT / f"{worker}.npz", **{str(i): w for i, w in enumerate(model.get_weights())})
facts = {
    "losses": history.history["loss"],
    "epochs": history.epoch,
    "rate": float(opt.lr),
    "size": hvd.size(),
    "state": {n: getattr(state, n) for n in ("batch", "epoch", "commits", "rendezvous")},
    "steps": int(opt.iterations),
}
(OUTPUT / f"{worker}.json").write_text(json.dumps(facts))
