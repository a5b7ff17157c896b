"""
Title: Collaborative Filtering for Movie Recommendations
(matrix factorisation with embeddings, after the keras.io example)
"""

import csv

import keras
import numpy as np
from keras import layers, ops

with open("ratings.csv") as f:
    df = [(int(r["userId"]), int(r["movieId"]), float(r["rating"])) for r in csv.DictReader(f)]

user_ids = list(dict.fromkeys(r[0] for r in df))
user2user_encoded = {x: i for i, x in enumerate(user_ids)}
movie_ids = list(dict.fromkeys(r[1] for r in df))
movie2movie_encoded = {x: i for i, x in enumerate(movie_ids)}
movie_encoded2movie = {i: x for i, x in enumerate(movie_ids)}

num_users = len(user2user_encoded)
num_movies = len(movie_encoded2movie)
ratings = np.array([r[2] for r in df], dtype="float32")
min_rating, max_rating = ratings.min(), ratings.max()
print(f"Number of users: {num_users}, Number of Movies: {num_movies}, "
      f"Min rating: {min_rating}, Max rating: {max_rating}")

x = np.array([(user2user_encoded[u], movie2movie_encoded[m]) for u, m, _ in df])
# Normalize the targets between 0 and 1. Makes it easy to train.
y = (ratings - min_rating) / (max_rating - min_rating)
order = np.random.RandomState(42).permutation(len(df))
x, y = x[order], y[order]
train_indices = int(0.9 * len(df))
x_train, x_val, y_train, y_val = x[:train_indices], x[train_indices:], y[:train_indices], y[train_indices:]

EMBEDDING_SIZE = 16


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.user_embedding = layers.Embedding(
            num_users,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies,
            embedding_size,
            embeddings_initializer="he_normal",
            embeddings_regularizer=keras.regularizers.l2(1e-6),
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        user_bias = self.user_bias(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        movie_bias = self.movie_bias(inputs[:, 1])
        dot_user_movie = ops.sum(user_vector * movie_vector, axis=1, keepdims=True)
        # Add all the components (including bias)
        x = dot_user_movie + user_bias + movie_bias
        return ops.nn.sigmoid(x)


model = RecommenderNet(num_users, num_movies, EMBEDDING_SIZE)
model.compile(
    loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.01)
)
history = model.fit(
    x=x_train, y=y_train, batch_size=64, epochs=5, verbose=1, validation_data=(x_val, y_val)
)
print("loss", history.history["loss"])
print("val_loss", history.history["val_loss"])

# Let us get a user and see the top recommendations.
user_id = df[int(np.random.RandomState(3).randint(len(df)))][0]
watched = {m for u, m, _ in df if u == user_id}
not_watched = [[movie2movie_encoded[m]] for m in movie_ids if m not in watched]
user_movie_array = np.hstack(([[user2user_encoded[user_id]]] * len(not_watched), not_watched))
predicted = model.predict(user_movie_array).flatten()
top_ratings_indices = predicted.argsort()[-5:][::-1]
print("Top movies for user", user_id)
for i in top_ratings_indices:
    print(movie_encoded2movie[not_watched[i][0]], predicted[i])
