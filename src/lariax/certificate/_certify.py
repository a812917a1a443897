"""`certify`: the only judge of a point."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key, PyTree

from lariax.certificate._certificate import HOLDS, Certificate, ConstraintReport, Interval
from lariax.certificate._draws import (
    FEWEST_BATCHES,
    AbstractFeed,
    AllRows,
    Feeds,
    Fresh,
    InOrder,
    Means,
    Plan,
    View,
    WithReplacement,
    batch_means,
    most_together,
    plan_for,
    plan_for_all,
)
from lariax.certificate._interval import Bounds, Errors, Level, errors, interval, level, mean_intervals
from lariax.certificate._multipliers import fit_multipliers
from lariax.certificate._spread import Spread, is_large
from lariax.oracle import Block, Oracle, Vector, as_arrays, bind, sample_structure
from lariax.problem import AbstractSource, Dataset, Problem, Stratified, Stream, as_key, describe_shape
from lariax.prox import Zero
from lariax.sets import Everything

ON = ("samples", "heldout")
DRAWS = 10_000  # unless said otherwise
_FIT, _JUDGE, _SHUFFLE = range(3)  # streams of random numbers


class Findings(NamedTuple):
    """Everything that is known of a point, as arrays."""

    stationarity: Bounds
    natural_residual: Bounds
    feasibility: Bounds
    complementarity: Bounds
    objective: Bounds
    residuals: Bounds
    outside: Float[Array, ""]


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
            None: fitted by least squares on one half of the draws and judged on the other.
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
    key = as_key(seed)
    point = as_arrays(problem, x, "x")
    fitted = multipliers is None
    ask = _Ask(draws, confidence, float(jnp.finfo(jnp.result_type(*jax.tree.leaves(point))).eps ** 0.5))
    if tolerance is not None:
        ask = ask._replace(tolerance=tolerance)
    notes: tuple[str, ...] = ()
    case = _case(problem, point, ask, key, on, halves=fitted and on == "samples")
    spent = case.judge.draws
    if multipliers is None:
        half = case.fit or _case(problem, point, ask, key, "samples", halves=False).judge
        y = fit(half.oracle, half.feeds, half.oracle.coordinates.ravel(point), jax.random.fold_in(key, _FIT), half.plan)
        spent += 0 if half is case.judge else half.draws
    else:
        y, notes = _given(case.judge.oracle, multipliers)
    if on == "heldout":
        notes += _not_held_out(problem)
    certificate = _judged(case, point, y, key, ask, notes, fitted, spent)
    if on == "heldout" or not problem.has_heldout:
        return certificate
    other = _case(problem, point, ask, key, "heldout", halves=False)
    beside = _judged(other, point, y, key, ask, notes + _not_held_out(problem), fitted, other.judge.draws)
    return dataclasses.replace(certificate, heldout=beside)


def _check(problem: Any, draws: Any, confidence: Any, on: Any) -> None:
    if not isinstance(problem, Problem):
        raise TypeError(f"certify takes an lx.Problem first, found {type(problem).__name__}.")
    if draws is not None and (not isinstance(draws, int | np.integer) or draws < 1):
        raise ValueError(f"draws must be a positive integer, or None for all rows of the data, found {draws!r}.")
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence must be at least 0.5 and below 1, found {confidence!r}.")
    if on not in ON:
        raise ValueError(f"on must be one of {', '.join(map(repr, ON))}, found {on!r}.")
    if on == "heldout" and not problem.has_heldout:
        raise ValueError('on="heldout" needs a problem with heldout=, found none. Give lx.Problem a source for it.')


class _Ask(NamedTuple):
    draws: int | None
    confidence: float
    tolerance: float


class Part(NamedTuple):
    """Samples to look at, and the oracle that looks."""

    oracle: Oracle
    feeds: Feeds
    plan: Plan
    draws: int


class _Case(NamedTuple):
    """What a certificate is about, and the samples for it."""

    judge: Part
    fit: Part | None  # None: multipliers are not fitted here
    population: bool
    exact: bool
    about: str


# --- which samples


def _case(problem: Problem, point: PyTree, ask: _Ask, key: Key[Array, ""], on: str, halves: bool) -> _Case:
    fresh = _held_out(problem) if on == "heldout" else set()
    problem = (problem.on_heldout() if on == "heldout" else problem).without_heldout()  # with or without: one program
    sources = problem.sources
    if on == "samples" and _all_rows(sources, ask.draws):
        part = _exactly(problem, point)
        about = f"about all {_rows(sources)} rows of the data" if part.draws else "about the problem, nothing is random"
        return _Case(part, part if halves else None, population=False, exact=True, about=about)
    wanted = _samples_wanted(sources, ask.draws, fresh)
    read = {i: _read(source, wanted) for i, source in enumerate(sources) if isinstance(source, Stream)}
    sources = tuple(read.get(i, source) for i, source in enumerate(sources))
    once = dict(read)  # whose rows are a sample of their own, each to be used once
    once.update({i: source for i, source in enumerate(sources) if i in fresh and isinstance(source, Dataset)})
    wanted = min([wanted, *map(len, once.values())])
    least = FEWEST_BATCHES * (2 if halves else 1)
    if wanted < least:
        raise ValueError(
            f"there are {wanted} samples for the certificate, and it needs at least {least}"
            f"{' (half of them to fit the multipliers)' if halves else ''}. Raise draws, or give more rows."
        )
    first = wanted // 2 if halves else 0
    shuffle = jax.random.fold_in(key, _SHUFFLE)
    orders = {
        i: jnp.arange(len(rows)) if i in read else jax.random.permutation(shuffle, len(rows))
        for i, rows in once.items()
    }
    fit_part = _sampled(problem, point, sources, orders, 0, first) if halves else None
    judge_part = _sampled(problem, point, sources, orders, first, wanted - first)
    random = [source for source in sources if source is not None]
    repeated = {i for i, source in enumerate(problem.sources) if isinstance(source, Stream) and source.repeat}
    about_rows = {
        i: i in repeated or (isinstance(s, Dataset | Stratified) and i not in once)
        for i, s in enumerate(sources)
        if s is not None
    }
    population = not (any(about_rows[i] for i in fresh) if fresh else all(about_rows.values()))
    if on == "heldout":
        about = "on held-out rows, about the distribution behind them" if population else "about the held-out rows"
    elif population:
        about = "about the distribution"
    elif repeated:
        about = "about the rows that the Stream repeats, by a sample of them"
    else:
        about = f"about the {_rows(random)} rows of the data, by a sample of them"
    return _Case(judge_part, fit_part, population, exact=False, about=about)


def _held_out(problem: Problem) -> set[int]:
    """Which of its sources have held-out rows."""
    own = (c.heldout for c in problem.constraints.values() if isinstance(c.samples, AbstractSource))
    return {i for i, rows in enumerate((problem.heldout, *own)) if rows is not None}


def _all_rows(sources: tuple[AbstractSource | None, ...], draws: int | None) -> bool:
    random = [source for source in sources if source is not None]
    rows = [len(source) for source in random if isinstance(source, Dataset)]
    return len(rows) == len(random) and (draws is None or sum(rows) <= draws)


def _rows(sources: Any) -> str:
    counts = [jax.tree.leaves(s.arrays)[0].shape[0] for s in sources if isinstance(s, Dataset | Stratified)]
    return " + ".join(f"{count:,}" for count in counts)


def _samples_wanted(sources: tuple[AbstractSource | None, ...], draws: int | None, fresh: set[int]) -> int:
    if draws is not None:
        return draws // max(sum(source.rows_per_sample for source in sources if source is not None), 1)
    held = [len(source) for i in fresh if isinstance(source := sources[i], Dataset)]
    if held:
        return min(held)
    kinds = sorted({type(source).__name__ for source in sources if source is not None})
    raise ValueError(f"draws=None uses all rows, which needs a Dataset, found {', '.join(kinds)}. Say draws=10_000.")


def _read(stream: Stream, rows: int) -> Dataset:
    """The next rows of a stream."""

    def batches() -> Iterator[PyTree]:
        have = 0
        for batch in read:
            yield jax.tree.map(np.asarray, batch)
            have += len(jax.tree.leaves(batch)[0])
            if have >= rows:
                return

    read = stream.read()
    pieces = list(batches())
    stream.warn_of(read)
    if not pieces:
        raise ValueError("the Stream has no rows left for a certificate. Give it more, or a held-out source.")
    return Dataset(jax.tree.map(lambda *parts: np.concatenate(parts)[:rows], *pieces))


def _bound(problem: Problem, point: PyTree, sources: tuple[AbstractSource | None, ...]) -> tuple[Oracle, int]:
    """The oracle, for one sample at a time, and how many it may be."""
    structures = tuple(sample_structure(source) for source in sources)
    oracle = bind(problem, point, structures, batch_size=1, copies=1, has_slacks=False)
    return oracle, most_together(oracle, point, structures)


def _exactly(problem: Problem, point: PyTree) -> Part:
    sources = problem.sources
    rows = [len(source) for source in sources if isinstance(source, Dataset)]
    oracle, together = _bound(problem, point, sources)
    plan = plan_for_all(max(rows, default=1), together)
    feeds = tuple(AllRows(source, len(source)) if isinstance(source, Dataset) else None for source in sources)
    return Part(dataclasses.replace(oracle, batch_size=plan.count), feeds, plan, sum(rows))


def _sampled(
    problem: Problem,
    point: PyTree,
    sources: tuple[AbstractSource | None, ...],
    orders: dict[int, Array],
    first: int,
    samples: int,
) -> Part:
    oracle, together = _bound(problem, point, sources)
    plan = plan_for(samples, oracle.dimension, together)

    def feed(i: int, source: AbstractSource | None) -> AbstractFeed | None:
        if source is None:
            return None
        if i in orders:
            return InOrder(source, orders[i][first : first + int(plan.samples)])
        return WithReplacement(source, len(source)) if isinstance(source, Dataset) else Fresh(source)

    rows = sum(source.rows_per_sample for source in sources if source is not None)
    feeds = tuple(feed(i, source) for i, source in enumerate(sources))
    return Part(dataclasses.replace(oracle, batch_size=plan.count), feeds, plan, int(rows * plan.samples))


# --- what they show


@eqx.filter_jit
def fit(oracle: Oracle, feeds: Feeds, z: Vector, key: Key[Array, ""], plan: Plan) -> Float[Array, " m"]:
    """Least-squares multipliers, of the residuals."""
    if not oracle.rows:
        return jnp.zeros(0, oracle.dtype)
    return fit_multipliers(oracle, feeds, z, key, plan, _to_cone(oracle, z))


def judge(
    oracle: Oracle, feeds: Feeds, z: Vector, y: Float[Array, " m"], key: Key[Array, ""], plan: Plan, at: Level
) -> Findings:
    """Every interval of a certificate, for multipliers of the residuals that do not depend on these samples.

    One compiled program; for large x several, so that each has the memory that the others have left.
    """
    whole = _judge if is_large(plan.batches, z.size) else _judge_at_once
    return whole(oracle, feeds, z, y, key, plan, at)


def _judge(
    oracle: Oracle, feeds: Feeds, z: Vector, y: Float[Array, " m"], key: Key[Array, ""], plan: Plan, at: Level
) -> Findings:
    return findings(oracle, _means(oracle, feeds, z, y, key, plan), z, y, at)


_judge_at_once = eqx.filter_jit(_judge)


@eqx.filter_jit
def _means(oracle: Oracle, feeds: Feeds, z: Vector, y: Float[Array, " m"], key: Key[Array, ""], plan: Plan) -> Means:
    def lagrangian(view: View) -> Vector:
        return view.pull(oracle.split(y))

    return batch_means(oracle, feeds, z, key, plan, lagrangian, apart=True)


def findings(oracle: Oracle, means: Means, z: Vector, y: Float[Array, " m"], at: Level) -> Findings:
    """The same from batch means of the objective, the residuals and the gradient of the Lagrangian."""
    bends = not isinstance(oracle.problem.simple, Everything | Zero)
    lengths = {"stationarity": _stationarity(oracle, means.gradient, z, at, bends)}
    if bends:
        lengths["natural_residual"] = _natural_residual(oracle, means.gradient, z, at)
    return _intervals(oracle, means._replace(gradient=None), z, y, at, lengths)


@eqx.filter_jit
def _stationarity(oracle: Oracle, spread: Spread, z: Vector, at: Level, bends: bool) -> Errors:
    return errors(spread, _to_cone(oracle, z), at, kinks=bends)


@eqx.filter_jit
def _natural_residual(oracle: Oracle, spread: Spread, z: Vector, at: Level) -> Errors:
    return errors(spread, _one_step(oracle, z), at, kinks=True)


@eqx.filter_jit
def _intervals(
    oracle: Oracle, means: Means, z: Vector, y: Float[Array, " m"], at: Level, lengths: dict[str, Errors]
) -> Findings:
    simple, x = oracle.problem.simple, oracle.x_of(z)
    outside = z - oracle.coordinates.ravel(simple.prox(x, 0.0))
    inside = oracle.problem.within.contains(x) & jnp.isfinite(simple.value(x))
    gap = jnp.where(inside, 0, jnp.sqrt(jnp.sum(outside**2)))

    def violation(residuals: Float[Array, " m"]) -> Float[Array, " m+1"]:
        return jnp.append(jnp.where(oracle.inequality, jnp.maximum(residuals, 0), residuals), gap)

    def slackness(residuals: Float[Array, " m"]) -> Float[Array, " m"]:
        return jnp.where(oracle.inequality, y * residuals, 0)

    uneven = any(block.inequality for block in oracle.blocks)
    rows = Spread.of(means.residuals)
    if oracle.rows:
        lengths = lengths | {"feasibility": errors(rows, violation, at, kinks=uneven)}
    if uneven:
        lengths = lengths | {"complementarity": errors(rows, slackness, at, kinks=False)}
    together = jax.vmap(interval, (0, None))(jax.tree.map(lambda *each: jnp.stack(each), *lengths.values()), at)
    found = {name: jax.tree.map(lambda each, i=i: each[i], together) for i, name in enumerate(lengths)}
    found = {"natural_residual": found["stationarity"]} | found
    found = {"feasibility": _exact(gap), "complementarity": _exact(0 * gap)} | found
    numbers = jnp.concatenate([means.objective[:, None], means.residuals], axis=1)
    each = mean_intervals(numbers, at._replace(rows=jnp.append(at.student, at.rows)))
    return Findings(
        **found,
        objective=jax.tree.map(lambda part: part[0], each),
        residuals=jax.tree.map(lambda part: part[1:], each),
        outside=gap,
    )


def _exact(value: Float[Array, ""]) -> Bounds:
    return Bounds(value, value, value, jnp.asarray(False))


def level_for(oracle: Oracle, plan: Plan, confidence: float) -> Level:
    """The rows of one named constraint are judged together."""
    together = np.asarray([block.size for block in oracle.blocks for _ in range(block.size)], float)
    return level(confidence, plan.batches, max(oracle.dimension, oracle.rows), together, oracle.dtype)


def _to_cone(oracle: Oracle, z: Vector) -> Any:
    """g -> what is left of -g beside the normal cone, or the subdifferential, at x."""
    simple, coordinates, x = oracle.problem.simple, oracle.coordinates, oracle.x_of(z)

    def residual(gradient: Vector) -> Vector:
        nearest = simple.nearest_subgradient(x, coordinates.unravel(-gradient))
        return -gradient - coordinates.ravel(nearest)

    return residual


def _one_step(oracle: Oracle, z: Vector) -> Any:
    """g -> x - P(x - g)."""
    simple, coordinates = oracle.problem.simple, oracle.coordinates
    return lambda gradient: z - coordinates.ravel(simple.prox(coordinates.unravel(z - gradient), 1.0))


def _not_held_out(problem: Problem) -> tuple[str, ...]:
    """A word on what a certificate on held-out rows cannot show."""
    constraints = problem.constraints.items()
    own = [name for name, c in constraints if isinstance(c.samples, Dataset | Stratified) and c.heldout is None]
    if not own:
        return ()
    names = ", ".join(map(repr, own))
    return (f"rows of their own and no heldout= have {names}: they are judged on the rows that they were trained on.",)


def _given(oracle: Oracle, multipliers: Mapping[str, ArrayLike]) -> tuple[Float[Array, " m"], tuple[str, ...]]:
    """The user's multipliers as those of the residuals, and what had to be changed."""
    names = [block.name for block in oracle.blocks]
    if not isinstance(multipliers, Mapping) or set(multipliers) != set(names):
        found = sorted(multipliers) if isinstance(multipliers, Mapping) else type(multipliers).__name__
        raise ValueError(
            f"multipliers must be a dictionary with the names {names}, found {found}. Take result.multipliers, or None."
        )
    parts, notes = [jnp.zeros(0, oracle.dtype)], []
    for block in oracle.blocks:
        given = jnp.asarray(multipliers[block.name], oracle.dtype)
        if given.shape not in ((), block.shape):
            raise ValueError(
                f"the multipliers of {block.name!r} must have shape {block.shape}, found {describe_shape(given)}."
            )
        own = oracle.problem.constraints[block.name].sign * jnp.broadcast_to(given, block.shape).ravel()
        if block.inequality and bool(jnp.any(own < 0)):
            notes.append(
                f"{int(jnp.sum(own < 0))} of the multipliers of {block.name!r} had a sign that the constraint does not "
                f"allow (by up to {float(-jnp.min(own)):.3g}) and count as 0."
            )
            own = jnp.maximum(own, 0)
        parts.append(own)
    return jnp.concatenate(parts), tuple(notes)


