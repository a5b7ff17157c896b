"""Models whose steps are programs for a whole batch. A few examples would not show their meaning.

Each function returns a compiled model and a batch, as people write them.
"""

from tests.harness.partitioned_models import (
    contrastive,
    generative,
    losses,
    outputs,
    sequences,
    updates,
    vision,
)
from tests.harness.partitioned_models.common import ROWS, Made, Makers
from tests.harness.partitioned_models.updates import half_precision

FIELDS = (losses, contrastive, generative, sequences, vision, updates, outputs)
MODELS: Makers = {name: make for field in FIELDS for name, make in field.MODELS.items()}
__all__ = ["MODELS", "ROWS", "Made", "half_precision"]
