"""The forest plot of the report: bars that can be seen, on an axis that is said."""

import numpy as np

from lariax.inference import TableLine, shown
from lariax.report._forest import _axes, _forest


def entry(estimate, error, law="normal"):
    return TableLine("x", "x", estimate, error, estimate - 2 * error, estimate + 2 * error, law)


def test_one_axis_where_bars_can_be_seen_on_it():
    axes = _axes([entry(0.0, 1.0), entry(5.0, 0.5), entry(3.0, 0.0, "fixed")])
    assert axes.ends == [(-2.0, 6.0)] * 3
    assert axes.words == "-2 to 6"


def test_around_each_estimate_where_they_could_not():
    axes = _axes([entry(0.0, 0.01), entry(500.0, 0.02)])
    np.testing.assert_allclose(axes.ends, [(-0.04, 0.04), (499.96, 500.04)])
    assert "\u00b1 0.04" in axes.words


def test_what_is_not_known_has_no_bar():
    nan = float("nan")
    unknown = TableLine("multipliers", "c", nan, nan, nan, nan, "undetermined")
    page = str(_forest("Multipliers", [unknown, entry(1.0, 0.1)]))
    assert page.count("<svg") == 1
    assert "undetermined" in page
    assert str(_forest("Multipliers", [unknown])).count("<svg") == 0


def test_digits_follow_the_interval():
    assert shown(entry(1234.5678, 0.1)) == ("1234.57", "0.1", "1234.37", "1234.77")
    assert shown(entry(2.0, 0.0, "fixed")) == ("2", "0", "2", "2")
    assert shown(entry(1e-12, 1e-13)).estimate == "1e-12"
    assert shown(entry(3.2e9, 1e7)).estimate == "3.2e+09"
