"""ImageNet (ILSVRC 2012): the schedule of Goyal et al., 2017, for a batch of 1024."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Values that training starts from."""
    config = ConfigDict()
    config.dataset = "imagenet2012"
    config.train_split = "train"
    config.validation_split = "validation"
    config.image_shape = (224, 224, 3)
    config.model_size = 224
    config.num_classes = 1000
    config.global_batch_size = 1024
    config.micro_batch_size = 64
    config.epochs = 90
    config.batch_norm_momentum = 0.9
    config.optimizer = "sgd"
    config.learning_rate = 0.4
    config.warmup_steps = 6260
    config.decay_steps = 106420
    config.weight_decay = 5e-5
    return config
