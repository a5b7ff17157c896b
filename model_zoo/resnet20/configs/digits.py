"""The default: real handwritten digits, a minute on two cores."""

from ml_collections import ConfigDict

from model_zoo.resnet20.configs import cifar10


def get_config() -> ConfigDict:
    """Returns the values for CIFAR-10, with these changes."""
    config = cifar10.get_config()
    config.dataset = "digits"
    config.image_shape = (8, 8, 1)
    config.model_size = 16
    config.pixel_mean = (0.305,)
    config.pixel_std = (0.376,)
    config.max_shift = 1
    config.flip = False  # a mirrored digit is another digit, or no digit
    config.epochs = 10
    config.decay_steps = (60, 90)
    return config
