"""CIFAR-10: 50,000 images of 32x32 pixels."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "cifar10"
    config.train_split = "train"
    config.validation_split = "test"
    config.image_shape = (32, 32, 3)
    config.model_size = 32
    config.num_classes = 10
    config.pixel_mean = (0.4914, 0.4822, 0.4465)
    config.pixel_std = (0.2470, 0.2435, 0.2616)
    config.augmentation = "shift"
    config.max_shift = 4
    config.label_smoothing = 0.0
    config.global_batch_size = 256
    config.micro_batch_size = 32
    config.epochs = 100
    config.batch_norm_momentum = 0.99
    config.optimizer = "sgd"
    config.learning_rate = 0.1
    config.warmup_steps = 980
    config.decay_steps = 18620
    config.weight_decay = 5e-3  # equals 5e-4 where the decay passes through a momentum of 0.9
    return config
