"""Churn model of the data team: config dataclass, pipeline class, trainer class."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import sys

import numpy as np
import tensorflow as tf

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Config:
    batch_size: int = 64
    epochs: int = 3
    learning_rate: float = 5e-3
    hidden: tuple = (32, 16)
    artifacts: pathlib.Path = pathlib.Path("artifacts")
    seed: int = 17


class DataPipeline:
    FEATURES = ("tenure", "monthly_charge", "tickets", "usage")

    def __init__(self, config: Config, n: int = 900):
        self.config = config
        rng = np.random.default_rng(config.seed)
        self.frame = {
            "tenure": rng.gamma(2.0, 12.0, n),
            "monthly_charge": rng.normal(60, 20, n),
            "tickets": rng.poisson(1.2, n).astype(float),
            "usage": rng.lognormal(2, 0.7, n),
        }
        z = 0.03 * (self.frame["monthly_charge"] - 60) - 0.06 * self.frame["tenure"] + 0.8 * self.frame["tickets"]
        self.frame["churn"] = (rng.random(n) < 1 / (1 + np.exp(-z))).astype("float32")
        self.n_train = int(n * 0.8)

    def _arrays(self, part: slice):
        return {k: self.frame[k][part].astype("float32")[:, None] for k in self.FEATURES}, self.frame["churn"][part]

    def train(self) -> tf.data.Dataset:
        x, y = self._arrays(slice(0, self.n_train))
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(self.n_train, seed=self.config.seed)
        ds = ds.map(self._jitter, num_parallel_calls=tf.data.AUTOTUNE)
        return ds.batch(self.config.batch_size).prefetch(tf.data.AUTOTUNE)

    def valid(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self._arrays(slice(self.n_train, None))).batch(self.config.batch_size)

    @staticmethod
    def _jitter(x, y):
        x = dict(x)
        x["usage"] = x["usage"] * tf.random.stateless_uniform([1], seed=tf.cast([y, x["usage"][0]], tf.int32), minval=0.9, maxval=1.1)
        return x, y


class Trainer:
    def __init__(self, config: Config, data: DataPipeline):
        self.config, self.data = config, data
        self.strategy = tf.distribute.get_strategy()
        LOG.info("replicas: %d", self.strategy.num_replicas_in_sync)

    def build(self) -> tf.keras.Model:
        inputs = {k: tf.keras.Input((1,), name=k) for k in DataPipeline.FEATURES}
        norms = []
        for name, tensor in inputs.items():
            norm = tf.keras.layers.Normalization(name=f"norm_{name}")
            norm.adapt(self.data.frame[name][: self.data.n_train, None])
            norms.append(norm(tensor))
        x = tf.keras.layers.concatenate(norms)
        for units in self.config.hidden:
            x = tf.keras.layers.Dense(units, activation="relu")(x)
            x = tf.keras.layers.LayerNormalization()(x)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid", name="churn")(x))

    def run(self) -> dict:
        with self.strategy.scope():
            model = self.build()
            optimizer = tf.keras.optimizers.AdamW(self.config.learning_rate, weight_decay=1e-4, use_ema=True, ema_momentum=0.9)
            model.compile(optimizer, loss="binary_crossentropy", metrics=["AUC", "accuracy"])
        history = model.fit(self.data.train(), validation_data=self.data.valid(), epochs=self.config.epochs, verbose=0)
        optimizer.finalize_variable_values(model.trainable_variables)
        self.config.artifacts.mkdir(exist_ok=True)
        model.save(self.config.artifacts / "churn.keras")
        report = model.evaluate(self.data.valid(), verbose=0, return_dict=True)
        report["train_loss"] = history.history["loss"]
        return report


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    config = Config()
    tf.keras.utils.set_random_seed(config.seed)
    report = Trainer(config, DataPipeline(config)).run()
    for key, value in report.items():
        print(f"{key}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
