"""`certify`: the only judge of a point."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from lariax.certificate._certificate import Certificate
from lariax.certificate._cone import Face
from lariax.certificate._draws import Plan
from lariax.certificate._judge import Multipliers, fit, judge, levels_for
from lariax.certificate._multipliers import Fit
from lariax.certificate._report import Ask, given, worded
from lariax.certificate._samples import DRAWS, Case, case_of, not_held_out
from lariax.certificate._sizes import Sizes, sizes_at
from lariax.certificate._tolerance import RelativeTolerance, Tolerance, better, refutes
from lariax.oracle import as_arrays
from lariax.problem import Problem, as_key
from lariax.utils import check_among, check_confidence

ON = ("samples", "heldout")
SHARE = 0.5  # of what may go wrong, for a run's own multipliers; the rest is for fitted ones
_JUDGE = 1  # a stream of random numbers


def certify(
    problem: Problem,
    x: PyTree,
    multipliers: Mapping[str, ArrayLike] | None = None,
    draws: int | None = DRAWS,
    confidence: float = 0.95,
    seed: Any = 0,
    on: str = "samples",
    tolerance: float | None = None,
) -> Certificate:
    """Is x feasible, is it a solution, and how sure can one be of it, from samples that no method has seen.

    Arguments:
        problem: what x is meant to solve.
        x: a point, like the x0 of `solve`.
        multipliers: by name, as in `result.multipliers`; those of a sign that the constraint does not allow count as 0.
            None: fitted by least squares, over the rows that may be active, on one half of the draws and judged on the
            other; what does not depend on them is judged on both.
        draws: how many samples to draw, over all sources together. A `Dataset` of no more rows than that is
            used as a whole; None: use all rows, however many.
        confidence: of each interval.
        seed: the same seed gives the same certificate. An integer or a JAX key.
        on: "samples", or "heldout" for the problem's held-out source.
        tolerance: up to where a violation or a distance counts as none, in the words used; by default the square root
            of the precision of x.

    What it is about: a `Distribution` or a `Stream` stands for the distribution that it samples, a `Dataset`,
    `Stratified` or a `Stream` with repeat=True for its own rows. Held-out rows are a fresh sample of the distribution
    behind them, each used once, so a certificate on them is about that distribution. `certificate.population` says
    which, and the verdict says it in words. Where the problem has held-out rows, `certificate.heldout` has the same
    multipliers judged there.

    A `Stream` is read on: its rows are gone afterwards.

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
    ...     samples=lx.Distribution(lambda key: jnp.array([1.0, 3.0]) + jax.random.normal(key, (2,))),
    ...     constraints={"sum": lx.Equal(jnp.sum, 2.0, samples=None)},
    ... )
    >>> certificate = lx.certify(problem, jnp.array([0.0, 2.0]))
    >>> certificate.stationarity.low, certificate.constraints["sum"].holds
    (0.0, 'surely')
    >>> lx.certify(problem, jnp.array([1.0, 1.0])).stationarity.low > 1
    True
    """
    _check(problem, draws, confidence, on)
    fits = multipliers is None and bool(problem.constraints)
    hearing = _Hearing(problem, x, draws, confidence, seed, tolerance, fits)
    if not fits:
        own = {} if multipliers is None else multipliers
        return hearing.beside(hearing.of_given(own)) if on == "samples" else hearing.heldout_of_given(own)
    return hearing.beside(hearing.of_fitted()) if on == "samples" else hearing.heldout_of_fitted()


class Judged(NamedTuple):
    """A certificate, and how often every sample was looked at for it."""

    certificate: Certificate
    passes: int


def certify_run(
    problem: Problem,
    x: PyTree,
    multipliers: Mapping[str, ArrayLike],
    draws: int | None = DRAWS,
    confidence: float = 0.95,
    seed: Any = 0,
    tolerance: Tolerance | None = None,
) -> Judged:
    """The certificate of a run: with its own multipliers, unless they are refuted and fitted ones are clearly better.

    Two sets of multipliers are two chances to be wrong, so each has half of 1 - confidence to itself: whichever is
    shown, its intervals hold. What does not depend on multipliers is not touched by that.
    """
    _check(problem, draws, confidence, "samples")
    hearing = _Hearing(problem, x, draws, confidence, seed, tolerance)
    if not hearing.can_fit:
        return Judged(hearing.beside(hearing.of_given(multipliers)), 1)
    own = hearing.of_given(multipliers, SHARE)
    if not refutes(own.certificate, hearing.tolerance):
        return Judged(hearing.beside(own), 1)
    other = hearing.of_fitted(1 - SHARE)
    chosen = better(own.certificate, other.certificate, hearing.tolerance)
    return Judged(hearing.beside(own if chosen is own.certificate else other), 2)


def _check(problem: Any, draws: Any, confidence: Any, on: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"certify takes an lx.Problem first, found {type(problem).__name__}.")
    if draws is not None and (not isinstance(draws, int | np.integer) or draws < 1):
        raise ValueError(f"draws must be a positive integer, or None for all rows of the data, found {draws!r}.")
    check_confidence(confidence)
    check_among("on", on, ON)
    if on == "heldout" and not problem.has_heldout:
        raise ValueError('on="heldout" needs a problem with heldout=, found none. Give lx.Problem a source for it.')


class _Finding(NamedTuple):
    """A certificate on samples, and what one beside it on held-out rows needs to know."""

    certificate: Certificate
    multipliers: Multipliers
    notes: tuple[str, ...]
    face: Face | None


class _Hearing:
    """One point of one problem, and the samples that it is judged by."""

    def __init__(
        self,
        problem: Problem,
        x: PyTree,
        draws: int | None,
        confidence: float,
        seed: Any,
        tolerance: Tolerance | None,
        fits: bool = False,
    ) -> None:
        self._problem, self._draws, self._confidence, self._fits = problem, draws, confidence, fits
        self._point, self._key = as_arrays(problem, x, "x"), as_key(seed)
        precision = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(self._point))).eps ** 0.5)
        self.tolerance: Tolerance = precision if tolerance is None else tolerance
        self._ask = Ask(
            confidence, precision if isinstance(self.tolerance, RelativeTolerance) else float(self.tolerance)
        )

    @property
    def can_fit(self) -> bool:
        """Whether there is a choice of multipliers."""
        return bool(self._problem.constraints) and self._samples.has_halves

    # --- on samples, with held-out rows beside them

    def of_given(self, multipliers: Mapping[str, ArrayLike], share: float = 1.0) -> _Finding:
        case = self._samples
        y, notes = given(case.oracle, multipliers)
        return _Finding(self._judged(case, case.plan, y, notes, share), y, notes, None)

    def of_fitted(self, share: float = 1.0) -> _Finding:
        case = self._samples
        found = self._fit(case, case.half(False))
        y = found.multipliers
        return _Finding(self._judged(case, case.half(True), y, (), share, found), y, (), found.face)

    def beside(self, finding: _Finding) -> Certificate:
        """With the same multipliers on held-out rows beside it, if there are any."""
        certificate, y, notes, face = finding
        if not self._problem.has_heldout:
            return certificate
        return dataclasses.replace(certificate, heldout=self._on_heldout(y, notes, face, certificate.fitted))

    # --- on held-out rows alone

    def heldout_of_given(self, multipliers: Mapping[str, ArrayLike]) -> Certificate:
        y, notes = given(self._heldout.oracle, multipliers)
        return self._on_heldout(y, notes, None, fitted=False)

    def heldout_of_fitted(self) -> Certificate:
        case = self._samples
        found = self._fit(case, case.plan)
        certificate = self._on_heldout(found.multipliers, (), found.face, fitted=True)
        return dataclasses.replace(certificate, draws=certificate.draws + case.draws(case.plan))

    def _on_heldout(self, y: Multipliers, notes: tuple[str, ...], face: Face | None, fitted: bool) -> Certificate:
        case = self._heldout
        found = Fit(y, face, None) if fitted else None
        return self._judged(case, case.plan, y, notes + not_held_out(self._problem), 1.0, found)

    # --- what both are made of

    @cached_property
    def _samples(self) -> Case:
        return case_of(self._problem, self._point, self._draws, self._key, "samples", self._fits)

    @cached_property
    def _heldout(self) -> Case:
        return case_of(self._problem, self._point, self._draws, self._key, "heldout")

    def _fit(self, case: Case, plan: Plan) -> Fit:
        z, key = self._place(case)
        none = jnp.zeros(case.oracle.rows, case.oracle.dtype)
        return fit(case.oracle, case.feeds, z, self._sizes(case, plan, none).rows, key, plan)

    def _judged(
        self,
        case: Case,
        plan: Plan,
        y: Multipliers,
        notes: tuple[str, ...],
        share: float,
        fitted: Fit | None = None,
    ) -> Certificate:
        z, key = self._place(case)
        before = 0 if fitted is None or fitted.seen is None or case.exact else fitted.seen.objective.shape[0]
        at = levels_for(case.oracle, plan.batches, before + plan.batches, self._confidence, share)
        found = judge(case.oracle, case.feeds, z, y, self._sizes(case, plan, y), key, plan, at, fitted)
        spent = case.draws(plan) * (2 if before else 1)
        return worded(case, found, y, at, self._ask, notes, fitted is not None, spent, plan)

    def _place(self, case: Case) -> tuple[Array, Array]:
        """The point as a vector, and the random numbers: every pass over the same samples has the same ones."""
        return case.oracle.coordinates.ravel(self._point), jax.random.fold_in(self._key, _JUDGE)

    def _sizes(self, case: Case, plan: Plan, y: Multipliers) -> Sizes:
        z, key = self._place(case)
        least = self.tolerance.lengths if isinstance(self.tolerance, RelativeTolerance) else 0.0
        lengths = jnp.maximum(jnp.abs(z), jnp.asarray(least, z.dtype))
        return sizes_at(case.oracle, case.feeds, z, y, lengths, key, plan)
