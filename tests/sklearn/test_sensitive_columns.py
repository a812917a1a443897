"""Columns that tell groups apart, and columns that keep their names on the way to a model."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import lariax.sklearn as ls


def people(rows=1000):
    random = np.random.default_rng(0)
    age, area = random.integers(18, 80, rows), random.choice(["north", "south"], rows)
    y = (age + 15 * random.standard_normal(rows) > 50).astype(int)
    return {"age": age, "area": area}, y


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_encoded_columns_keep_their_names(library):
    """A group can be named by a column that an encoder made, and a coefficient too."""
    columns, y = people()
    frame = (pd if library == "pandas" else pl).DataFrame(columns)
    words = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["area"]), (StandardScaler(), ["age"]), verbose_feature_names_out=False
    )
    limits = {"recall": ls.each(ls.at_least(0.6), by="area_north")}
    for model in (
        ls.ConstrainedClassifier(limits, random_state=0),
        ls.ConstrainedRegressor({"monotone": ls.decreasing(("area_north",))}),
    ):
        pipe = make_pipeline(words, model).set_output(transform=library).fit(frame, y)
        assert list(model.feature_names_in_) == ["area_north", "area_south", "age"]
        assert len(pipe.predict(frame)) == len(y)
        if "recall" in model.constraints:
            assert list(model.certificate_.by_group.index) == ["area_north=0.0", "area_north=1.0"]


COLUMNS, Y = people(300)
X = COLUMNS["age"][:, None].astype(float)
AREA = pd.Series(COLUMNS["area"], name="area")
GAP = {"recall": ls.gap(0.5, by="area")}


@pytest.mark.parametrize(
    ("limits", "area", "words"),
    [
        ({"recall": ls.at_least(0.5, given={"area": "nort"})}, AREA, "no row has it. Did you mean 'north'"),
        ({"recall": ls.at_least(0.5, given={"area": 1})}, AREA, "There are north, south"),
        ({"recall": ls.gap(0.5, by=())}, AREA, "names no column"),
        (GAP, AREA.astype("string").where(AREA != "north"), "missing values"),
        (GAP, pl.Series("area", [None, *AREA[1:]]), "missing values"),
        (GAP, {"area": AREA[:10].to_numpy()}, "does not cut a dict"),
        ({"precision": ls.each(ls.at_least(0.5), by="area")}, {"area": Y}, "with y = 1: precision"),
    ],
    ids=["value", "type", "none", "NA", "null", "dict", "precision"],
)
def test_wrong_columns(limits, area, words):
    with pytest.raises(ValueError, match=words):
        ls.ConstrainedClassifier(limits).fit(X, Y, sensitive_features=area)


def test_classes_that_are_missing():
    with pytest.raises(ValueError, match="y has missing values"):
        ls.ConstrainedClassifier().fit(X, np.where(Y == 1, "yes", None))
