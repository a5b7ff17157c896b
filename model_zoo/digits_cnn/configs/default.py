"""A configuration that gets 98 % of the validation digits right within seconds."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.global_batch_size = 128
    config.micro_batch_size = 16
    config.epochs = 8
    config.learning_rate = 2e-3
    config.dropout = 0.25
    return config
