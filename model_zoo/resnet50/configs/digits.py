"""The default: real handwritten digits, minutes on two cores."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "digits"
    config.image_shape = (8, 8, 1)
    config.model_size = 32
    config.num_classes = 10
    config.augmentation = "none"
    config.label_smoothing = 0.0
    config.global_batch_size = 128
    config.micro_batch_size = 16
    config.epochs = 5
    config.batch_norm_momentum = 0.9
    config.optimizer = "adam"
    config.learning_rate = 1e-3
    config.warmup_steps = 6
    config.decay_steps = 54
    config.weight_decay = 0.0  # only SGD uses it
    return config
