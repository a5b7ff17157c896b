"""Wide & Deep on census tables, with Keras's preprocessing layers inside the model."""

from model_zoo.wide_deep.dataset import dataset
from model_zoo.wide_deep.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
