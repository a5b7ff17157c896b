# Custom losses and metrics: quantile regression with a class metric that keeps state
import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras import ops

np.random.seed(3)
x = np.random.uniform(-3, 3, (900, 1)).astype("float32")
y = (np.sin(x) + 0.3 * np.abs(x) * np.random.randn(900, 1)).astype("float32")


def huber_fn(y_true, y_pred):
    error = y_true - y_pred
    is_small_error = ops.abs(error) < 1
    return ops.where(is_small_error, ops.square(error) / 2, ops.abs(error) - 0.5)


class QuantileLoss(keras.losses.Loss):
    def __init__(self, q=0.9, **kwargs):
        self.q = q
        super().__init__(**kwargs)

    def call(self, y_true, y_pred):
        e = y_true - y_pred
        return ops.mean(ops.maximum(self.q * e, (self.q - 1) * e), axis=-1)

    def get_config(self):
        return {**super().get_config(), "q": self.q}


class Coverage(keras.metrics.Metric):
    """Share of targets below the prediction."""

    def __init__(self, name="coverage", **kwargs):
        super().__init__(name=name, **kwargs)
        self.below = self.add_weight(name="below", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.below.assign_add(ops.sum(ops.cast(y_true < y_pred, "float32")))
        self.count.assign_add(ops.cast(ops.size(y_true), "float32"))

    def result(self):
        return self.below / self.count


def r_squared(y_true, y_pred):
    ss_res = tf.reduce_sum(tf.square(y_true - y_pred))
    ss_tot = tf.reduce_sum(tf.square(y_true - tf.reduce_mean(y_true)))
    return 1 - ss_res / (ss_tot + K.epsilon())


def make_model():
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(32, activation="elu"), keras.layers.Dense(32, activation="elu"), keras.layers.Dense(1)]
    )


m1 = make_model()
m1.compile(loss=huber_fn, optimizer="nadam", metrics=["mae", r_squared])
h1 = m1.fit(x, y, epochs=4, validation_split=0.2, verbose=0)
print("huber", h1.history["loss"], h1.history["val_r_squared"])

m2 = make_model()
m2.compile(loss=QuantileLoss(0.9), optimizer=keras.optimizers.Adam(0.01), metrics=[Coverage()])
m2.fit(x, y, epochs=6, batch_size=45, validation_split=0.2, verbose=2)
m2.save("quantile.keras")
m3 = keras.models.load_model(
    "quantile.keras", custom_objects={"QuantileLoss": QuantileLoss, "Coverage": Coverage}
)
print("quantile", m3.evaluate(x, y, verbose=0))
print(m3.predict(np.array([[-2.0], [0.0], [2.0]]), verbose=0).ravel())
