"""The default: people who are made up, no download."""

from ml_collections import ConfigDict

from model_zoo.wide_deep.configs import adult


def get_config() -> ConfigDict:
    """Values that training starts from: those of the real files, but for the following."""
    config = adult.get_config()
    config.dataset = "made_up"
    config.num_train = 16_000
    config.num_validation = 4_000
    config.epochs = 20
    return config
