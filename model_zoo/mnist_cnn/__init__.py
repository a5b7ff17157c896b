"""A convolutional network on MNIST."""

from model_zoo.mnist_cnn.dataset import dataset
from model_zoo.mnist_cnn.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
