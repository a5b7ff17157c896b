"""IMDB reviews: one block, the size of Keras's example "Text classification with Transformer"."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "imdb_reviews"
    config.train_split = "train"
    config.validation_split = "test"
    config.num_classes = 2
    config.num_words = 200
    config.vocabulary_size = 20_000
    config.size = 32
    config.num_heads = 2
    config.num_blocks = 1
    config.feed_forward = 32
    config.dropout = 0.1
    config.global_batch_size = 32
    config.micro_batch_size = 8
    config.epochs = 2
    config.learning_rate = 1e-3
    return config
