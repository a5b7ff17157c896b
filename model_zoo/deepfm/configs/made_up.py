"""The default: made-up clicks, without a download."""

from ml_collections import ConfigDict

from model_zoo.deepfm.configs import criteo


def get_config() -> ConfigDict:
    """Returns the values for the real file, with these changes."""
    config = criteo.get_config()
    config.dataset = "made_up"
    config.num_train = 32_000
    config.num_validation = 8_000
    config.buckets = 2**13
    config.initial_deviation = 0.05
    config.hidden_units = (64, 64)
    config.global_batch_size = 512
    config.micro_batch_size = 64
    config.epochs = 5
    config.learning_rate = 5e-3
    return config
