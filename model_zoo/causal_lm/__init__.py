"""A small causal language model over the bytes of a text."""

from model_zoo.causal_lm.dataset import dataset
from model_zoo.causal_lm.model import loss, metrics, model, optimizer

__all__ = ["dataset", "loss", "metrics", "model", "optimizer"]
