"""Data sets of tensorflow-datasets with their real builders and a few made-up examples."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds

Example = dict[str, Any]


def prepare(
    name: str,
    directory: Path,
    splits: dict[str, Iterable[Example]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prepares a data set as its real builder describes it.

    Features that an example does not give are made up. They must be texts.
    """
    monkeypatch.setattr(tfds.core.utils.gcs_utils, "_is_gcs_disabled", True)
    builder = tfds.builder(name, data_dir=directory)

    def numbered(split: str) -> Iterable[tuple[str, Example]]:
        for index, example in enumerate(splits[split]):
            key = f"{split} {index}"
            texts = {feature: key for feature in builder.info.features if feature not in example}
            yield key, {**example, **texts}

    def generators(_: Any, dl_manager: Any) -> dict[str, Any]:
        return {split: numbered(split) for split in splits}

    monkeypatch.setattr(type(builder), "_split_generators", generators)
    builder.download_and_prepare()
