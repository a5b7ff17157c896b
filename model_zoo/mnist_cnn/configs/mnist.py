"""Five epochs; usual values for this network, not tuned."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Values that training starts from."""
    config = ConfigDict()
    config.global_batch_size = 256
    config.micro_batch_size = 32
    config.epochs = 5
    config.learning_rate = 1e-3
    return config
