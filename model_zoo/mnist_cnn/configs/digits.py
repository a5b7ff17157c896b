"""The default: the bundled digits, enlarged to the size of MNIST's."""

from ml_collections import ConfigDict

from model_zoo.mnist_cnn.configs import mnist


def get_config() -> ConfigDict:
    """Returns the values for MNIST, with these changes."""
    config = mnist.get_config()
    config.dataset = "digits"
    config.image_shape = (8, 8, 1)
    config.global_batch_size = 64
    config.micro_batch_size = 16
    config.epochs = 8
    return config
