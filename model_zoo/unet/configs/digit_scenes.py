"""The default: predicts the digit of each pixel, in scenes of bundled digits. No download."""

from ml_collections import ConfigDict

from model_zoo.unet import digit_scenes
from model_zoo.unet.configs import oxford_iiit_pet


def get_config() -> ConfigDict:
    """Returns the values for the pets, with these changes."""
    config = oxford_iiit_pet.get_config()
    config.dataset = "digit_scenes"
    config.num_train = 2_000
    config.num_validation = 400
    config.image_shape = (40, 40, 1)
    config.num_classes = digit_scenes.NUM_CLASSES
    config.filters = (16, 32, 64)
    config.dropout = 0.1
    config.epochs = 6
    config.learning_rate = 3e-3
    return config
