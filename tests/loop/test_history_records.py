"""The history for loggers of experiments."""

import numpy as np

from lariax.loop import History


def test_one_dictionary_of_floats_a_record():
    history = History(
        {
            "iteration": np.array([10, 20]),
            "constraints": {"gap": np.array([0.5, 0.25])},
            "multipliers": {"flow": np.array([[1.0, 2.0], [3.0, np.nan]])},
        }
    )
    first, last = history.to_records()
    assert first == {"iteration": 10.0, "constraints.gap": 0.5, "multipliers.flow[0]": 1.0, "multipliers.flow[1]": 2.0}
    assert all(type(value) is float for value in (*first.values(), *last.values()))
    assert list(history.to_pandas().columns) == list(first)
    assert History({}).to_records() == []
