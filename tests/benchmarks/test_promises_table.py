"""Which rivals stand beside ours in the table of promises."""

from benchmarks.promises.__main__ import OURS, compared


def fits(accuracy, kept, seeds=20):
    """The first `kept` of 20 fits keep the bound."""
    noise = 1e-3
    return {
        seed: {"promised": True, "kept": seed < kept, "accuracy": accuracy + noise * (seed % 2)}
        for seed in range(seeds)
    }


def test_rivals_are_compared_with_at_the_frequency_of_ours():
    """The more a rival keeps back, the safer it is, and the less accurate. Ours kept the bound in all of the fits that
    rivals have too."""
    found = {
        OURS: fits(0.80, 20) | {seed: {"promised": True, "kept": False, "accuracy": 0.5} for seed in range(20, 25)},
        "threshold, own margin": fits(0.83, 18),
        "threshold, margin 0.02": fits(0.81, 19),
        "threshold, margin 0.04": fits(0.78, 20),
    }
    ((task, promised, kept, own, hindsight, often),) = compared("a task", found)
    assert (task, promised, kept, own) == ("a task", "25 of 25", "80.0%", "none kept it")
    assert hindsight.startswith("-0.0100")
    assert hindsight.endswith("(threshold, margin 0.02, 95.0%)")
    assert often.startswith("+0.0200")
    assert often.endswith("(threshold, margin 0.04, 100.0%)")


def test_a_table_of_ours_alone():
    (row,) = compared("a task", {OURS: fits(0.8, 20)})
    assert row[3:] == ("none kept it",) * 3
