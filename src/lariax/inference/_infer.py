"""`inference`: error bars for the solution, the multipliers, the objective and the constraints."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import ArrayLike, PyTree

from lariax.certificate import DRAWS
from lariax.inference._errors import InferenceError
from lariax.inference._faces import unravel
from lariax.inference._inference import (
    LARGE,
    Derivative,
    Estimate,
    Form,
    Hull,
    Inference,
    NamedRows,
    PossibleSolution,
    hull,
    quantile,
    reaches,
    standard_errors,
)
from lariax.inference._large import fitted_large
from lariax.inference._models import SampleSolution, fitted
from lariax.inference._moments import KeptSample
from lariax.inference._samples import Extras, Wanted, same_rows, sample_of, total
from lariax.inference._scaling import RandomScaling
from lariax.inference._system import ActiveModel
from lariax.oracle import Oracle, as_arrays
from lariax.problem import Dataset, Problem, Stratified, at_home, automatic_axes, opened

SURELY = 3.0  # standard errors by which a multiplier or a slack is positive, or one more than the interval has
OFF, FAR = 6.0, 100.0  # standard errors between the run's x and the estimate: to warn of, to refuse
SECOND = 0.25  # of the objective's standard error: noise of second order that leaves the law normal
CLEAN = 1e-10  # of the largest standard error, for rounding


@automatic_axes
def inference(
    problem: Problem,
    x: PyTree,
    multipliers: Mapping[str, ArrayLike] | None = None,
    draws: int | None = None,
    confidence: float = 0.95,
    seed: Any = 0,
    clusters: ArrayLike | None = None,
    population_size: int | None = None,
) -> Inference:
    """Error bars: how far the solution on the samples is from the solution of the problem behind them.

    The estimate is the solution on the samples that are looked at, by Newton's method from x. Its covariance is the
    sandwich K^-1 Omega K^-1 / n of the optimality conditions, with the noise of the objective's gradient and of the
    constraints. A data set has the sampling error of its N rows, however often they were drawn.

    Arguments:
        problem: what x solves.
        x: near the solution, such as `result.x`.
        multipliers: likewise, by name; None: found on the way.
        draws: how many samples of each source. By default all rows of a `Dataset`, and 10,000 of a `Distribution`.
        confidence: of each interval.
        seed: of the samples of a `Distribution`, or of the choice of rows.
        clusters: for each row of the problem's `Dataset` a label; rows of one label may depend on each other.
        population_size: where the rows were drawn from so many without replacement, and the solution for those is
            asked for: the variance is that much smaller.

    Sampling weights belong into the functions: a row of weight w has the loss w f(x, row).

    >>> import jax, jax.numpy as jnp, lariax as lx
    >>> problem = lx.Problem(
    ...     lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
    ...     samples=lx.Distribution(lambda key: jnp.array([1.0, 3.0]) + jax.random.normal(key, (2,))),
    ...     constraints={"sum": lx.Equal(jnp.sum, 2.0, samples=None)},
    ... )
    >>> inference = lx.inference(problem, jnp.array([0.0, 2.0]), draws=10_000)
    >>> price = inference.multipliers["sum"]
    >>> bool(price.low < 1 < price.high), round(float(price.standard_error) * 100, 1)
    (True, 0.7)
    """
    _check(problem, draws, confidence)
    extras = Extras(clusters, population_size)
    return _inferred(problem, x, multipliers or {}, Wanted(draws, draws or DRAWS), confidence, seed, extras)


@automatic_axes
def infer_run(
    problem: Problem,
    x: PyTree,
    multipliers: Mapping[str, ArrayLike],
    drawn: int,
    draws: int | None,
    confidence: float,
    seed: Any,
    method: Any,
) -> Inference:
    """The same for a run that has drawn so many samples."""
    _check(problem, draws, confidence)
    if isinstance(method, RandomScaling):
        return method.inference(confidence)
    if method != "sandwich":
        raise ValueError(
            f'method must be "sandwich", or the lx.RandomScaling that was the callback= of the run, found {method!r}.'
        )
    wanted = Wanted(draws, draws or max(DRAWS, drawn))
    return _inferred(problem, x, multipliers, wanted, confidence, seed, Extras())


def _inferred(
    problem: Problem,
    x: PyTree,
    multipliers: Mapping[str, ArrayLike],
    wanted: Wanted,
    confidence: float,
    seed: Any,
    extras: Extras,
) -> Inference:
    problem, arrays = opened(problem, x)
    point = as_arrays(problem, arrays, "x")
    point = at_home(point, (None,) * len(jax.tree.leaves(point)))  # the algebra is done on the host
    sample = sample_of(problem, point, wanted, seed, extras)
    oracle = sample.oracle
    leaves = jax.tree.leaves(point)
    flat = len(leaves) == 1 and leaves[0].ndim == 1 and leaves[0].dtype == oracle.dtype
    vector = leaves[0] if flat else oracle.coordinates.ravel(point)  # no copy where x is a vector already
    z = np.asarray(vector, float)
    y = np.asarray(oracle.rows_named(multipliers), float)
    threshold = max(SURELY, quantile(confidence) + 1)
    twice = (SAME_ROWS,) if same_rows(problem) else ()
    if z.size > LARGE:
        large = fitted_large(sample, vector, y, threshold)
        notes = _notes(oracle, large.ambiguous, large.complete, np.ones(oracle.rows, bool))
        return assembled(sample, large.candidates, z, confidence, notes + twice)
    found = fitted(sample, z, y, threshold)
    notes = _notes(oracle, found.ambiguous, found.complete, found.models[0].determined)
    return assembled(sample, candidates_of(found), z, confidence, notes + twice)


def _check(problem: Any, draws: Any, confidence: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"inference takes an lx.Problem first, found {type(problem).__name__}.")
    if draws is not None and (not isinstance(draws, int | np.integer) or draws < 2):
        raise ValueError(f"draws must be an integer of at least 2, or None, found {draws!r}.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, found {confidence!r}.")


def form_of(oracle: Oracle) -> Form:
    rows = []
    for block in oracle.blocks:
        constraint = oracle.problem.constraints[block.name]
        bound = np.broadcast_to(np.asarray(constraint.bound, float), block.shape)
        rows.append(NamedRows(block.name, block.rows, block.shape, constraint.sign, bound, block.inequality))
    return Form(oracle.coordinates, tuple(rows))


def candidates_of(found: SampleSolution) -> list[PossibleSolution]:
    return [_candidate(found, model) for model in found.models]


def _candidate(found: SampleSolution, model: ActiveModel) -> PossibleSolution:
    """The numbers of a model; those of the set's rows are left out."""
    local = found.local
    d, m, rows = local.slope.size, local.constraints, model.active.size
    kept = np.r_[0 : 1 + d + m, 1 + d + rows : 1 + d + rows + m]
    covariance = model.covariance(local.noise)[np.ix_(kept, kept)]
    values = np.where(model.active, 0, local.values + local.rows @ model.step)[:m]
    slope = -found.models[0].multipliers @ local.rows  # of the objective
    own = _clean(standard_errors(covariance))[1 : 1 + d]
    optimism, second = model.second_order(local.noise)

    def spread(slopes: Iterable[Derivative]) -> np.ndarray:
        gradients = np.stack([slope.flat(d) for slope in slopes])
        return gradients @ covariance @ gradients.T

    return PossibleSolution(
        found.point + model.step,
        model.multipliers[:m],
        local.objective + float(slope @ model.step) + optimism,
        values,
        spread,
        lambda slopes: standard_errors(spread(slopes)),
        model.determined[:m],
        local.skew,
        second,
        lambda v: covariance[1 : 1 + d, 1 : 1 + d] @ v,
        lambda apart: float(np.max(np.abs(apart)[own > 0] / own[own > 0], initial=0.0)),
    )


