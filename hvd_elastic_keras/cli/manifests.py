"""Copies the files for Kubernetes, Slurm and Grafana to where a user can edit them."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from hvd_elastic_keras.common.errors import ConfigurationError

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
"""The files, in a directory for each system."""


def write_manifests(directory: Path) -> int:
    """Copies the files into a directory, and prints their names. Other files stay.

    Raises:
      ConfigurationError: files are there that a user has changed, or the directory cannot be
        written. Nothing is copied then.
    """
    sources = sorted(path for path in DEPLOY.glob("*/*") if path.is_file())
    targets = [directory / source.relative_to(DEPLOY) for source in sources]
    changed = [
        str(target)
        for source, target in zip(sources, targets, strict=True)
        if target.exists() and not (target.is_file() and filecmp.cmp(source, target, shallow=False))
    ]
    if changed:
        raise ConfigurationError(
            f"{', '.join(changed)} would be overwritten, and differ from the files of this "
            "package. Give another directory: ctl manifests DIRECTORY."
        )
    try:
        for source, target in zip(sources, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be written: {error.strerror}.") from error
    print("\n".join(map(str, targets)))
    return 0
