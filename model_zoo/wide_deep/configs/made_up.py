"""The default: made-up people, without a download."""

from ml_collections import ConfigDict

from model_zoo.wide_deep.configs import adult


def get_config() -> ConfigDict:
    """Returns the values for the real files, with these changes."""
    config = adult.get_config()
    config.dataset = "made_up"
    config.num_train = 16_000
    config.num_validation = 4_000
    config.epochs = 20
    return config
