# beta-VAE for digits: a callback anneals the weight of the KL term, which the loss closes over
import keras
import numpy as np
from keras import layers, ops

x_train = np.load("digits.npz")["x_train"].reshape(-1, 256).astype("float32") / 255

kl_weight = keras.Variable(0.0, trainable=False, name="kl_weight")


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


class KLDivergence(layers.Layer):
    def call(self, inputs):
        mean, log_var = inputs
        kl = -0.5 * ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=-1)
        self.add_loss(kl_weight * ops.mean(kl))
        return inputs


class AnnealKL(keras.callbacks.Callback):
    """Raises the weight while the loss goes down."""

    def __init__(self, best=np.inf):
        super().__init__()
        self.best = best

    def on_epoch_end(self, epoch, logs=None):
        if logs["loss"] < self.best:
            self.best = logs["loss"]
            kl_weight.assign(ops.minimum(kl_weight * 1.3 + 0.002, 0.05))
        print(f"epoch {epoch}: kl weight {float(kl_weight.value):.6f}")


inputs = keras.Input((256,))
x = layers.Dense(64, activation="relu")(inputs)
mean, log_var = KLDivergence()([layers.Dense(4)(x), layers.Dense(4)(x)])
x = layers.Dense(64, activation="relu")(Sampling()([mean, log_var]))
vae = keras.Model(inputs, layers.Dense(256, activation="sigmoid")(x))
vae.compile(optimizer=keras.optimizers.Adam(1e-3), loss="binary_crossentropy")
history = vae.fit(x_train, x_train, epochs=12, batch_size=40, verbose=2, callbacks=[AnnealKL()])

print("loss", history.history["loss"])
print("kl weight", float(kl_weight.value))
print("codes", keras.Model(inputs, mean).predict(x_train[:3], verbose=0))
