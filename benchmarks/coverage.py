"""How often the intervals of the certificate hold the truth, and how long they are.

    python -m benchmarks.coverage                 # 2,000 repetitions of each case, written to benchmarks/results

Every case is a linear objective with noise, an inequality with a noisy gradient, and a set: all that is estimated is
known exactly. A case is "covered" when the interval holds the truth, for the multipliers that the certificate
used. The yardstick is an oracle that knows the law of the noise and the face that x lies on, and has all the draws.
"""

import argparse
import datetime as dt
import os
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import lariax as lx
from benchmarks._results import write
from lariax.certificate import SequentialTest, _samples
from lariax.certificate import _estimates as inside
from lariax.certificate._draws import SampledPoint
from lariax.certificate._sizes import sizes_at

D = 12
TITLE = "## Coverage of the certificate"


class Normal(eqx.Module):
    """Independent normal entries."""

    def __call__(self, key):
        return jax.random.normal(key, (2, D))


class Pareto(eqx.Module):
    """Independent entries of mean 0 with a Pareto tail of index `tail` on both sides, or on one."""

    tail: jax.Array
    one_sided: jax.Array

    def __call__(self, key):
        side, size = jax.random.split(key)
        pareto = jax.random.uniform(size, (2, D), minval=1e-12) ** (-1 / self.tail) - 1
        both = pareto * jnp.where(jax.random.bernoulli(side, 0.5, (2, D)), 1, -1)
        return jnp.where(self.one_sided, pareto - 1 / (self.tail - 1), both)


class Objective(eqx.Module):
    slope: jax.Array
    scale: jax.Array

    def __call__(self, x, noise):
        return (self.slope + self.scale * noise[0]) @ x


class Inequality(eqx.Module):
    normal: jax.Array
    scale: jax.Array

    def __call__(self, x, noise):
        return (self.normal + self.scale * noise[1]) @ x


class Case(NamedTuple):
    """A point and the truth about it. `given` is the multiplier to judge; NaN: fitted."""

    name: str
    slope: Any
    x: Any
    within: Any
    normal: Any = np.zeros(D)
    bound: float = 1.0
    given: float = 0.0
    noise: Any = np.linspace(0.5, 2.0, D)
    constraint_noise: float = 0.0
    tail: float = np.inf
    one_sided: bool = False

    @property
    def fitted(self) -> bool:
        return bool(np.isnan(self.given))


ORTHANT = lx.sets.Box(np.zeros(D), np.full(D, np.inf))
INSIDE, EDGE = np.full(D, 0.5), np.where(np.arange(D) < 6, 0.0, 0.5)
VERTEX = np.eye(D)[0]
ONES = np.ones(D) / np.sqrt(D)


def cases() -> list[Case]:
    simplex = lx.sets.Simplex()
    uphill = np.where(np.arange(D) < 6, 1.0, 0.0)  # holds x on its face
    return [
        Case("interior", 0.3 * np.ones(D), INSIDE, ORTHANT),
        Case("interior, small", 0.02 * np.ones(D), INSIDE, ORTHANT),
        Case("at the solution", np.zeros(D), INSIDE, ORTHANT),
        Case("face of a box", uphill + 0.1, EDGE, ORTHANT),
        Case("face of a box, solution", uphill, EDGE, ORTHANT),
        Case("face of a box, degenerate", np.zeros(D), EDGE, ORTHANT),
        Case("face of a box, leaving it", -0.1 * uphill, EDGE, ORTHANT),
        Case("simplex vertex", np.where(np.arange(D) == 3, -0.3, 0.5 * (np.arange(D) > 0)), VERTEX, simplex),
        Case("simplex vertex, solution", 1.0 * (np.arange(D) > 0), VERTEX, simplex),
        Case("simplex vertex, degenerate", np.zeros(D), VERTEX, simplex),
        Case("active inequality, given", -ONES, INSIDE, ORTHANT, ONES, float(ONES @ INSIDE), 1.2, constraint_noise=0.5),
        Case("active, solution, given", -ONES, INSIDE, ORTHANT, ONES, float(ONES @ INSIDE), 1.0, constraint_noise=0.5),
        Case(
            "active, solution, fitted", -ONES, INSIDE, ORTHANT, ONES, float(ONES @ INSIDE), np.nan, constraint_noise=0.5
        ),
        Case("violated, fitted", 0.2 - ONES, EDGE, ORTHANT, ONES, 0.5, np.nan, constraint_noise=0.5),
        Case("inactive, fitted", 0.2 - ONES, EDGE, ORTHANT, ONES, 2.0, np.nan, constraint_noise=0.5),
        Case("heavy tails (index 2.5)", 0.3 * np.ones(D), INSIDE, ORTHANT, tail=2.5),
        Case("heavy tails (2.5), solution", np.zeros(D), EDGE, ORTHANT, tail=2.5),
        Case(
            "heavy tails (2.5), fitted",
            -ONES,
            INSIDE,
            ORTHANT,
            ONES,
            float(ONES @ INSIDE),
            np.nan,
            constraint_noise=0.5,
            tail=2.5,
        ),
        Case("heavy and skewed (3)", 0.3 * np.ones(D), INSIDE, ORTHANT, tail=3.0, one_sided=True),
        Case("heavy and skewed (2.2)", 0.3 * np.ones(D), INSIDE, ORTHANT, tail=2.2, one_sided=True),
        Case("infinite variance (1.7)", 0.3 * np.ones(D), INSIDE, ORTHANT, tail=1.7, one_sided=True),
    ]


