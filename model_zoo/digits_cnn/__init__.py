"""A small convolutional network on real handwritten digits: seconds on two cores."""

from model_zoo.digits_cnn.dataset import dataset
from model_zoo.digits_cnn.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
