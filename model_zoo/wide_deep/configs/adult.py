"""UCI's "Adult" files. Hidden layers and batch have usual values, not tuned ones."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "adult"
    config.cross_bins = 1000
    config.embedding_size = 8
    config.hidden_units = (100, 50)
    config.dropout = 0.1
    config.global_batch_size = 256
    config.micro_batch_size = 32
    config.epochs = 10
    config.learning_rate = 1e-3
    return config
