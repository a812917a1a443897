"""`certify`: the only judge of a point."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from lariax.certificate._certificate import Certificate
from lariax.certificate._certifier import AbstractCertifier, Judged
from lariax.certificate._draws import BatchPlan, SampledPoint
from lariax.certificate._estimates import Multipliers, estimate
from lariax.certificate._estimates import fit as fit_on_samples
from lariax.certificate._multipliers import Fit
from lariax.certificate._report import Evidence
from lariax.certificate._risks import with_true_risks
from lariax.certificate._samples import DRAWS, PASSES, RISKS, Samples, not_held_out, samples_for
from lariax.certificate._tolerance import RelativeTolerance, Tolerance
from lariax.compilation import on_device
from lariax.oracle import as_arrays
from lariax.problem import Problem, as_key, automatic_axes, opened
from lariax.risk import Lift, lift_of
from lariax.utils import check_among, check_confidence, helped_by

ON = ("samples", "heldout")
RISK_DRAWS = 2**14
"""From which the auxiliary numbers of a risk are made."""


@helped_by("certificate")
@automatic_axes
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
    lift = lift_of(problem)
    if lift is not None:  # with auxiliary numbers from other samples, at which a risk is no less than it is
        point = lift.point(x, RISK_DRAWS)
        means = certify(lift.problem, point, multipliers, draws, confidence, seed, on, tolerance)
        return judged_risks(means, lift, x, draws, as_key(seed), confidence, on)
    fits = multipliers is None and bool(problem.constraints)
    asked = _PointRequest(problem, x, draws, confidence, seed, tolerance)
    own = {} if multipliers is None else multipliers
    if on == "heldout":
        if not fits:
            return asked.on("heldout").of_given(own)
        samples = asked.on("samples", fits)
        fit = samples.fit(whole=True)
        certificate = asked.on("heldout").of_fit(fit._replace(seen=None))
        return dataclasses.replace(certificate, draws=certificate.draws + samples.samples.draws(samples.samples.plan))
    samples = asked.on("samples", fits)
    return asked.beside(samples.of_fit(samples.fitted) if fits else samples.of_given(own), own, samples)


def judged_risks(
    means: Certificate,
    lift: Lift,
    x: PyTree,
    draws: int | None,
    key: Any,
    confidence: float = 0.95,
    on: str = "samples",
) -> Certificate:
    """A certificate of the means that stand for risks, with what is true of the risks themselves."""
    own = jax.random.fold_in(key, RISKS)
    return with_true_risks(means, lift, x, draws or RISK_DRAWS, confidence, own, on, RISK_DRAWS)


@automatic_axes
def certify_run(
    problem: Problem,
    x: PyTree,
    multipliers: Mapping[str, ArrayLike],
    draws: int | None = DRAWS,
    confidence: float = 0.95,
    seed: Any = 0,
    tolerance: Tolerance | None = None,
) -> Judged:
    """The certificate of a run, with its own multipliers or with fitted ones: `AbstractCertifier.of_run`."""
    _check(problem, draws, confidence, "samples")
    point = _PointRequest(problem, x, draws, confidence, seed, tolerance)
    samples = point.on("samples")
    certificate, passes = samples.of_run(multipliers)
    return Judged(point.beside(certificate, multipliers, samples), passes)


def _check(problem: Any, draws: Any, confidence: Any, on: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"certify takes an lx.Problem first, found {type(problem).__name__}.")
    if draws is not None and (not isinstance(draws, int | np.integer) or draws < 1):
        raise ValueError(f"draws must be a positive integer, or None for all rows of the data, found {draws!r}.")
    check_confidence(confidence)
    check_among("on", on, ON)
    if on == "heldout" and not problem.has_heldout:
        raise ValueError('on="heldout" needs a problem with heldout=, found none. Give lx.Problem a source for it.')


class _PointRequest:
    """What is asked of one point."""

    def __init__(
        self,
        problem: Problem,
        x: PyTree,
        draws: int | None,
        confidence: float,
        seed: Any,
        tolerance: Tolerance | None,
    ) -> None:
        self._problem, point = opened(problem, x)
        self._draws, self._confidence, self._tolerance = draws, confidence, tolerance
        self._x, self._key = as_arrays(self._problem, point, "x"), as_key(seed)

    def on(self, which: str, fits: bool = False) -> "_Certifier":
        """Judged on samples, or on held-out rows; `fits`: half of them are for multipliers."""
        samples = samples_for(self._problem, self._x, self._draws, self._key, which, fits)
        z = on_device(samples.oracle.coordinates.ravel_small(self._x))
        notes = not_held_out(self._problem) if which == "heldout" else ()
        return _Certifier(samples, z, self._key, self._confidence, self._tolerance, notes)

    def beside(
        self, certificate: Certificate, given: Mapping[str, ArrayLike], samples: AbstractCertifier
    ) -> Certificate:
        """With the same multipliers on held-out rows beside it, if there are any."""
        if not self._problem.has_heldout:
            return certificate
        heldout = self.on("heldout")
        fitted = certificate.fitted
        other = heldout.of_fit(samples.fitted._replace(seen=None)) if fitted else heldout.of_given(given)
        return dataclasses.replace(certificate, heldout=other)


class _Certifier(AbstractCertifier):
    """Certificates by passes of the oracle, all over the same samples."""

    def __init__(
        self,
        samples: Samples,
        z: Array,
        key: Array,
        confidence: float,
        tolerance: Tolerance | None,
        notes: tuple[str, ...],
    ) -> None:
        super().__init__(samples.oracle, z, samples.scope, confidence, tolerance, notes)
        self.samples, self._key = samples, jax.random.fold_in(key, PASSES)

    @property
    def can_fit(self) -> bool:
        return bool(self.structure.rows) and self.samples.has_halves

    def fit(self, whole: bool = False) -> Fit:
        """On the first half of the samples, or on the whole of them."""
        point = self._sampled(self.samples.plan if whole else self.samples.half(False))
        return fit_on_samples(point, self._least)

    def estimate(self, y: Multipliers, share: float, fit: Fit | None) -> Evidence:
        samples = self.samples
        plan = samples.plan if fit is None or fit.seen is None else samples.half(True)
        point, at = self._sampled(plan), self.levels(plan.batches, share, fit)
        found = estimate(point, y, self._least, at, fit if plan.batches > 1 else None)  # of all rows none is earlier
        return Evidence(found, at, plan, samples.draws(plan) * (2 if self.earlier(fit) else 1))

    def _sampled(self, plan: BatchPlan) -> SampledPoint:
        return SampledPoint(self.samples.oracle, self.samples.feeds, self.z, self._key, plan)

    @property
    def _least(self) -> Array:
        """Lengths of the entries of x, where these are shorter."""
        least = self.tolerance.lengths if isinstance(self.tolerance, RelativeTolerance) else 0.0
        return on_device(least, self.z.dtype)