# --- in words


def _judged(
    case: _Case,
    point: PyTree,
    y: Float[Array, " m"],
    key: Key[Array, ""],
    ask: _Ask,
    notes: tuple[str, ...],
    fitted: bool,
    spent: int,
) -> Certificate:
    oracle, feeds, plan, _ = case.judge
    at = level_for(oracle, plan, ask.confidence)
    found = judge(oracle, feeds, oracle.coordinates.ravel(point), y, jax.random.fold_in(key, _JUDGE), plan, at)
    return worded(case, found, y, at, ask, notes, fitted, spent)


def worded(
    case: _Case,
    found: Findings,
    y: Float[Array, " m"],
    at: Level,
    ask: _Ask,
    notes: tuple[str, ...],
    fitted: bool,
    spent: int,
) -> Certificate:
    oracle, plan, found = case.judge.oracle, case.judge.plan, jax.tree.map(np.asarray, found)
    return Certificate(
        stationarity=_interval(found.stationarity),
        feasibility=_interval(found.feasibility),
        complementarity=_interval(found.complementarity),
        natural_residual=_interval(found.natural_residual),
        objective=_interval(found.objective),
        constraints={block.name: _report(oracle, block, found.residuals, at, ask) for block in oracle.blocks},
        multipliers={name: np.asarray(value) for name, value in oracle.named_multipliers(y).items()},
        fitted=fitted,
        population=case.population,
        exact=case.exact,
        outside=float(found.outside),
        about=case.about,
        heldout=None,
        draws=spent,
        confidence=ask.confidence,
        tolerance=ask.tolerance,
        warnings=notes + _heavy(oracle, found, plan),
    )


