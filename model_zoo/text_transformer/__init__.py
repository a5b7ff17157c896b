"""A Transformer that classifies texts."""

from model_zoo.text_transformer.dataset import dataset
from model_zoo.text_transformer.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
