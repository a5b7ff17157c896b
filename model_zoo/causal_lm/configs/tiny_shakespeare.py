"""Tiny Shakespeare: the sizes and the schedule of nanoGPT's `train_shakespeare_char`."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "tiny_shakespeare"
    config.length = 256
    config.stride = 64
    config.size = 384
    config.num_heads = 6
    config.num_blocks = 6
    config.dropout = 0.2
    config.global_batch_size = 64
    config.micro_batch_size = 8
    config.epochs = 20
    config.learning_rate = 1e-3
    config.warmup_steps = 100
    config.decay_steps = 4800
    config.weight_decay = 0.1
    return config
