"""Turns errors of the first steps, which a worker takes alone, into a one-line message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from hvd_elastic_keras.api.first_examples import try_first_examples
from hvd_elastic_keras.api.micro_batch_errors import explained
from hvd_elastic_keras.common.errors import ElasticError
from hvd_elastic_keras.data.input.interfaces import Input

TRAINING_DATA, VALIDATION_DATA = "the training data", "the validation data"


@contextlib.contextmanager
def explained_first_steps(
    model: keras.Model, train: Input, evaluate: Input | None
) -> Iterator[None]:
    """Checks whether the data or the sizes of batches have caused an error of the first steps.

    Raises:
      ConfigurationError: the data or the sizes have caused the error.
    """
    try:
        yield
    except ElasticError:
        raise
    except Exception as error:  # the user's layers, losses and steps may raise anything
        for source in (train, evaluate):
            if source is not None:
                found = explained(error, source.micro_batch_size, source.global_batch_size)
                if found is not None:
                    raise found from error
        for source, name in ((train, TRAINING_DATA), (evaluate, VALIDATION_DATA)):
            if source is not None:
                try_first_examples(model, source, name)
        raise
