"""The configuration `digits`, with the same images through tensorflow-datasets."""

from ml_collections import ConfigDict

from model_zoo.resnet50.configs import digits


def get_config() -> ConfigDict:
    """Values that training starts from."""
    config = digits.get_config()
    config.dataset = "bundled_digits"
    config.train_split = "train"
    config.validation_split = "test"
    return config
