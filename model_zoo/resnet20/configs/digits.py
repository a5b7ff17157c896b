"""The default: real handwritten digits, a minute on two cores."""

from ml_collections import ConfigDict

from model_zoo.resnet20.configs import cifar10


def get_config() -> ConfigDict:
    """Values that training starts from: those of CIFAR-10, but for the following."""
    config = cifar10.get_config()
    config.dataset = "digits"
    config.image_shape = (8, 8, 1)
    config.model_size = 16
    config.pixel_mean = (0.305,)
    config.pixel_std = (0.376,)
    config.max_shift = 1
    config.flip = False  # a mirrored digit is another one, or none
    config.epochs = 10
    config.decay_steps = (60, 90)
    return config
