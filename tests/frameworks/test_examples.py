"""The examples of size, scaled down: that they run, and that bounds press in the right direction."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


def test_a_policy_with_a_budget_spends_less():
    import policy

    free, bounded = (policy.train(iterations=60, episodes=64, budget=budget) for budget in (1e6, 1.0))
    assert free[2] == 0
    assert bounded[2] > 0
    assert bounded[1] < 1.2 < free[1]


def test_a_bound_on_forgetting():
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import forgetting

    found, bound, multipliers = forgetting.run(width=16, layers=1, steps=24, files=6)
    assert set(found) == {"before", "free", "bounded"}
    assert multipliers.steps == multipliers.observe()["calls"] == 24
    assert 0 < bound < 8
