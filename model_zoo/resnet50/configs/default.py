"""`digits`."""

from model_zoo.resnet50.configs.digits import get_config

__all__ = ["get_config"]