def _clean(errors: np.ndarray) -> np.ndarray:
    """Without what is rounding."""
    return np.where(errors > CLEAN * np.max(errors, initial=0), errors, 0)


def assembled(
    sample: KeptSample,
    candidates: list[PossibleSolution],
    z: np.ndarray,
    confidence: float,
    notes: tuple[str, ...] = (),
) -> Inference:
    """The numbers in the structure and with the names of the problem."""
    form = form_of(sample.oracle)
    d, m, first = form.d, form.m, candidates[0]
    errors = np.stack([_errors(candidate, d, m) for candidate in candidates])
    values = np.stack([np.concatenate([[c.objective], c.multipliers, c.residuals]) for c in candidates])
    ends = hull(values, errors[:, np.r_[0, -2 * m : 0]], confidence)
    of_y, of_r = _cut(ends, 1, 1 + m), _cut(ends, 1 + m, 1 + 2 * m)
    of_x = (
        _unasked(first.x) if d > LARGE else hull(np.stack([c.x for c in candidates]), errors[:, 1 : 1 + d], confidence)
    )
    apart = z - first.x
    off = first.off(apart)
    return Inference(
        x=Estimate(*(unravel(form.coordinates, part) for part in of_x)),
        multipliers={row.name: _multiplier(_cut(of_y, *_edges(row)), row, first) for row in form.blocks},
        objective=_objective(_cut(ends, 0, 1), errors[0, 0], first, confidence),
        constraints={row.name: _value(_cut(of_r, *_edges(row)), row) for row in form.blocks},
        confidence=confidence,
        draws=total(sample),
        about=_about(sample),
        run_error=unravel(form.coordinates, apart),
        off=off,
        warnings=notes + _objective_notes(errors[0, 0], first) + _distance(off),
        candidates=candidates,
        form=form,
    )


def _errors(candidate: PossibleSolution, d: int, m: int) -> np.ndarray:
    """Of (E f, x, y, r); those of a large x are left out."""
    size = 1 + d + 2 * m
    places = range(size) if d <= LARGE else (0, *range(1 + d, size))
    errors = candidate.errors(Derivative.unit(d, m, i) for i in places)
    return _clean(errors) if d <= LARGE else errors


def _unasked(x: np.ndarray) -> Hull:
    """No interval for any entry, in no memory."""
    nothing = np.broadcast_to(np.nan, x.shape)
    return Hull(x, nothing, nothing, nothing, np.broadcast_to(np.asarray("not asked"), x.shape))


