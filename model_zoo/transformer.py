"""Layers that the Transformers of the model zoo share."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable("model_zoo")
class TokenAndPosition(keras.layers.Layer):  # type: ignore[misc]
    """Maps tokens, int [n, length], to the sum of two embeddings, [n, length, size].

    Args:
      vocabulary_size: number of tokens; all tokens are below it.
      length: length of the longest sequence.
      size: size of an embedding.
      mask_zero: whether token 0 is padding, which later layers must mask.
    """

    def __init__(
        self, vocabulary_size: int, length: int, size: int, mask_zero: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._config = {
            "vocabulary_size": vocabulary_size,
            "length": length,
            "size": size,
            "mask_zero": mask_zero,
        }
        # The values are small, so that logits of a head that shares the table begin near zero.
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.tokens = keras.layers.Embedding(vocabulary_size, size, small, mask_zero=mask_zero)
        self.positions = keras.layers.Embedding(length, size, small.clone())
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Makes the two tables."""
        self.tokens.build(input_shape)
        self.positions.build(input_shape[1:])

    def call(self, tokens: Any) -> Any:
        """Returns the embeddings, of shape [n, length, size]."""
        return self.tokens(tokens) + self.positions(keras.ops.arange(tokens.shape[-1]))

    def compute_mask(self, tokens: Any, mask: Any = None) -> Any:
        """Returns where there is no padding, bool [n, length]; None without `mask_zero`."""
        return self.tokens.compute_mask(tokens)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns [n, length, size]."""
        return (*input_shape, self._config["size"])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {**super().get_config(), **self._config}


def feed_forward(x: keras.KerasTensor, units: int, dropout: float) -> keras.KerasTensor:
    """Applies two dense layers and dropout. The last dimension keeps its size."""
    hidden = keras.layers.Dense(units, activation="gelu")(x)
    return keras.layers.Dropout(dropout)(keras.layers.Dense(x.shape[-1])(hidden))
