"""Criteo's Display Advertising Challenge: the network of Guo et al., 2017, section 3."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "criteo"
    config.shuffled_lines = 100_000
    config.buckets = 2**20
    config.embedding_size = 10
    config.initial_deviation = 0.01
    config.hidden_units = (400, 400, 400)
    config.dropout = 0.5
    config.global_batch_size = 4096
    config.micro_batch_size = 512
    config.epochs = 1
    config.learning_rate = 1e-3
    return config
