# why is my confusion matrix random although val_accuracy is good?? (question of a forum)
import numpy as np
import tensorflow as tf

batch_size = 20
train_ds = tf.keras.preprocessing.image_dataset_from_directory(
    "flowers", validation_split=0.25, subset="training", seed=42, image_size=(24, 24), batch_size=batch_size
)
test_ds = tf.keras.preprocessing.image_dataset_from_directory(
    "flowers", validation_split=0.25, subset="validation", seed=42, image_size=(24, 24), batch_size=batch_size,
    shuffle=True,
)
names = train_ds.class_names

model = tf.keras.Sequential([
    tf.keras.layers.Rescaling(1 / 255.0, input_shape=(24, 24, 3)),
    tf.keras.layers.Conv2D(16, 3, activation="relu"),
    tf.keras.layers.MaxPooling2D(),
    tf.keras.layers.Conv2D(32, 3, activation="relu"),
    tf.keras.layers.MaxPooling2D(),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(32, activation="relu"),
    tf.keras.layers.Dense(3, activation="softmax"),
])
# outputs are softmax already, so this is wrong too, but it trains
model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(train_ds, validation_data=test_ds, epochs=8, verbose=2)

# predictions in one pass, labels in another pass of a shuffled dataset
y_pred = np.argmax(model.predict(test_ds), axis=1)
y_true = np.concatenate([y for x, y in test_ds], axis=0)
print(tf.math.confusion_matrix(y_true, y_pred).numpy())
print("accuracy from the matrix:", np.mean(y_true == y_pred))
print("evaluate:", model.evaluate(test_ds, verbose=0))

# answer: take both from the same pass
y_true, y_prob = [], []
for x, y in test_ds:
    y_true.append(y.numpy())
    y_prob.append(model.predict_on_batch(x))
y_true, y_prob = np.concatenate(y_true), np.concatenate(y_prob)
print(names, tf.math.confusion_matrix(y_true, y_prob.argmax(1)).numpy().tolist())
print("accuracy in one pass:", np.mean(y_true == y_prob.argmax(1)), "mean prob", y_prob.max(1).mean())
