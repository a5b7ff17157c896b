"""Oxford-IIIT Pet: 3,680 training and 3,669 validation images; classes pet, background, border."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "oxford_iiit_pet"
    config.train_split = "train"
    config.validation_split = "test"
    config.image_shape = (128, 128, 3)
    config.num_classes = 3
    config.filters = (32, 64, 128, 256, 512)
    config.batch_norm_momentum = 0.9
    config.dropout = 0.3
    config.global_batch_size = 64
    config.micro_batch_size = 16
    config.epochs = 40
    config.learning_rate = 1e-3
    return config
