"""Files of data sets that tensorflow-datasets does not have, in their real format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from hvd_elastic_keras.common.errors import DataError
from model_zoo import python_texts
from model_zoo.deepfm import criteo
from model_zoo.unet import digit_scenes
from model_zoo.wide_deep import census

ADULT = """39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, \
Male, 2174, 0, 40, United-States, <=50K
52, ?, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, White, Male, 0, 0, 45, \
United-States, >50K

"""


def test_both_files_of_the_census_are_read(tmp_path: Path) -> None:
    (tmp_path / "adult.data").write_text(ADULT)
    in_test_file = ADULT.replace("50K\n", "50K.\n")
    (tmp_path / "adult.test").write_text(f"|1x3 Cross validator\n{in_test_file}")
    for split in ("train", "validation"):
        table, rich = census.read(split, str(tmp_path))
        assert rich.tolist() == [[0], [1]]
        assert table["age"].tolist() == [[39], [52]]
        assert table["workclass"].tolist() == [["State-gov"], ["?"]]
        assert set(table) == {*census.NUMBERS, *census.VOCABULARIES}


def test_made_up_people_have_the_columns_of_the_real_ones_and_follow_a_rule() -> None:
    table, rich = census.make_up("train", 500)
    assert set(table) == {*census.NUMBERS, *census.VOCABULARIES}
    assert {column.shape for column in (*table.values(), rich)} == {(500, 1)}
    for name, words in census.VOCABULARIES.items():
        assert set(table[name].ravel()) <= set(words)
    assert max(rich.mean(), 1 - rich.mean()) + 0.05 < census.best_accuracy("train", 500) < 1


def criteo_line(label: int, counts: list[str], texts: list[str]) -> str:
    counts += [""] * (criteo.NUM_COUNTS - len(counts))
    texts += [""] * (criteo.NUM_TEXTS - len(texts))
    return "\t".join([str(label), *counts, *texts])


def test_values_of_a_line_are_told_apart_by_field_and_counts_by_class() -> None:
    def ids(*line: list[str]) -> list[int]:
        return criteo.parse(criteo_line(1, *line), 2**40)[0].numpy().tolist()

    assert criteo.parse(criteo_line(1, [], []), 2**40)[1].numpy().tolist() == [1.0]
    nothing = ids([], [])
    assert len(set(nothing)) == criteo.NUM_FIELDS
    assert ids(["100"], []) == ids(["101"], []) != ids(["1000"], [])
    assert ids(["1"], []) != ids(["2"], []) != nothing != ids(["0"], [])
    assert ids(["-1"], []) != ids(["1"], [])
    same_text = ids([], ["68fd1e64", "68fd1e64"])
    assert same_text[criteo.NUM_COUNTS] != same_text[criteo.NUM_COUNTS + 1]


def test_every_tenth_line_of_the_click_log_is_held_out(tmp_path: Path) -> None:
    lines = [criteo_line(0, [str(n)], []) for n in range(25)]
    (tmp_path / criteo.FILE).write_text("\n".join(lines) + "\n")
    kept = {
        split: [line.decode() for line in criteo.read(split, str(tmp_path)).as_numpy_iterator()]
        for split in ("train", "validation")
    }
    assert kept["validation"] == [lines[0], lines[10], lines[20]]
    assert kept["train"] == [line for line in lines if line not in kept["validation"]]


def test_made_up_clicks_are_in_the_same_format_and_follow_a_rule() -> None:
    lines = criteo.MadeUpLines("train", 400)
    labels = [criteo.parse(lines[i], 100)[1].numpy()[0] for i in range(20)]
    assert labels == lines.clicks[:20].tolist()
    assert lines.chances[lines.clicks].mean() > lines.chances[~lines.clicks].mean() + 0.1


@pytest.mark.parametrize("read", [census.read, criteo.read])
def test_a_file_that_is_not_there_is_named_with_a_way_out(read, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=rf"There is no {tmp_path}/.*--config=made_up"):
        read("train", str(tmp_path))


def test_docstrings_of_validation_are_other_ones_than_those_of_training() -> None:
    train, train_parts = python_texts.docstrings("train")
    held_out, held_out_parts = python_texts.docstrings("validation")
    assert not set(train) & set(held_out)
    assert 0.1 < len(held_out) / len(train) < 0.4
    parts = set(range(len(python_texts.PARTS)))
    assert set(train_parts) == set(held_out_parts) == parts


def test_masks_of_scenes_are_where_the_digits_are() -> None:
    images, masks = digit_scenes.make("train", 5)
    assert images.shape == (5, 40, 40, 1)
    assert masks.shape == (5, 40, 40)
    assert images[masks > 0].mean() > 0.6
    assert images[masks == 0].mean() < 0.2
    corners = [np.unique(masks[0][rows, columns]) for rows, columns in QUARTERS]
    assert [len(classes) for classes in corners] == [2, 2, 2, 2]


QUARTERS = [(slice(r, r + 20), slice(c, c + 20)) for r in (0, 20) for c in (0, 20)]
