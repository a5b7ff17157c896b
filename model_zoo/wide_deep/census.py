"""Tables of people, as in the census of 1994: read from UCI's files, or made up.

Source of the columns and files: B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository,
1996, doi:10.24432/C5XW20.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd_elastic_keras.common.errors import DataError

FILES = {"train": "adult.data", "validation": "adult.test"}
_COLUMNS = """age workclass fnlwgt education education_num marital_status occupation relationship
    race sex capital_gain capital_loss hours_per_week native_country income"""
FILE_COLUMNS = _COLUMNS.split()
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_WORDS = {
    "workclass": """Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov
        Without-pay Never-worked""",
    "education": """Preschool 1st-4th 5th-6th 7th-8th 9th 10th 11th 12th HS-grad Some-college
        Assoc-voc Assoc-acdm Bachelors Masters Prof-school Doctorate""",
    "marital_status": """Married-civ-spouse Divorced Never-married Separated Widowed
        Married-spouse-absent Married-AF-spouse""",
    "occupation": """Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty
        Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving
        Priv-house-serv Protective-serv Armed-Forces""",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
}
VOCABULARIES = {name: words.split() for name, words in _WORDS.items()}
"""The texts of each column. Texts of education are in the order of education_num, from 1."""
Table = dict[str, npt.NDArray[np.generic]]
"""Values by column, of shape [n, 1]: numbers as float32, texts as strings."""
Labels = npt.NDArray[np.float32]
"""Shape [n, 1]: 1 for an income of more than 50,000 dollars a year."""


def read(split: str, data_dir: str) -> tuple[Table, Labels]:
    """Returns the 32,561 people of `adult.data`, or the 16,281 of `adult.test` for "validation".

    Raises:
      DataError: the file is not in `data_dir`.
    """
    path = Path(data_dir) / FILES[split]
    if not path.is_file():
        raise DataError(
            f"There is no {path}. Get {' and '.join(FILES.values())} from "
            "https://archive.ics.uci.edu/dataset/2/adult and give their directory as --data_dir, "
            "or use --config=made_up, which needs no download."
        )
    with path.open(newline="") as file:
        rows = csv.reader(file, skipinitialspace=True)
        # adult.test begins with a line of another kind, and both files end with an empty line.
        people = [row for row in rows if len(row) == len(FILE_COLUMNS)]
    columns = dict(zip(FILE_COLUMNS, zip(*people, strict=True), strict=True))
    table = {name: np.array(columns[name], np.float32)[:, np.newaxis] for name in NUMBERS}
    texts = {name: np.array(columns[name])[:, np.newaxis] for name in VOCABULARIES}
    rich = [income.startswith(">50K") for income in columns["income"]]
    return {**table, **texts}, np.array(rich, np.float32)[:, np.newaxis]


def make_up(split: str, count: int) -> tuple[Table, Labels]:
    """Returns made-up people. A fixed rule gives the chance of a high income, and a die decides."""
    table, chance = _people_and_chances(split, count)
    dice = np.random.default_rng([1, split == "train"]).random((count, 1))
    return table, (dice < chance).astype(np.float32)


def best_accuracy(split: str, count: int) -> float:
    """Returns the best possible accuracy, which requires the rule of `make_up`."""
    _, chance = _people_and_chances(split, count)
    return float(np.maximum(chance, 1 - chance).mean())


def _people_and_chances(split: str, count: int) -> tuple[Table, npt.NDArray[np.float64]]:
    random = np.random.default_rng([0, split == "train"])
    numbers = {
        "age": random.integers(17, 80, (count, 1)),
        "education_num": np.clip(np.round(random.normal(10, 2.5, (count, 1))), 1, 16),
        "capital_gain": np.where(random.random((count, 1)) < 0.08, 1, 0)
        * np.round(random.lognormal(8, 1, (count, 1))),
        "capital_loss": np.where(random.random((count, 1)) < 0.05, 1, 0)
        * np.round(random.lognormal(7, 0.5, (count, 1))),
        "hours_per_week": np.clip(np.round(random.normal(40, 12, (count, 1))), 1, 99),
    }
    places = {k: random.integers(0, len(v), (count, 1)) for k, v in VOCABULARIES.items()}
    places["education"] = numbers["education_num"].astype(np.int64) - 1
    texts = {name: np.array(VOCABULARIES[name])[place] for name, place in places.items()}
    rule = np.random.default_rng(2)  # the same for both splits
    chance = _chance(numbers, places, rule)
    return {**{k: v.astype(np.float32) for k, v in numbers.items()}, **texts}, chance


def _chance(
    numbers: dict[str, npt.NDArray[Any]],
    places: dict[str, npt.NDArray[np.int64]],
    rule: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Returns the chance of a high income.

    It is smooth in the numbers, and jumps between pairs of education and occupation.
    """
    pairs = rule.normal(0, 1.5, (len(VOCABULARIES["education"]), len(VOCABULARIES["occupation"])))
    married = places["marital_status"] == 0
    logit = (
        -0.5
        + 0.35 * (numbers["education_num"] - 10)
        - 0.003 * (numbers["age"] - 50) ** 2
        + 0.05 * (numbers["hours_per_week"] - 40)
        + 0.25 * np.log1p(numbers["capital_gain"])
        + 2.0 * married
        + pairs[places["education"], places["occupation"]]
    )
    chance: npt.NDArray[np.float64] = 1 / (1 + np.exp(-1.5 * logit))
    return chance