def _interval(bounds: Bounds) -> Interval:
    return Interval(float(bounds.estimate), float(bounds.low), float(bounds.high))


def _report(oracle: Oracle, block: Block, residuals: Bounds, at: Level, ask: _Ask) -> ConstraintReport:
    constraint = oracle.problem.constraints[block.name]
    value, low, high = (np.asarray(part)[block.rows] for part in residuals[:3])
    error = (high - low) / (2 * np.maximum(at.rows[block.rows], 1))
    holds = _holds(value, low, high, error, block.inequality, ask.tolerance)
    bound = np.broadcast_to(np.asarray(constraint.bound), block.shape)
    ends = [constraint.sign * part.reshape(block.shape) + bound for part in (low, high)]
    return ConstraintReport(
        value=constraint.sign * value.reshape(block.shape) + bound,
        low=np.minimum(*ends),
        high=np.maximum(*ends),
        relation=constraint.relation,
        bound=bound,
        holds=holds,
    )


def _holds(
    value: np.ndarray, low: np.ndarray, high: np.ndarray, error: np.ndarray, inequality: bool, tolerance: float
) -> str:
    if inequality:
        surely, violated, probably = high <= tolerance, low > tolerance, value <= tolerance
    else:
        surely = np.maximum(-low, high) <= tolerance
        violated = np.maximum(low, -high) > tolerance
        probably = np.abs(value) <= error + tolerance
    worst: Bool[np.ndarray, " rows"] = np.select([violated, surely, probably], [3, 0, 1], 2)
    return HOLDS[int(np.max(np.where(np.isfinite(value), worst, 3)))]


def _heavy(oracle: Oracle, found: Findings, plan: Plan) -> tuple[str, ...]:
    """Where one batch is farther off than normal batches would be."""
    names = [block.name for block in oracle.blocks if np.any(found.residuals.heavy[block.rows])]
    suspects = [
        *(["stationarity"] if found.stationarity.heavy else []),
        *(["complementarity"] if found.complementarity.heavy else []),
        *(["feasibility"] if found.feasibility.heavy and not names else []),
        *(f"constraint {name!r}" for name in names),
    ]
    if not suspects:
        return ()
    return (
        f"heavy tails: one of {plan.batches} batches of {int(plan.steps) * plan.count:,} samples lies farther off than "
        f"normal noise would let it (for {', '.join(suspects)}). Rare large values may not have been seen, and the "
        "interval may be too short. Draw more, or bound what a single sample can contribute.",
    )
