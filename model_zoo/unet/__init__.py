"""A U-Net that says of each pixel what it belongs to."""

from model_zoo.unet.dataset import dataset
from model_zoo.unet.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
