"""CIFAR-10: 50,000 images of 32x32 pixels."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Values that training starts from."""
    config = ConfigDict()
    config.dataset = "cifar10"
    config.train_split = "train"
    config.validation_split = "test"
    config.image_shape = (32, 32, 3)
    config.model_size = 32
    config.num_classes = 10
    config.global_batch_size = 256
    config.micro_batch_size = 32
    config.epochs = 100
    config.batch_norm_momentum = 0.99
    config.optimizer = "sgd"
    config.learning_rate = 0.1
    config.warmup_steps = 980
    config.decay_steps = 18620
    config.weight_decay = 5e-4
    return config
