# Wide & Deep with two inputs and an auxiliary output (chapter 10 of the book)
import csv

import numpy as np
import tensorflow as tf

tf.keras.backend.clear_session()
tf.random.set_seed(42)
np.random.seed(42)

rows = list(csv.DictReader(open("housing.csv")))
X = np.array([[float(r["median_income"]), float(r["housing_median_age"]),
               float(r["total_rooms"]) / float(r["households"]), float(r["population"]),
               float(r["latitude"]), float(r["longitude"])] for r in rows])
y = np.array([float(r["median_house_value"]) for r in rows]) / 1e5


def train_test_split(X, y, test_size=0.25, random_state=None):
    rnd = np.random.RandomState(random_state)
    perm = rnd.permutation(len(X))
    n = int(len(X) * test_size)
    return X[perm[n:]], X[perm[:n]], y[perm[n:]], y[perm[:n]]


X_train_full, X_test, y_train_full, y_test = train_test_split(X, y, random_state=42)
X_train, X_valid, y_train, y_valid = train_test_split(X_train_full, y_train_full, random_state=42)
X_train_wide, X_train_deep = X_train[:, :4], X_train[:, 2:]
X_valid_wide, X_valid_deep = X_valid[:, :4], X_valid[:, 2:]
X_test_wide, X_test_deep = X_test[:, :4], X_test[:, 2:]
X_new_wide, X_new_deep = X_test_wide[:3], X_test_deep[:3]


class WideAndDeepModel(tf.keras.Model):
    def __init__(self, units=30, activation="relu", **kwargs):
        super().__init__(**kwargs)
        self.norm_layer_wide = tf.keras.layers.Normalization()
        self.norm_layer_deep = tf.keras.layers.Normalization()
        self.hidden1 = tf.keras.layers.Dense(units, activation=activation)
        self.hidden2 = tf.keras.layers.Dense(units, activation=activation)
        self.main_output = tf.keras.layers.Dense(1)
        self.aux_output = tf.keras.layers.Dense(1)

    def call(self, inputs):
        input_wide, input_deep = inputs
        norm_wide = self.norm_layer_wide(input_wide)
        norm_deep = self.norm_layer_deep(input_deep)
        hidden1 = self.hidden1(norm_deep)
        hidden2 = self.hidden2(hidden1)
        concat = tf.keras.layers.concatenate([norm_wide, hidden2])
        output = self.main_output(concat)
        aux_output = self.aux_output(hidden2)
        return output, aux_output


model = WideAndDeepModel(30, activation="relu", name="my_cool_model")
optimizer = tf.keras.optimizers.Adam(learning_rate=1e-2)
model.compile(loss=["mse", "mse"], loss_weights=[0.9, 0.1], optimizer=optimizer,
              metrics=[["root_mean_squared_error"], ["root_mean_squared_error"]])
model.norm_layer_wide.adapt(X_train_wide)
model.norm_layer_deep.adapt(X_train_deep)
history = model.fit(
    (X_train_wide, X_train_deep), (y_train, y_train), epochs=5,
    validation_data=((X_valid_wide, X_valid_deep), (y_valid, y_valid)))
eval_results = model.evaluate((X_test_wide, X_test_deep), (y_test, y_test), return_dict=True)
print(eval_results)
y_pred_main, y_pred_aux = model.predict((X_new_wide, X_new_deep))
print(y_pred_main, y_pred_aux, y_test[:3])
print(history.history["loss"])
