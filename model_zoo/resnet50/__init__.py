"""ResNet-50 on digits, CIFAR-10 or ImageNet."""

from model_zoo.resnet50.dataset import dataset
from model_zoo.resnet50.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