def _cut(ends: Hull, first: int, last: int) -> Hull:
    return Hull(*(part[first:last] for part in ends))


def _edges(row: NamedRows) -> tuple[int, int]:
    return row.rows.start, row.rows.stop


def _objective(ends: Hull, error: float, candidate: PossibleSolution, confidence: float) -> Estimate:
    """With both ends moved to where rare large losses may not have been seen.

    Where noise matters to second order its share is at worst that of one square, less its mean.
    """
    below, above = reaches(error, candidate.skew, confidence)
    normal = quantile(confidence) * error
    estimate, own, low, high = (float(part[0]) for part in ends[:4])
    if not _is_second_order(error, candidate):
        return Estimate(estimate, own, low + normal - below, high - normal + above, str(ends.law[0]))
    more = candidate.second * (quantile((1 + confidence) / 2) ** 2 - 1) / np.sqrt(2)
    return Estimate(estimate, np.nan, low - more, high + more, "conservative")


def _is_second_order(error: float, candidate: PossibleSolution) -> bool:
    return bool(candidate.second > SECOND * error)


def _multiplier(ends: Hull, row: NamedRows, candidate: PossibleSolution) -> Estimate:
    """With the user's sign; those of inequalities have only one."""
    low = np.maximum(ends.low, 0) if row.inequality else ends.low
    high = np.maximum(ends.high, 0) if row.inequality else ends.high
    estimate, error, law = ends.estimate, ends.standard_error, ends.law
    unknown = ~candidate.determined[row.rows]
    estimate, error, low, high = (np.where(unknown, np.nan, part) for part in (estimate, error, low, high))
    law = np.where(unknown, "undetermined", law)
    if row.sign < 0:
        estimate, low, high = -estimate + 0.0, -high + 0.0, -low + 0.0  # no negative zeros
    return Estimate(*(part.reshape(row.shape) for part in (estimate, error, low, high, law)))


def _value(ends: Hull, row: NamedRows) -> Estimate:
    """E[fun] in the user's units; an inequality is kept at the solution."""
    high = np.minimum(ends.high, 0) if row.inequality else ends.high
    parts = [row.sign * part.reshape(row.shape) + row.bound for part in (ends.estimate, ends.low, high)]
    estimate, low, high = parts[0], np.minimum(*parts[1:]), np.maximum(*parts[1:])
    return Estimate(estimate, ends.standard_error.reshape(row.shape), low, high, ends.law.reshape(row.shape))


# --- words

SAME_ROWS = (
    "two sources hold the same rows, and their errors are taken as independent: intervals may be too long or short. "
    "Leave samples= of the constraint out, so that it sees the rows of the objective."
)


def _about(sample: KeptSample) -> str:
    sources = sample.oracle.problem.sources
    data = [f"{len(source):,}" for source in sources if isinstance(source, Dataset)]
    for source in sources:
        if isinstance(source, Stratified):
            data.append(" + ".join(f"{size:,}" for size in np.asarray(source.sizes).tolist()))
    if not sample.random:
        return "about the problem, nothing is random"
    if not data:
        return f"about the distribution, from {total(sample):,} draws"
    clusters = f" in {sample.count:,} clusters" if sample.count else ""
    return f"about the distribution behind the data, from {' + '.join(data)} rows{clusters}"


def _objective_notes(error: float, candidate: PossibleSolution) -> tuple[str, ...]:
    if not _is_second_order(error, candidate):
        return ()
    return (
        "the objective hardly changes with the samples to first order (as a sum of squares near 0 does), so its law is "
        "not normal: its interval is conservative.",
    )


def _distance(off: float) -> tuple[str, ...]:
    if off > FAR:
        raise InferenceError(
            f"x is {off:,.0f} standard errors away from the solution on the samples: the run has not come near it. "
            "Solve longer, and look at result.certificate."
        )
    if off <= OFF:
        return ()
    return (
        f"x of the run is up to {off:.1f} standard errors away from the estimate, the solution on these samples. The "
        "intervals are around the estimate; solve longer for an x that is as precise.",
    )


def _notes(oracle: Oracle, ambiguous: np.ndarray, complete: bool, determined: np.ndarray) -> tuple[str, ...]:
    notes = []
    m = oracle.rows
    unsure = [block.name for block in oracle.blocks if np.any(ambiguous[:m][block.rows])]
    faces = int(np.sum(ambiguous[m:]))
    if unsure or faces:
        names = [*map(repr, unsure), *([f"{faces} bounds of {type(oracle.problem.simple).__name__}"] if faces else [])]
        notes.append(
            f"whether {', '.join(names)} {'is' if len(names) == 1 and faces < 2 else 'are'} active at the solution "
            "cannot be told from these samples, so no normal law holds: where it matters, intervals cover both cases."
        )
    if not complete:
        notes.append("not every combination of the rows that may be active was looked at: intervals may be too short.")
    if not np.all(determined[:m]):
        notes.append("active rows depend on each other: their multipliers are not unique, and have no interval.")
    return tuple(notes)
