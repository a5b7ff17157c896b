"""MNIST for five epochs. The values are usual for this network, not tuned."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "mnist"
    config.train_split = "train"
    config.validation_split = "test"
    config.image_shape = (28, 28, 1)
    config.global_batch_size = 256
    config.micro_batch_size = 32
    config.epochs = 5
    config.learning_rate = 1e-3
    return config
