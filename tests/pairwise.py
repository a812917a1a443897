"""Few combinations of many choices."""

import itertools


def pairwise(*choices):
    """Few combinations that show every pair of choices: greedily, the one with most pairs not yet seen."""
    wanted = {
        ((i, a), (j, b))
        for i, j in itertools.combinations(range(len(choices)), 2)
        for a in choices[i]
        for b in choices[j]
    }
    everything = list(itertools.product(*choices))
    while wanted:
        best = max(everything, key=lambda row: len(wanted & set(itertools.combinations(enumerate(row), 2))))
        wanted -= set(itertools.combinations(enumerate(best), 2))
        yield best
