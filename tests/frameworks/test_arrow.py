"""Tables of the real pyarrow as rows."""

import jax.numpy as jnp
import numpy as np
import pytest

import lariax as lx

pytestmark = pytest.mark.long

COLUMNS = {"age": [31, 44, 50], "income": [1.5, 2.0, 3.0], "member": [True, False, True], "sex": ["m", "f", "m"]}


def table():
    import pyarrow as pa

    return pa.table({**COLUMNS, "city": pa.array(["b", "a", "b"]).dictionary_encode()})


SHAPES = {
    "a table": table,
    "of two chunks": lambda: __import__("pyarrow").concat_tables([table(), table()]),
    "a batch": lambda: table().to_batches()[0],
    "columns in a dictionary": lambda: {name: table()[name] for name in table().column_names},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows(shape):
    with pytest.warns(lx.LariaxWarning, match="'sex': f = 0, m = 1"):
        rows = lx.Dataset(SHAPES[shape]())
    row = rows.fetch(jnp.int32(1))
    assert {name: float(value) for name, value in row.items()} == {
        "age": 44.0,
        "income": 2.0,
        "member": 0.0,
        "sex": 0.0,
        "city": 0.0,
    }


def test_missing_numbers_are_nan():
    import pyarrow as pa

    with pytest.raises(ValueError, match="nan"):
        lx.Dataset(pa.table({"age": [1.0, None]}))
    np.testing.assert_array_equal(lx.Dataset(pa.table({"age": [1, 2]})).fetch(jnp.int32(1))["age"], 2)
