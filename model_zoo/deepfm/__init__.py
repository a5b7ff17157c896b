"""DeepFM on logs of clicks."""

from model_zoo.deepfm.dataset import dataset
from model_zoo.deepfm.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
