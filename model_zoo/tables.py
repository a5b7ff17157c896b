"""Small tables of real measurements in this folder. The last column is the label.

Sources: S. Aeberhard and M. Forina, "Wine", 1992, doi:10.24432/C5PC7J, and R. A. Fisher, "Iris",
1936, doi:10.24432/C56C76, both from the UCI Machine Learning Repository, CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).with_name("data")
Arrays = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]


def load(name: str) -> Arrays:
    """Returns the measurements, of shape [n, columns], and the labels, of shape [n], from 0.

    Args:
      name: "wine" (178 wines, 13 measurements, 3 growers) or "iris" (150 flowers, 4 measurements, 3
        species).
    """
    table = np.loadtxt(DATA / f"{name}.csv", delimiter=",", skiprows=1)
    return table[:, :-1], table[:, -1].astype(np.int64)
