"""Checks of options, and files that are whole or not there."""

import numpy as np
import pytest

from lariax.utils import check_among, check_confidence, check_count, did_you_mean, is_number, write_atomically


def test_close_names_are_offered():
    assert did_you_mean("secnds", ["seconds", "seed"]) == "Did you mean 'seconds'? "
    assert did_you_mean("fair", ["fairness", "fairer"], most=2, cutoff=0.5) == "Did you mean 'fairer' or 'fairness'? "
    assert did_you_mean("x", ["seconds"]) == ""


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None, 10])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ValueError, match=r"n must be a positive integer below 10, found"):
        check_count("n", value, below=10)


def test_counts_of_numpy_and_from_zero_on_are_taken():
    check_count("n", np.int32(3))
    check_count("n", 0, least=0)
    with pytest.raises(ValueError, match="a whole number of at least 0, found -1"):
        check_count("n", -1, least=0)


@pytest.mark.parametrize("value", [0.49, 1.0, "0.9", True, float("nan"), None, np.ones(2)])
def test_what_is_no_confidence_is_refused(value):
    check_confidence(np.array(0.9))
    with pytest.raises(ValueError, match=r"confidence must be at least 0.5 and below 1"):
        check_confidence(value)


def test_words():
    check_among("output", "last", ("last", "best"))
    for wrong in ("lats", 3, ["last"]):
        with pytest.raises(ValueError, match="output must be one of 'last', 'best', found"):
            check_among("output", wrong, ("last", "best"))
    assert is_number(np.float32(1))
    assert not is_number(True)


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"first"))

    def fail(file):
        file.write(b"half of the sec")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_atomically(path, fail)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"first"
