"""How long one fit takes on Adult's 32,561 rows, beside fairlearn."""

import time
import warnings
from collections.abc import Callable
from typing import Any

from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import lariax.sklearn as ls
from benchmarks import _results
from lariax.gallery.fairness import people

ROWS = 32_561
GAP = 0.1


def timing() -> list[str]:
    """The lines of a table: seconds of the clock and of the processor, of a first fit and of the next."""
    from fairlearn.postprocessing import ThresholdOptimizer
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient

    ready = people("adult")
    x, y, group = ready.inputs[:ROWS, :-1], ready.labels[:ROWS], ready.groups[:ROWS]
    x = StandardScaler().fit_transform(x)  # ours scales by itself; logistic regression is slow without
    limits = {"recall": ls.at_least(0.6), "selection_rate": ls.gap(GAP, by="sex")}
    base = LogisticRegression(max_iter=500)

    def ours() -> Any:
        return ls.ConstrainedClassifier(limits, random_state=0).fit(x, y, sensitive_features={"sex": group})

    def reduced() -> Any:
        model = ExponentiatedGradient(base, DemographicParity(difference_bound=GAP / 2))
        return model.fit(x, y, sensitive_features=group)

    def tuned() -> Any:
        model = ThresholdOptimizer(estimator=base, predict_method="predict_proba", tol=GAP)
        return model.fit(x, y, sensitive_features=group)

    ways = {
        "ConstrainedClassifier, recall and gap": ours,
        "ExponentiatedGradient, gap alone": reduced,
        "ThresholdOptimizer, gap alone, sees the group": tuned,
    }
    rows = [(name, *_seconds(fit), *_seconds(fit)) for name, fit in ways.items()]
    return list(_results.table(("", "first fit, s", "CPU s", "next fit, s", "CPU s"), rows))


def _seconds(fit: Callable[[], Any]) -> tuple[str, str]:
    clock, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit()
    return f"{time.perf_counter() - clock:.2f}", f"{time.process_time() - processor:.2f}"
