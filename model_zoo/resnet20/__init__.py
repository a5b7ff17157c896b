"""ResNet-20 on CIFAR-10, as in the paper, or on digits."""

from model_zoo.resnet20.dataset import dataset
from model_zoo.resnet20.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
