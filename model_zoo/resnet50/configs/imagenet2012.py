"""ImageNet (ILSVRC 2012): the usual 90 epochs, for a batch of 1024.

Learning rate, warm-up and decay of weights of Goyal et al., 2017; cosine and label smoothing of
He et al., "Bag of Tricks for Image Classification", 2019.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Values that training starts from."""
    config = ConfigDict()
    config.dataset = "imagenet2012"
    config.train_split = "train"
    config.validation_split = "validation"
    config.image_shape = (256, 256, 3)  # a part of it, of model_size, is used
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
    # Keras does not send the decay through the momentum of 0.9, which makes it ten times as strong:
    # 1e-3 here is the usual 1e-4.
    config.weight_decay = 1e-3
    return config
