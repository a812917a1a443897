"""Error bars from the path of a run: no derivatives, no samples of their own."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from lariax.inference._errors import InferenceError
from lariax.inference._inference import Estimate, Inference

FEWEST = 50  # records
QUANTILES = {0.8: 3.875, 0.9: 5.323, 0.95: 6.747, 0.98: 8.613, 0.99: 10.025}
"""Two-sided, of W(1) / (int_0^1 (W(r) - r W(1))^2 dr)^(1/2) for a Brownian motion W: K. M. Abadir, P. Paruolo, "Two
mixed normal densities from cointegration analysis", Econometrica 65 (1997)."""


class RandomScaling:
    """A callback for `lx.solve` that keeps what error bars by random scaling need, in O(1) memory and without Hessians.

    A second opinion on `result.inference()`, which it shares nothing with. The iterates of a method that averages, as
    `lx.TrackedLagrangian` does towards the end of a run, are x_t - x* ~ W(t) / t with W a Brownian motion of unknown
    covariance. Entry by entry,

        (x_n - x*) / V^(1/2),      V = mean over the records of t^2 (x_t - x_n)^2 / n^2

    has a law without unknowns. V is random too, so the intervals are longer than those of the sandwich.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> source = lx.Distribution(lambda key: jax.random.normal(key, (2,)))
    >>> problem = lx.Problem(lambda x, z: jnp.sum((x - z) ** 2), samples=source)
    >>> path = lx.RandomScaling()
    >>> result = lx.solve(problem, jnp.zeros(2), iterations=10_000, callback=path)
    >>> opinion = result.inference(method=path)
    >>> opinion.x.standard_error.shape
    (2,)
    """

    def __init__(self) -> None:
        self.records = 0
        self._first: PyTree = None

    def __call__(self, snapshot: Any) -> None:
        """Takes a record of the run."""
        here = jax.tree.map(lambda leaf: np.asarray(leaf, float), (snapshot.x, dict(snapshot.multipliers)))
        if self._first is None:
            self._first = here
            self._sums = self._squares = jax.tree.map(np.zeros_like, here)
            self._weight = 0.0
        weight = float(snapshot.iteration) ** 2
        self._last = jax.tree.map(np.subtract, here, self._first)  # of differences, which cost no digits
        self._sums = jax.tree.map(lambda total, x: total + weight * x, self._sums, self._last)
        self._squares = jax.tree.map(lambda total, x: total + weight * x**2, self._squares, self._last)
        self._weight += weight
        self._iteration = snapshot.iteration
        self.records += 1

    def inference(self, confidence: float = 0.95) -> Inference:
        """The error bars of x and of the multipliers."""
        if confidence not in QUANTILES:
            raise ValueError(f"random scaling has a table for {', '.join(map(str, QUANTILES))}, found {confidence!r}.")
        if self.records < FEWEST:
            raise InferenceError(
                f"random scaling needs {FEWEST} records of a run at least, found {self.records}. Give it to lx.solve "
                "as callback=, and lower record_every= if the run is short."
            )
        reach = QUANTILES[confidence]
        each = jax.tree.map(
            lambda *parts: self._estimate(reach, *parts), self._first, self._last, self._sums, self._squares
        )
        is_estimate = {"is_leaf": lambda node: isinstance(node, Estimate)}
        parts = [
            jax.tree.map(lambda estimate, name=name: getattr(estimate, name), each[0], **is_estimate)
            for name in ("estimate", "standard_error", "low", "high", "law")
        ]
        nothing = Estimate(np.nan, np.nan, np.nan, np.nan, "not asked")
        return Inference(
            x=Estimate(*parts),
            multipliers=each[1],
            objective=nothing,
            constraints={},
            confidence=confidence,
            draws=0,
            about=f"from {self.records} records of the run's own path, by random scaling",
            run_error=jax.tree.map(np.zeros_like, self._first[0]),
            off=0.0,
            warnings=(),
            candidates=(),
            form=None,
        )

    def _estimate(
        self, reach: float, first: np.ndarray, last: np.ndarray, sums: np.ndarray, squares: np.ndarray
    ) -> Estimate:
        spread = squares - 2 * last * sums + self._weight * last**2
        error = np.sqrt(np.maximum(spread, 0) / self.records) / self._iteration
        value = first + last
        law = np.where(error > 0, "random scaling", "fixed")
        return Estimate(value, error, value - reach * error, value + reach * error, law)