class Outcome(NamedTuple):
    """Repetitions of one case, one array each."""

    covered: dict[str, np.ndarray]  # by measure
    warned: np.ndarray
    low: np.ndarray
    high: np.ndarray
    truth: np.ndarray


def problem_of(case: Case) -> lx.Problem:
    array = jnp.asarray
    noise = Pareto(array(case.tail), array(case.one_sided)) if np.isfinite(case.tail) else Normal()
    return lx.Problem(
        Objective(array(case.slope), array(case.noise)),
        samples=lx.Distribution(noise),
        constraints={
            "q": lx.AtMost(Inequality(array(case.normal), array(case.constraint_noise)), array(float(case.bound)))
        },
        within=case.within,
    )


@eqx.filter_jit
def _repeat(problem: lx.Problem, x: Any, given: Any, keys: Any, draws: int, at: Any) -> Any:
    """Multipliers and findings of a certificate, once for each key. Half of the draws are for the multipliers."""

    def one(key):
        case = _samples.samples_for(problem, x, draws, key, fits=True)
        first, second = (
            SampledPoint(case.oracle, case.feeds, x, key, plan) for plan in (case.half(False), case.half(True))
        )

        none = jnp.zeros((), x.dtype)
        fit = inside.fit(first, none)
        y = jnp.where(jnp.isnan(given), fit.multipliers, given)
        fit = fit._replace(face=jnp.where(jnp.isnan(given), fit.face, 0))  # of what is given nothing can be taken away
        return y, inside.estimate(second, y, none, at, fit)

    return jax.lax.map(one, keys)


@eqx.filter_jit
def _truths(problem: lx.Problem, x: Any, slopes: Any) -> Any:
    """Stationarity and the natural residual of x for gradients of the Lagrangian."""
    within = problem.within
    return (
        jax.vmap(lambda g: within.stationarity(x, g))(slopes),
        jax.vmap(lambda g: jnp.linalg.norm(x - within.project(x - g)))(slopes),
    )


def repeat(case: Case, repetitions: int, draws: int, confidence: float = 0.95, seed: int = 0) -> Outcome:
    """`draws` are those that judge; as many again fit the multipliers."""
    keys = jax.random.split(jax.random.key(seed), repetitions)
    x = jnp.asarray(case.x, float)
    problem = problem_of(case)
    samples = _samples.samples_for(problem, x, 2 * draws, keys[0], fits=True)
    batches = samples.half(True).batches
    at = inside.levels_for(samples.oracle, batches, 2 * batches, confidence)
    y, found = _repeat(problem, x, jnp.asarray(float(case.given)), keys, 2 * draws, at)
    slope = jnp.asarray(case.slope) + y * jnp.asarray(case.normal)
    stationarity, natural = map(np.asarray, _truths(problem, x, slope))
    residual = float(np.asarray(case.normal) @ np.asarray(case.x) - case.bound)
    truths = {
        "stationarity": stationarity,
        "natural residual": natural,
        "feasibility": np.full(repetitions, max(residual, 0.0)),
        "complementarity": np.abs(np.asarray(y)[:, 0] * residual),
        "q": np.full(repetitions, residual),
    }
    bounds = {
        "stationarity": _absolute(found.measures.stationarity),
        "natural residual": found.natural_residual,
        "feasibility": _absolute(found.measures.feasibility),
        "complementarity": _absolute(found.measures.complementarity),
        "q": jax.tree.map(lambda each: each[:, 0], found.residuals),
    }
    rounding = 1e-9
    covered = {
        name: np.asarray((bounds[name].low <= truth + rounding) & (truth <= bounds[name].high + rounding))
        for name, truth in truths.items()
    }
    return Outcome(
        covered,
        np.asarray(bounds["stationarity"].heavy),
        np.asarray(bounds["stationarity"].low),
        np.asarray(bounds["stationarity"].high),
        stationarity,
    )


def _absolute(bounds: Any) -> Any:
    """In the units of the problem."""
    return jax.tree.map(lambda part: part[:, 0], bounds)


