"""What is known of the solution, and how precisely."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import scipy
from lariax.inference._table import as_frame, as_html, as_rich, as_text
from lariax.oracle import Coordinates

LAWS = ("normal", "fixed", "conservative", "undetermined", "random scaling", "not asked")
"""What an interval rests on: see `Estimate`."""

SAME = 0.01  # standard errors by which two models may differ and still say the same
ROUNDING = 1e-9
FAINT = 1e-6  # skewness that counts as none
LARGE = 300  # entries of x beyond which no matrix is formed


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate with its standard error and the ends of its interval; the parts have the structure of what they are
    about.

    `law` says what the interval rests on:

        normal          the normal law of the estimate
        fixed           the value is the same for all samples: a row that is surely active holds it
        conservative    a row may or may not be active, and the law is not normal: the interval covers both, and
                        there is no standard error
        undetermined    rows depend on each other, so that many multipliers fit: there is no interval
        random scaling  that of `lx.RandomScaling`, longer than the normal one
        not asked       one of very many entries of x: ask for it by `inference.of`
    """

    estimate: Any
    standard_error: Any
    low: Any
    high: Any
    law: Any


class Wald(NamedTuple):
    """A test that a function of the solution is 0: its statistic, degrees of freedom and p-value."""

    statistic: float
    degrees_of_freedom: int
    p_value: float


class Derivative(NamedTuple):
    """The derivative of a number in (E f, x, multipliers, residuals); x=None: 0, which takes no memory."""

    objective: float
    x: Any
    multipliers: np.ndarray
    residuals: np.ndarray

    @classmethod
    def unit(cls, d: int, m: int, place: int) -> "Derivative":
        """0 but for a 1 at a place among (E f, x, multipliers, residuals)."""
        of_x = unit(d, place - 1) if 0 < place <= d else None
        rest = np.zeros(2 * m)
        if place > d:
            rest[place - 1 - d] = 1
        return cls(float(place == 0), of_x, rest[:m], rest[m:])

    def flat(self, d: int) -> np.ndarray:
        of_x = np.zeros(d) if self.x is None else np.asarray(self.x, float)
        return np.concatenate([[self.objective], of_x, self.multipliers, self.residuals])


class PossibleSolution(NamedTuple):
    """A solution with given rows active: (x, multipliers) with what their covariance needs.

    Attributes:
        x, multipliers: of the solution, as vectors; multipliers are those of the residuals.
        objective, residuals: E f and E r there.
        covariance: of several numbers, from their derivatives.
        errors: their standard errors, one after another.
        determined: which multipliers are.
        skew: the third cumulant of the objective's estimate.
        second: the standard deviation of what noise adds to the objective to second order.
        product: of the covariance of x with a vector.
        off: how many standard errors a vector is from x; of a large x in the mean, or in the largest entry.
    """

    x: np.ndarray
    multipliers: np.ndarray
    objective: float
    residuals: np.ndarray
    covariance: Callable[[Iterable[Derivative]], Float[np.ndarray, "q q"]]
    errors: Callable[[Iterable[Derivative]], np.ndarray]
    determined: np.ndarray
    skew: float
    second: float
    product: Callable[[np.ndarray], np.ndarray]
    off: Callable[[np.ndarray], float]


class NamedRows(NamedTuple):
    """One named constraint among the residuals."""

    name: str
    rows: slice
    shape: tuple[int, ...]
    sign: float
    bound: np.ndarray
    inequality: bool


class Form(NamedTuple):
    """How vectors are the user's x, multipliers and constraints."""

    coordinates: Coordinates
    blocks: tuple[NamedRows, ...]

    @property
    def d(self) -> int:
        return self.coordinates.size

    @property
    def m(self) -> int:
        return self.blocks[-1].rows.stop if self.blocks else 0

    def multipliers(self, y: Any) -> dict[str, Any]:
        """By name, with the user's signs, from those of the residuals."""
        return {block.name: block.sign * y[block.rows].reshape(block.shape) for block in self.blocks}


