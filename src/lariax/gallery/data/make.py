"""How the tables beside this file were made from their CSV files: `python make.py adult.csv.gz adult.npz`.

Every column is stored as the smallest integers that hold it. A column of words becomes codes into a sorted list of its
distinct words, `NAME.words`; a missing word is `?`. Nothing else is changed, no row is left out. `--without` names
columns to leave out.
"""

import argparse
from typing import Any

import numpy as np

from lariax.gallery._tables import read_csv


def smallest(values: np.ndarray) -> np.ndarray:
    """The same integers in as few bytes as they need."""
    whole = values.astype(np.int64)
    if not np.array_equal(whole, values):
        raise ValueError("a column of numbers has fractions, and only integers are stored")
    kinds = (np.uint8, np.int8, np.uint16, np.int16, np.int32)
    return whole.astype(next(k for k in kinds if np.iinfo(k).min <= whole.min() and whole.max() <= np.iinfo(k).max))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--without", nargs="*", default=[])
    args = parser.parse_args()
    stored: dict[str, Any] = {}
    for name, column in read_csv(args.source).items():
        if name in args.without:
            continue
        if column.dtype.kind == "U":
            words, codes = np.unique(column, return_inverse=True)
            stored[name], stored[f"{name}.words"] = smallest(codes), words
        else:
            stored[name] = smallest(column)
    np.savez_compressed(args.target, **stored)


if __name__ == "__main__":
    main()
