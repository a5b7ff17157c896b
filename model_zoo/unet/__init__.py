"""A U-Net that predicts the class of each pixel."""

from model_zoo.unet.dataset import dataset
from model_zoo.unet.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