@dataclass(frozen=True, eq=False)
class Inference:
    """Error bars of a solution, made by `lx.inference` or `result.inference`.

    Attributes:
        x: an `Estimate` in the structure of x. Its estimate is the solution on the samples that were looked at.
        multipliers: an `Estimate` for each name, with the signs of `result.multipliers`.
        objective: E[f] at the solution.
        constraints: E[fun] at the solution, for each name.
        confidence: of each interval on its own.
        draws: how many samples were looked at.
        about: what the intervals are about, in words.
        run_error: x of the run less the estimate: how far the run is from the solution on the samples.
        off: the largest of its entries in standard errors.
        warnings: what may be wrong with the statements made, in words.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> rows = lx.Dataset(jax.random.normal(jax.random.key(0), (400, 2)))
    >>> problem = lx.Problem(lambda x, row: 0.5 * jnp.sum((x - row) ** 2), samples=rows)
    >>> inference = lx.inference(problem, rows.arrays.mean(axis=0))
    >>> inference.x.standard_error.round(2).tolist()  # 1 / sqrt(400)
    [0.05, 0.05]
    """

    x: Estimate
    multipliers: Mapping[str, Estimate]
    objective: Estimate
    constraints: Mapping[str, Estimate]
    confidence: float
    draws: int
    about: str
    run_error: PyTree
    off: float
    warnings: tuple[str, ...]
    candidates: Sequence[PossibleSolution] = field(repr=False)
    form: Form | None = field(repr=False)

    def of(self, function: Callable[..., Any]) -> Estimate:
        """The interval of function(x) or function(x, multipliers), a number or an array, by the delta method.

        >>> import jax, jax.numpy as jnp, lariax as lx
        >>> problem = lx.Problem(
        ...     lambda x, z: jnp.sum((x - z) ** 2),
        ...     samples=lx.Distribution(lambda key: jnp.array([1.0, 2.0]) + jax.random.normal(key, (2,))),
        ... )
        >>> inference = lx.inference(problem, jnp.array([1.0, 2.0]))
        >>> ratio = inference.of(lambda x: x[1] / x[0])
        >>> bool(ratio.low < 2 < ratio.high)
        True
        """
        self._check_candidates()
        values, errors, shape = [], [], ()
        for candidate in self.candidates:
            value, slopes = self._linearized(function, candidate)
            shape = value.shape
            values.append(value.ravel())
            errors.append(candidate.errors(slopes))
        ends = hull(np.stack(values), np.stack(errors), self.confidence)
        return Estimate(*(part.reshape(shape) for part in ends))

    def wald(self, restriction: Callable[..., Any]) -> Wald:
        """Test that restriction(x) or restriction(x, multipliers), a number or a vector, is 0."""
        self._check_candidates()
        if len(self.candidates) > 1:
            raise ValueError(
                "a Wald test needs a normal law, and rows that may or may not be active make it another one: "
                f"{self.warnings[0] if self.warnings else ''} Look at the interval of inference.of(restriction)."
            )
        value, slopes = self._linearized(restriction, self.candidates[0])
        covariance = self.candidates[0].covariance(slopes)
        rank = int(np.linalg.matrix_rank(covariance, hermitian=True))
        if rank < value.size:
            raise ValueError(
                f"the {value.size} values of the restriction have a covariance of rank {rank}: some are fixed or "
                "repeat others. Leave those out."
            )
        statistic = float(value.ravel() @ np.linalg.solve(covariance, value.ravel()))
        return Wald(statistic, value.size, float(scipy.special.chdtrc(value.size, statistic)))

    @property
    def covariance(self) -> Any:
        """Of the entries of x, in the order of `jax.flatten_util.ravel_pytree`: a matrix, or for a large x an operator
        (`scipy.sparse.linalg.LinearOperator`). With the rows active that are on the samples."""
        self._check_candidates()
        assert self.form is not None
        d, m, candidate = self.form.d, self.form.m, self.candidates[0]
        if d <= LARGE:
            return candidate.covariance(Derivative.unit(d, m, 1 + i) for i in range(d))

        def product(v: np.ndarray) -> np.ndarray:
            return candidate.product(np.ravel(v))

        return scipy.sparse.linalg.LinearOperator((d, d), matvec=product, rmatvec=product, dtype=float)

    def to_frame(self) -> Any:
        """A pandas frame with a row for each number."""
        return as_frame(self)

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Any:
        return as_rich(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def _check_candidates(self) -> None:
        if not self.candidates:
            raise ValueError(
                "random scaling knows the entries of x and the multipliers one by one alone. Take the function of "
                'result.inference(method="sandwich").'
            )

    def _linearized(
        self, function: Callable[..., Any], candidate: PossibleSolution
    ) -> tuple[np.ndarray, Iterator[Derivative]]:
        """A function of the solution, and the derivatives of its values one after another."""
        form = self.form
        assert form is not None
        both = _takes_multipliers(function)

        def flat(x: Array, y: Array) -> Array:
            tree = form.coordinates.unravel(x, cast=False)
            return jnp.asarray(function(tree, form.multipliers(y)) if both else function(tree))

        dtype = jnp.result_type(float)
        x, y = (jnp.asarray(part, dtype) for part in (candidate.x, candidate.multipliers))
        value, pull = jax.vjp(flat, x, y)
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(f"the function must return numbers of floating point, found {value.dtype}.")

        def slope(i: int) -> Derivative:
            of_x, of_y = pull(jnp.asarray(unit(value.size, i), value.dtype).reshape(value.shape))
            return Derivative(0.0, of_x, np.asarray(of_y, float), np.zeros(form.m))

        return np.asarray(value, float), map(slope, range(value.size))


def _takes_multipliers(function: Callable[..., Any]) -> bool:
    """Whether it takes two arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) >= 2


class Hull(NamedTuple):
    """Estimates with the intervals that cover those of all candidates, entry by entry."""

    estimate: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    law: np.ndarray


def hull(values: Float[np.ndarray, "k q"], errors: Float[np.ndarray, "k q"], confidence: float) -> Hull:
    """The interval that covers those of all candidates, the first of which has the estimate."""
    t = quantile(confidence)
    first, error = values[0], errors[0]
    close = SAME * error + ROUNDING * (np.max(np.nan_to_num(errors), initial=0) + np.abs(first))
    same = np.all((np.abs(values - first) <= close) & (np.abs(errors - error) <= close), axis=0)
    low = np.where(same, first - t * error, np.min(values - t * errors, axis=0))
    high = np.where(same, first + t * error, np.max(values + t * errors, axis=0))
    law = np.where(same, np.where(error > 0, "normal", "fixed"), "conservative")
    return Hull(first, np.where(same, error, np.nan), low, high, law)


def reaches(error: float, skew: float, confidence: float) -> tuple[float, float]:
    """How far an interval reaches below and above the mean of skewed numbers: as often wrong on either side.

    With g the skewness of the mean, T + g T^2 / 3 + g^2 T^3 / 27 + g / 6 of the studentized mean T is normal up to the
    order of 1 / n, and grows with T: P. Hall, "On the removal of skewness by transformation", Journal of the Royal
    Statistical Society B 54 (1992).
    """
    t = quantile(confidence)
    g = skew / error**3 if error > 0 else 0.0
    if abs(g) < FAINT:
        return t * error, t * error
    below, above = (3 / g * (np.cbrt(1 + g * (side * t - g / 6)) - 1) for side in (1, -1))
    return float(below * error), float(-above * error)


def unit(size: int, place: int) -> np.ndarray:
    """0 but for a 1."""
    vector = np.zeros(size)
    vector[place] = 1
    return vector


def quantile(confidence: float) -> float:
    """Of the normal law: 1.96 for 0.95."""
    return float(scipy.special.ndtri((1 + confidence) / 2))


def standard_errors(covariance: Float[np.ndarray, "q q"]) -> np.ndarray:
    return np.sqrt(np.maximum(np.diag(covariance), 0))
