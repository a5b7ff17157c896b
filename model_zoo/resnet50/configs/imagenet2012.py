"""ImageNet (ILSVRC 2012): the usual 90 epochs, for a batch of 1024.

Learning rate, warm-up and weight decay are from Goyal et al., 2017. Cosine and label smoothing are
from He et al., "Bag of Tricks for Image Classification", 2019.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns the values of this configuration."""
    config = ConfigDict()
    config.dataset = "imagenet2012"
    config.train_split = "train"
    config.validation_split = "validation"
    config.image_shape = (256, 256, 3)  # the model uses a part, resized to model_size
    config.model_size = 224
    config.num_classes = 1000
    config.pixel_mean = (0.485, 0.456, 0.406)
    config.pixel_std = (0.229, 0.224, 0.225)
    config.augmentation = "crop"
    config.label_smoothing = 0.1
    config.global_batch_size = 1024
    config.micro_batch_size = 64
    config.epochs = 90
    config.batch_norm_momentum = 0.9
    config.optimizer = "sgd"
    config.learning_rate = 0.4
    config.warmup_steps = 6260  # 5 epochs of 1252 steps
    config.decay_steps = 106420
    # Usually the decay passes through the momentum of 0.9, which makes it ten times as strong. In
    # Keras it does not, so 1e-3 here equals the usual 1e-4.
    config.weight_decay = 1e-3
    return config