@eqx.filter_jit
def _on_face(problem: lx.Problem, x: Any, mean: Any, errors: Any) -> Any:
    """The residual of a gradient, and what errors of the gradient do to it on the face where it lies."""
    oracle, _ = _samples.bound(problem, x, problem.sources)
    value, face = jax.linearize(inside.to_cone(oracle, x), mean)
    return value, jax.vmap(face)(errors)


def oracle_width(case: Case, draws: int, confidence: float = 0.95) -> float:
    """The mean length of the interval of one who knows the noise: its law, and the face, but not the mean.

    From T = ||mean||^2 - noise on the face, as in the certificate, with the true law of (A, B) instead of an estimate.
    NaN where the noise has no normal limit at these draws, or x's place leaves nothing to estimate.
    """
    if np.isfinite(case.tail):
        return float("nan")
    rng = np.random.default_rng(0)
    problem, x = problem_of(case), jnp.asarray(case.x, float)
    y = 1.0 if case.fitted else case.given
    if case.name.endswith(", fitted") and "solution" not in case.name:
        return float("nan")  # the multiplier varies, and the face with it
    mean = jnp.asarray(case.slope) + y * jnp.asarray(case.normal)
    scale = np.sqrt(np.asarray(case.noise) ** 2 + (y * case.constraint_noise) ** 2) / np.sqrt(draws)
    nudge = mean if "degenerate" not in case.name else mean - 1e-6  # all that may be free is free
    value, errors = map(np.asarray, _on_face(problem, x, nudge, jnp.asarray(scale * rng.standard_normal((4000, D)))))
    value = value if "degenerate" not in case.name else 0 * value
    noise = np.mean(np.sum(errors**2, axis=1))
    if noise < 1e-20:
        return float("nan")
    length = np.linalg.norm(value)
    direction = value / length if length > 1e-12 else errors[0] / np.linalg.norm(errors[0])
    first, second = errors @ direction, np.sum(errors**2, axis=1) - noise
    widths = []
    for error in errors[:300]:
        squared = np.sum((value + error) ** 2) - noise
        lengths = np.maximum(np.sqrt(np.maximum(first**2 + squared - second, 0)) - first, 0)
        low, high = np.quantile(lengths, [(1 - confidence) / 2, (1 + confidence) / 2])
        widths.append(high - low)
    return float(np.mean(widths))


