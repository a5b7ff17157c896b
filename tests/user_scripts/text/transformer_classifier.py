"""Text classification with a small Transformer block with a padding mask."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.RandomState(10)
vocab_size = 300
maxlen = 24

# made-up "reviews": ids of words, padded with 0; the label depends on order and counts
lengths = rng.randint(8, maxlen + 1, 700)
x_all = np.zeros((700, maxlen), "int32")
for i, n in enumerate(lengths):
    x_all[i, :n] = rng.randint(1, vocab_size, n)
low = ((x_all > 0) & (x_all < 100)).sum(1) / lengths
y_all = (low + rng.normal(0, 0.06, 700) > 0.33).astype("int32")
x_train, y_train, x_val, y_val = x_all[:600], y_all[:600], x_all[600:], y_all[600:]


@keras.saving.register_keras_serializable()
class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.args = {"embed_dim": embed_dim, "num_heads": num_heads, "ff_dim": ff_dim, "rate": rate}
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim // num_heads)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)
        self.dropout2 = layers.Dropout(rate)
        self.supports_masking = True

    def call(self, inputs, training=None, mask=None):
        attn_output = self.att(inputs, inputs)
        attn_output = self.dropout1(attn_output, training=training)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.ffn(out1)
        ffn_output = self.dropout2(ffn_output, training=training)
        return self.layernorm2(out1 + ffn_output)

    def get_config(self):
        return {**super().get_config(), **self.args}


@keras.saving.register_keras_serializable()
class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.args = {"maxlen": maxlen, "vocab_size": vocab_size, "embed_dim": embed_dim}
        self.token_emb = layers.Embedding(vocab_size, embed_dim, mask_zero=True)
        self.pos_emb = layers.Embedding(maxlen, embed_dim)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)

    def compute_mask(self, x, mask=None):
        return ops.not_equal(x, 0)

    def get_config(self):
        return {**super().get_config(), **self.args}


inputs = layers.Input(shape=(maxlen,))
x = TokenAndPositionEmbedding(maxlen, vocab_size, 16)(inputs)
x = TransformerBlock(16, num_heads=2, ff_dim=16)(x)
x = layers.GlobalAveragePooling1D()(x)
x = layers.Dropout(0.1)(x)
x = layers.Dense(10, activation="relu")(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs=inputs, outputs=outputs)

model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=3, validation_data=(x_val, y_val))
model.save("transformer.keras")
again = keras.models.load_model("transformer.keras")
print("evaluate:", model.evaluate(x_val, y_val, verbose=0), again.evaluate(x_val, y_val, verbose=0))
print(history.history)
