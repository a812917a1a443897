"""What training a regressor gives."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Fitted:
    """Predictions X @ coef + intercept, or those of a network, + intercept."""

    coef: Any
    intercept: float
    multipliers: np.ndarray
    loss: float
    iterations: int
    converged: bool
    network: Any = None

    def predict(self, inputs: Any) -> np.ndarray:
        own = inputs @ self.coef if self.network is None else self.network.scores(inputs)[:, 0]
        return np.asarray(own + self.intercept)
