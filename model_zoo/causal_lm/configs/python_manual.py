"""The default: Python's language reference from the standard library, without a download."""

from ml_collections import ConfigDict

from model_zoo.causal_lm.configs import tiny_shakespeare


def get_config() -> ConfigDict:
    """Returns the values of tiny Shakespeare, with these changes."""
    config = tiny_shakespeare.get_config()
    config.dataset = "python_manual"
    config.length = 64
    config.stride = 32
    config.size = 128
    config.num_heads = 4
    config.num_blocks = 2
    config.dropout = 0.0
    config.epochs = 4
    config.learning_rate = 3e-3
    config.warmup_steps = 50
    config.decay_steps = 770
    return config
