"""scikit-learn front end: classifiers and regressors that keep a bound on new data, and say with which confidence.

import lariax.sklearn as ls
model = ls.ConstrainedClassifier({"recall": ls.at_least(0.9), "selection_rate": ls.gap(0.02, by="sex")})
model.fit(X, y, sensitive_features=people[["sex"]])
print(model.status_, model.certificate_)
"""

from lariax.utils import LariaxWarning, needed_by

with needed_by("lariax.sklearn"):
    from lariax.sklearn._classifier import ConstrainedClassifier, NeymanPearsonClassifier, PromiseError
    from lariax.sklearn._constraints import at_least, at_most, between, decreasing, each, gap, increasing, ratio
    from lariax.sklearn._regressor import ConstrainedRegressor

__all__ = [
    "ConstrainedClassifier",
    "ConstrainedRegressor",
    "LariaxWarning",
    "NeymanPearsonClassifier",
    "PromiseError",
    "at_least",
    "at_most",
    "between",
    "decreasing",
    "each",
    "gap",
    "increasing",
    "ratio",
]
