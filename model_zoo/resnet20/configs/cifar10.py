"""CIFAR-10: the recipe of He et al., 2015, section 4.2; 64,000 steps are 164 epochs."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "cifar10"
    config.train_split = "train"
    config.validation_split = "test"
    config.image_shape = (32, 32, 3)
    config.model_size = 32
    config.pixel_mean = (0.4914, 0.4822, 0.4465)
    config.pixel_std = (0.2470, 0.2435, 0.2616)
    config.num_classes = 10
    config.blocks_per_stage = 3
    config.max_shift = 4
    config.flip = True
    config.global_batch_size = 128
    config.micro_batch_size = 32
    config.epochs = 164
    config.batch_norm_momentum = 0.9
    config.learning_rate = 0.1
    config.decay_steps = (32_000, 48_000)
    # In the paper, the decay passes through the momentum of 0.9, which makes it ten times as
    # strong. In Keras it does not, so 1e-3 here equals the paper's 1e-4.
    config.weight_decay = 1e-3
    return config
