"""Packaging of hvd_elastic_keras."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def read_version() -> str:
    """Return `__version__` of the package without importing it."""
    text = (ROOT / "hvd_elastic_keras" / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__(?:: \w+)? = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise RuntimeError('hvd_elastic_keras/_version.py has no line __version__ = "..."')
    return match.group(1)


def read_readme() -> str:
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="hvd-elastic-keras",
    version=read_version(),
    description="Elastic data-parallel training for Keras 3 on TensorFlow with Horovod",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=find_packages(
        include=["hvd_elastic_keras", "hvd_elastic_keras.*", "model_zoo", "model_zoo.*"]
    ),
    package_data={
        "hvd_elastic_keras": ["py.typed", "observe/web/*", "deploy/*/*"],
        "model_zoo": ["README.md", "*/README.md", "*/configs/*", "data/*"],
    },
    install_requires=[
        "tensorflow>=2.18,<2.22",
        # Private names of the Keras trainer are used: raise the bound after testing.
        "keras>=3.8,<3.16",
        "horovod==0.28.1",
        "tensorflow-datasets",
        # tensorflow-datasets 4.9.10 needs it to prepare data, but does not say so.
        "importlib_resources",
        "absl-py",
        "numpy",
        # The master's HTTP endpoint: long polls for many workers on one asynchronous loop.
        "aiohttp",
        # The workers' and ctl's side of it: blocking calls in threads.
        "requests",
        # Messages as typed, frozen values, checked on reading.
        "msgspec",
        # What the master does not answer at once is asked again.
        "tenacity",
        # A job directory belongs to one launcher, also if several start at the same moment.
        "filelock>=4.2",
        # Reference configurations whose single values can be set on the command line.
        "ml_collections",
        # Sets of example ids in the ledgers of --audit, a few bytes per example.
        "pyroaring",
        # The network interfaces of a host.
        "psutil",
        # Checksums of TFRecord files.
        "google-crc32c",
        # The live display of the launcher (Keras needs it, too).
        "rich>=13",
        # Progress of long reads.
        "tqdm",
        # The master's /metrics.
        "prometheus_client",
        # --tensorboard: the master writes TensorBoard's files without TensorFlow.
        "tensorboardX",
        # Seeds, and makes `fit` elastic, when a script has imported NumPy, TensorFlow or Keras
        # (TensorFlow needs it, too).
        "wrapt",
        # Files of flags (`run --config=FILE.toml`); later Pythons have it as tomllib.
        'tomli; python_version < "3.11"',
        # Functions of a notebook for its workers (`run_function`); Horovod needs it anyway.
        "cloudpickle",
        # Templates of pods.
        "PyYAML",
    ],
    extras_require={
        # Finds a cluster and signs in there, for --launcher=kubernetes.
        "kubernetes": ["kubernetes"],
        # scripts/build_docs: pages in Markdown (MyST), the API from docstrings, a plain theme.
        "docs": ["sphinx>=8.1", "myst-parser>=4", "furo"],
        "dev": [
            "pytest",
            "pytest-xdist",
            "pytest-timeout",
            "hypothesis",
            "ruff",
            "mypy",
            "types-requests",
            # For keras.callbacks.TensorBoard, and to read what it wrote.
            "tensorboard",
            # The dashboard in a real browser.
            "selenium",
            # What a terminal shows of that display, in tests.
            "pyte",
            # The pictures of scripts/bench convergence.
            "matplotlib",
            # Notebooks in a real kernel.
            "nbclient",
            "ipykernel",
            # docs/examples/tuning.py.
            "optuna",
        ],
    },
    entry_points={
        "console_scripts": [
            "hvd-elastic-run = hvd_elastic_keras.run:main",
            "hvd-elastic-ctl = hvd_elastic_keras.ctl:main",
        ],
    },
    zip_safe=False,
)
