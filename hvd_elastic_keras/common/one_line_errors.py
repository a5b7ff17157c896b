"""Lets a script that ends with an `ElasticError` print the error's text, without a traceback."""

from __future__ import annotations

import sys
import types

from hvd_elastic_keras.common import patches
from hvd_elastic_keras.common.errors import ElasticError

WHY = "an uncaught ElasticError has no traceback"


def install() -> None:
    """Changes how an uncaught `ElasticError` looks. Other errors look as before."""
    if patches.is_installed(WHY):
        return
    before = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        if isinstance(error, ElasticError):
            print(f"error: {error}", file=sys.stderr)
        else:
            before(kind, error, traceback)

    patches.install(sys, "excepthook", show, WHY)
