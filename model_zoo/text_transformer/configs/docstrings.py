"""The default: predicts which part of the standard library a docstring is from. No download."""

from ml_collections import ConfigDict

from model_zoo import python_texts
from model_zoo.text_transformer.configs import imdb


def get_config() -> ConfigDict:
    """Returns the values for IMDB, with these changes."""
    config = imdb.get_config()
    config.dataset = "docstrings"
    config.num_classes = len(python_texts.PARTS)
    config.num_words = 64
    config.vocabulary_size = 8_000
    config.size = 64
    config.num_heads = 4
    config.feed_forward = 128
    config.dropout = 0.2
    config.epochs = 12
    return config
