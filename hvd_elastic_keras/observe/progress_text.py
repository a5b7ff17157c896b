"""Numbers of a training, as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping

MINUTE_S = 60


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> format_duration(3725.2), format_duration(59)
    ('1:02:05', '0:59')
    """
    minutes, rest = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, MINUTE_S)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def formatted_metrics(metrics: Mapping[str, float | None]) -> str:
    """Names and values in the order of the alphabet; None is not a number.

    >>> formatted_metrics({"loss": None, "accuracy": 0.25})
    'accuracy 0.2500  loss nan'
    """
    numbers = {n: math.nan if v is None else v for n, v in metrics.items()}
    return "  ".join(f"{name} {value:.4f}" for name, value in sorted(numbers.items()))
