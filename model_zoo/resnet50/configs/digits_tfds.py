"""The configuration `digits`, with the same images from tensorflow-datasets."""

from ml_collections import ConfigDict

from model_zoo.resnet50.configs import digits


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = digits.get_config()
    config.dataset = "bundled_digits"
    config.train_split = "train"
    config.validation_split = "test"
    return config
