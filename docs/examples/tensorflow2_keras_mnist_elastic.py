"""`model.fit`, made elastic by one callback: Horovod's example of the same name, on the digits.

Alone, and with workers that may come, go and be killed at any moment:

    python docs/examples/tensorflow2_keras_mnist_elastic.py
    python -m hvd_elastic_keras.run --num_workers=2 docs/examples/tensorflow2_keras_mnist_elastic.py

Against Elastic Horovod: no hvd.init(), no DistributedOptimizer, no state and no loop around `fit`.
`batch_size` is that of all workers together, so the learning rate does not depend on their number.
"""

import keras

from hvd_elastic_keras import ElasticCallback
from model_zoo import digits

keras.utils.set_random_seed(0)
images, labels = digits.load("train")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.003),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images, labels, batch_size=128, epochs=12, callbacks=[ElasticCallback()])
print(f"accuracy {model.evaluate(images, labels, verbose=0, return_dict=True)['accuracy']:.4f}")