def table(repetitions: int, draws: int) -> list[str]:
    lines = [
        "| case | stationarity | natural residual | feasibility | complementarity | constraint | warned | "
        "covered or warned | width | oracle | ratio | width at 4 times the draws |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases():
        began = time.perf_counter()
        out = repeat(case, repetitions, draws)
        more = repeat(case, max(repetitions // 10, 50), 4 * draws, seed=1)
        width, shrunk = np.mean(out.high - out.low), np.mean(more.high - more.low)
        oracle = oracle_width(case, draws * (2 if case.fitted else 1))
        honest = np.mean(out.covered["stationarity"] | out.warned)
        cells = [f"{100 * np.mean(out.covered[name]):.1f}" for name in out.covered]
        cells += [f"{100 * np.mean(out.warned):.1f}", f"{100 * honest:.1f}", f"{width:.4f}"]
        cells += ["", ""] if np.isnan(oracle) else [f"{oracle:.4f}", f"{width / oracle:.2f}"]
        cells += [f"{shrunk / width:.2f} of it" if width > 0 else ""]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
        print(lines[-1], f"{time.perf_counter() - began:.0f} s", flush=True)
    return lines


def wrong_stops(runs: int, looks: int, draws: int, above: float) -> float:
    """How many of the runs stop at one of the looks, at a point whose stationarity is `above` times the tolerance."""
    case = cases()[0]
    tolerance = float(np.linalg.norm(case.slope)) / above
    test = SequentialTest(tolerance)
    stopped = np.zeros(runs, bool)
    for look in range(1, looks + 1):
        out = repeat(case, runs, draws, test.confidence_at(look), seed=look)
        stopped |= out.high <= tolerance
    return float(np.mean(stopped))


def cost() -> list[str]:
    """Seconds of `lx.certify` after compiling on the 50-variable problem, and what it takes for a large x."""
    a = jnp.linspace(1.0, 2.0, 50)
    problem = lx.Problem(
        lambda x, xi: jnp.sum(1 - jnp.exp(-((x - a - 0.3 * xi) ** 2) / 4)),
        samples=lx.Distribution(lambda key: jax.random.normal(key, (50,))),
        constraints={
            "c": lx.Equal(
                lambda x, z: jnp.stack([x @ x - 4 + 0.5 * z[0] * x[0], x[0] - x[1] + 0.1 * z[1]]),
                samples=lx.Distribution(lambda key: jax.random.normal(key, (2,))),
            )
        },
    )
    large = lx.Problem(
        lambda x, key: 0.5 * jnp.sum((x - jax.random.normal(jax.random.wrap_key_data(key), x.shape)) ** 2),
        samples=lx.Distribution(jax.random.key_data),
        constraints={"sphere": lx.AtMost(lambda x: x @ x, 1.0, samples=None)},
    )
    lines = ["| x | draws | seconds of CPU after compiling |", "|---|---|---|"]
    for name, which, x, draws in (
        ("50 variables", problem, jnp.full(50, 0.3), 10_000),
        ("50 variables", problem, jnp.full(50, 0.3), 100_000),
        ("50 variables", problem, jnp.full(50, 0.3), 1_000_000),
        ("1,000,000 variables", large, jnp.zeros(1_000_000, jnp.float32), 256),
    ):
        lx.certify(which, x, draws=draws)
        began = time.process_time()
        made = lx.certify(which, x, draws=draws, seed=1)
        lines.append(f"| {name} | {made.draws:,} | {time.process_time() - began:.2f} |")
        print(lines[-1], flush=True)
    return lines


def memory(side: int = 1000) -> list[str]:
    """What the compiler sets aside for a certificate of a linear layer, in copies of it."""
    key, x = jax.random.key(0), jnp.full(side**2, 1 / side**2, jnp.float32)
    lines = [
        "| x lies | fit a multiplier | sizes | draw | stationarity | natural residual |",
        "|---|---|---|---|---|---|",
    ]
    places = {
        "anywhere": {},
        "in a box": {"within": lx.sets.Box(-1.0, 1.0)},
        "under a 1-norm": {"regularizer": lx.prox.L1(0.1)},
        "in a simplex": {"within": lx.sets.Simplex()},
    }
    for place, options in places.items():
        problem = lx.Problem(
            lambda x, z: 0.5 * jnp.sum((x.reshape(side, side) @ z - 1) ** 2),
            samples=lx.Distribution(lambda key: jax.random.normal(key, (side,), jnp.float32)),
            constraints={"norm": lx.AtMost(lambda x: x @ x, 1.0, samples=None)},
            **options,
        )
        case = _samples.samples_for(problem, x, 10_000, key, fits=True)
        plan, y = case.half(True), jnp.zeros(1, jnp.float32)
        point = SampledPoint(case.oracle, case.feeds, x, key, plan)
        at = inside.levels_for(case.oracle, plan.batches, plan.batches, 0.95).lengths
        draw = (inside.means_of, point, y)
        shapes = eqx.filter_eval_shape(*draw).gradient
        spread = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        held = sum(leaf.nbytes for leaf in spread)
        copies = [
            _bytes(inside.fit, point, jnp.zeros((), x.dtype)),
            _bytes(sizes_at, point, y, jnp.zeros((), x.dtype)),
            _bytes(*draw),
            held + _bytes(inside.stationarity, case.oracle, spread, x, at, bool(options), x, x[None]),
        ]
        if options:
            copies.append(held + _bytes(inside.natural_residual, case.oracle, spread, x, at))
        cells = [f"{bytes_ / x.nbytes:.1f}" for bytes_ in copies] + [""] * (5 - len(copies))
        lines.append(f"| {place} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def _bytes(program: Any, *arguments: Any) -> int:
    """Beyond the arguments."""
    account = program.lower(*arguments).compile().compiled.memory_analysis()
    return account.temp_size_in_bytes + account.output_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=2048)
    options = parser.parse_args()
    costs, copies = cost(), memory()
    runs = options.repetitions // 2
    stops = wrong_stops(runs, looks=8, draws=options.draws // 2, above=1.01)
    print(f"wrong stops: {100 * stops:.1f} % of {runs:,} runs of 8 looks", flush=True)
    lines = [
        TITLE,
        "",
        f"`python -m benchmarks.coverage --repetitions {options.repetitions} --draws {options.draws}`, "
        f"{dt.date.today().isoformat()}, {os.cpu_count()} cores.",
        "",
        f"Intervals of 95 %: how often (in %) they hold the truth, over {options.repetitions:,} repetitions of "
        f"{options.draws:,} draws that judge and, where multipliers are fitted, as many that fit. 12 variables. "
        "The oracle knows the noise and the face, and has all the draws. Warned: of heavy tails.",
        "",
        *table(options.repetitions, options.draws),
        "",
        f"The sequential stop, {runs:,} runs of 8 looks where the truth is 1 % above the tolerance, at 95 %: "
        f"{100 * stops:.1f} % stop.",
        "",
        *costs,
        "",
        "Memory of a certificate of a linear layer of 1,000,000 weights in single precision, in copies of it beyond "
        "itself, as the compiler accounts for it; the parts come one after the other.",
        "",
        *copies,
    ]
    write("coverage", "\n".join(lines))


if __name__ == "__main__":
    main()
