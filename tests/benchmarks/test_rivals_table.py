"""The comparison with rivals: everybody takes part with the same budget, and reaching a target means what it says."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.rivals.methods import DEFAULT, ENTRIES, Scales
from benchmarks.rivals.problems import problems
from benchmarks.rivals.report import table
from benchmarks.rivals.run import Track, jobs

from lariax import rivals

SCALES = Scales(curvature=2.0, slope=0.5)


def test_every_rival_takes_part_with_twelve_settings():
    made = {type(entry.make(SCALES, *entry.grid[0])).__name__ for entry in ENTRIES.values()}
    assert set(rivals.__all__) <= made
    assert {len(set(entry.grid)) for entry in ENTRIES.values()} == {12}
    pairs = jobs(None, None)
    assert {name for _, name in pairs} == {DEFAULT, *ENTRIES}
    assert len({problem for problem, _ in pairs}) == 6


def test_steps_are_fractions_of_what_is_stable():
    method = ENTRIES["PenaltySGD"].make(SCALES, 0.3, 10.0)
    np.testing.assert_allclose(method.step_size, 0.3 / (2.0 + method.penalty * 0.5**2))
    np.testing.assert_allclose(method.penalty, 10 * 2.0 / 0.5**2)


def test_missing_data_are_named(tmp_path):
    known, missing = problems(None)
    assert "--data" in missing[0]
    assert set(problems(tmp_path)[0]) == set(known)
    assert str(Path(tmp_path) / "a9a.npz") in problems(tmp_path)[1][0]


@pytest.fixture
def track():
    """Three seeds, three places: the first is there at once, the second in the end, the third never."""
    errors = np.array(
        [
            [[0.09, 0.01], [0.5, 0.0], [0.09, 0.09]],
            [[0.09, 0.2], [0.2, 0.09], [0.1, 0.1]],
            [[0.09, 0.11], [np.inf, np.inf], [np.inf, np.inf]],
        ]
    )
    return Track("p", "m", "s", np.array([[10, 100, 2000]] * 3), errors, pace=0.01)


def test_a_target_is_reached_when_both_errors_are_within_it(track):
    np.testing.assert_array_equal(track.reached(0.1), [10, 2000, np.inf])
    np.testing.assert_array_equal(track.reached(0.01), [np.inf] * 3)


def test_the_table_says_how_many_got_there(track):
    row = table([track])[-1]
    assert row.startswith("| m | 2k [10 .. never], 20 s |  |  |")
