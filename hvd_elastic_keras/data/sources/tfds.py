"""A source with random access for data sets of tensorflow-datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples.structure import Structure
from hvd_elastic_keras.data.sources.tfrecord import FilePart, TFRecordSource
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.settings import env


class TfdsSource:
    """The serialised examples of a prepared data set. `decode` turns an example into its features.

    Files in the formats array_record and tfrecord (the default of tensorflow-datasets) are read at
    random places. For tfrecord files, an index is made once (see `TFRecordSource`).

    Args:
      name: as for `tfds.builder`, such as "mnist" or "mnist:3.0.1".
      split: a split such as "train", "train[:90%]" or "train[90%:]".
      data_dir: where the data set has been prepared; empty means ~/tensorflow_datasets.
      skip_corrupt: see `TFRecordSource`.
      block_size: see `Source`; for storage on which random access is slow.

    Raises:
      DataError: the data set is unknown, is in another format, or is not prepared. In the last case
        the error names the command that prepares it.

    Example:

        def dataset(split, data_dir):
            source = TfdsSource("mnist", split, data_dir)

            def prepare(record):
                image, label = source.decode_supervised(record)
                return tf.image.convert_image_dtype(image, tf.float32), label

            return source, prepare
    """

    element_spec = tf.TensorSpec([], tf.string)

    def __init__(
        self,
        name: str,
        split: str,
        data_dir: str | Path = "",
        *,
        skip_corrupt: bool | None = None,
        block_size: int | None = None,
    ) -> None:
        self.block_size = block_size
        self._builder = builder = _prepared(name, str(data_dir))
        self._records = _records(builder, split, skip_corrupt)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> bytes:
        record: bytes = self._records[index]
        return record

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        return list(self._records.__getitems__(indices))

    def decode(self, record: tf.Tensor) -> Structure:
        """Returns the features of one example. Call it at the beginning of a `preprocess`."""
        return self._builder.info.features.deserialize_example(record)

    def decode_supervised(self, record: tf.Tensor) -> Structure:
        """Returns the features that `as_supervised=True` selects, usually `(x, y)`."""
        keys = self._builder.info.supervised_keys
        if keys is None:
            raise DataError(
                f"{self._builder.info.name} does not say which of its features are (x, y). "
                "Use decode(record), which gives all of them."
            )
        features = self.decode(record)
        return tf.nest.map_structure(features.__getitem__, keys)


def _prepared(name: str, data_dir: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir or None)
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        raise DataError(
            f"tensorflow-datasets has no data set {name}"
            f"{f', nor is it in {data_dir}' if data_dir else ''}: "
            f"{str(error).strip().splitlines()[0]} If it is one of your own, import its module "
            "first, or give the data_dir in which it is prepared."
        ) from error
    if builder.is_prepared():
        return builder
    raise DataError(
        f"The data set {name} is not prepared in {builder.data_dir}. Prepare it once with\n"
        f"    {_command(builder, name, data_dir)}\n"
        f"{'and give the same --data_dir here' if data_dir else 'and start again'}. For most data "
        "sets that needs a connection; for some (imagenet2012) also archives that you put into "
        "downloads/manual."
    )


def _command(builder: Any, name: str, data_dir: str) -> str:
    """Returns the command that prepares a data set.

    The `tfds` command line does the same, but needs apache_beam (release 4.9.10).
    """
    module = type(builder).__module__
    own = "" if module.startswith("tensorflow_datasets.") else f"{module}, "
    where = f", data_dir={data_dir!r}" if data_dir else ""
    return (
        f'python -c "import {own}tensorflow_datasets as tfds; '
        f'tfds.builder({name!r}{where}).download_and_prepare()"'
    )


def _records(builder: Any, split: str, skip_corrupt: bool | None) -> Any:
    """Returns a source of serialised examples."""
    import tensorflow_datasets as tfds

    formats = tfds.core.FileFormat
    kind = builder.info.file_format
    try:
        instructions = builder.info.splits[split].file_instructions
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{builder.info.name} has no split {split!r}, expected one of "
            f"{', '.join(builder.info.splits)}, or a part such as 'train[:90%]'."
        ) from error
    if kind == formats.TFRECORD:
        parts = [FilePart(Path(i.filename), i.skip, i.take) for i in instructions]
        return TFRecordSource(parts, skip_corrupt=skip_corrupt)
    if kind == formats.ARRAY_RECORD:
        if skip_corrupt:
            raise DataError(
                f"skip_corrupt=True was given for {builder.info.name}, which is prepared as "
                "array_record. Only the records of tfrecord files are checked one by one: leave "
                "it out, or prepare the data set as tfrecord."
            )
        if skip_corrupt is None and env.run_options().skip_corrupt:
            notices.tell(
                f"warning: {builder.info.name} is prepared as array_record, where --skip_corrupt "
                "has no effect"
            )
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        return builder.as_data_source(split, deserialize_method=raw)
    raise DataError(
        f"{builder.info.name} is prepared as {kind.value if kind else 'files of unknown format'}, "
        "expected tfrecord or array_record. Prepare it again with "
        f"tfds.builder({builder.info.name!r}, file_format='array_record')."
    )
