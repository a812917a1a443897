"""Rows in the shapes that people bring."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import lariax as lx

COLUMNS = {"age": np.array([31, 44, 50]), "income": np.array([1.5, 2.0, 3.0]), "sex": ["m", "f", "m"]}


def like(package, **attributes):
    """An object of a class of another library, as far as Lariax looks at it."""
    return type("Like", (), {"__module__": f"{package}.frame", **attributes})()


def array(values):
    return np.array(values, object if isinstance(values, list) else None)


def series(package, values):
    return like(package, to_numpy=lambda self: array(values))


def polars_like():
    columns = {name: series("polars", values) for name, values in COLUMNS.items()}
    return like("polars", columns=list(columns), shape=(3, 3), __getitem__=lambda self, name: columns[name])


def arrow_like():
    columns = [like("pyarrow", __array__=lambda self, *args, x=x, **kwargs: array(x)) for x in COLUMNS.values()]
    return like("pyarrow.lib", column_names=list(COLUMNS), columns=columns, shape=(3, 3))


SHAPES = {
    "pandas, indexed by strings": lambda: pd.DataFrame(COLUMNS, index=["a", "b", "c"]),
    "pandas, columns in a dictionary": lambda: {name: pd.Series(values) for name, values in COLUMNS.items()},
    "pandas, categories": lambda: pd.DataFrame(COLUMNS).astype({"sex": "category"}),
    "pandas, types of its own": lambda: pd.DataFrame(COLUMNS).convert_dtypes(),
    "polars": polars_like,
    "Arrow": arrow_like,
    "a dictionary of lists": lambda: {name: list(values) for name, values in COLUMNS.items()},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_a_dictionary_of_numbers_and_words_are_codes(shape):
    with pytest.warns(lx.LariaxWarning, match="takes words as codes: 'sex': f = 0, m = 1. To choose codes") as caught:
        rows = lx.Dataset(SHAPES[shape]())
    assert caught[0].filename == __file__
    row = rows.fetch(jnp.int32(1))
    assert {name: (float(value), value.shape) for name, value in row.items()} == {
        "age": (44.0, ()),
        "income": (2.0, ()),
        "sex": (0.0, ()),
    }
    assert len(rows) == 3


def test_declared_categories_keep_their_order():
    frame = pd.DataFrame({"size": pd.Categorical(["large", "small"], categories=["small", "medium", "large"])})
    with pytest.warns(lx.LariaxWarning, match="small = 0, medium = 1, large = 2"):
        rows = lx.Dataset(frame)
    np.testing.assert_array_equal(rows.arrays["size"], [2, 0])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}), "column 'when' holds times. Give it in days"),
        (pd.DataFrame({"what": [{}, "a"]}), "column 'what' holds dict and str"),
        (pd.DataFrame({"sex": ["f", None]}), "column 'sex' of Dataset has no value at row 1. Drop or impute"),
        (pd.DataFrame({"age": pd.array([1, None], dtype="Int64")}), r"holds nan in \['age'\] at row 1"),
        (like("polars", columns=["age"], collect=None), r"found a Like of polars. Write .collect\(\)"),
    ],
)
def test_what_is_no_number_is_said(frame, words):
    with pytest.raises((TypeError, ValueError), match=words):
        lx.Dataset(frame)


@pytest.mark.parametrize("density", [0.02, 0.9])
def test_sparse_rows(density):
    matrix = scipy.sparse.random(60, 40, density, format="csc", random_state=0)
    rows = lx.Dataset({"x": matrix, "y": np.arange(60.0)})
    assert len(rows) == 60
    np.testing.assert_array_equal(rows.fetch(jnp.arange(60))["x"], matrix.toarray())
    numbers = sum(leaf.size for leaf in jax.tree.leaves(rows.arrays["x"]))
    assert numbers <= (2 * 60 * np.diff(matrix.tocsr().indptr).max() if density < 0.5 else 60 * 40)
    groups = lx.Stratified(matrix, by=np.arange(60) % 3)
    tickets = groups.draw(jax.random.key(0), jnp.arange(1), 5)
    np.testing.assert_array_equal(groups.fetch(tickets[0]), matrix.toarray()[np.asarray(tickets[0])])


def anonymous_megabytes():
    return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="another device has memory of its own")
def test_a_memory_mapped_array_is_not_copied(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((1_000_000, 8)))  # 64 MB
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    before = anonymous_megabytes()
    rows = lx.Dataset(mapped)
    assert rows.arrays.unsafe_buffer_pointer() == mapped.ctypes.data
    assert anonymous_megabytes() - before < 16
    np.testing.assert_array_equal(rows.fetch(jnp.arange(3)), np.ones((3, 8)))
