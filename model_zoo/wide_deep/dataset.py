"""Census tables: UCI's "Adult" files from `--data_dir`, or made-up people."""

from __future__ import annotations

import ml_collections

from model_zoo.wide_deep import census


def dataset(
    split: str, config: ml_collections.ConfigDict, data_dir: str
) -> tuple[census.Table, census.Labels]:
    """Returns the columns as in the files: numbers and texts. The model preprocesses them."""
    if config.dataset == "adult":
        return census.read(split, data_dir)
    return census.make_up(split, config.num_train if split == "train" else config.num_validation)
