"""Plans whose risk is bounded: power with wind, and a network of stocks."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.stats
from jaxtyping import Array, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._reference import kkt_point
from lariax.problem import AtMost, Dataset, Distribution, Problem
from lariax.risk import Chance, CVaR
from lariax.sets import Box

# --- power with wind


@entry
def dispatch(hours: int = 6, chance: float = 0.05, level: float = 0.9, reserve: float = 0.1) -> Entry:
    """Power plants beside a wind park, with bounded risks.

        minimise    sum_{g,t} a_g p_{g,t} + b_g p_{g,t}^2 / 2           p: power of plant g in hour t
        subject to  P( load_t - wind_t - sum_g p_{g,t} > 0 )  <=  chance        in each hour
                    CVaR( mean over t of load_t - wind_t - sum_g p_{g,t} )  <=  -reserve
                    |p_{g,t+1} - p_{g,t}|  <=  ramp_g,    0 <= p_{g,t} <= 3

    A cheap plant that changes slowly, a dearer one, and a turbine that follows anything at a price. Tomorrow's wind is
    forecast; it errs by a quarter, and an error lasts for hours. In each hour the plants must carry the load with
    probability 1 - chance: that is a reserve for one bad hour. A calm that lasts all day is another risk, for which the
    mean of the worst 1 - level of all days counts: even then the plants have `reserve` to spare. The multipliers are
    prices. Those of the chances say what security is worth in an hour: most in hour 3, where the ramps leave the last
    of the rise to the turbine. That of the CVaR is the price of energy held back for a calm day. Nobody has to
    state what lies behind a probability or a CVaR; `result.risk` tells the value at risk.

    Scale: 6 hours, 3 plants: 18 unknowns, 7 risks, 30 ramps.
    Check: the wind's errors are normal, so each risk is a bound on a sum of powers; SLSQP and Newton on these give
        powers and prices, in powers; a normal density turns them into those of probabilities.
    Arguments:
        hours: how many.
        chance: of a lack of power in an hour.
        level: the worst 1 - level of the days count.
        reserve: to spare on average over such a day.

    >>> from lariax import gallery
    >>> case = gallery.dispatch(hours=2)
    >>> sorted(case.problem.constraints)
    ['calm', 'hour 1', 'hour 2', 'ramps']
    """
    if not (0 < chance < 1 and 0 < level < 1):
        raise ValueError(f"chance and level must lie between 0 and 1, found {chance!r} and {level!r}.")
    system = _system(hours)

    def short(p: Array, error: Array) -> Array:
        return system.load - system.wind - error - jnp.sum(p, axis=0)

    def in_hour(t: int) -> Any:
        return Chance(lambda p, error: short(p, error)[t], chance)

    problem = Problem(
        partial(_cost, system),
        samples=Distribution(lambda key: system.root @ jax.random.normal(key, (hours,))),
        constraints={
            **{f"hour {t + 1}": in_hour(t) for t in range(hours)},
            "calm": AtMost(CVaR(lambda p, error: jnp.mean(short(p, error)), level), jnp.asarray(-reserve)),
            "ramps": AtMost(partial(_ramps, system), jnp.asarray(0.0), samples=None),
        },
        within=Box(0.0, 3.0),
    )
    return Entry(
        problem=problem,
        x0=jnp.ones((3, hours)),
        defaults={"batch_size": 64, "iterations": 5_000},
        solve=partial(_solve_dispatch, system, chance, level, reserve),
        draw=partial(_draw_dispatch, system),
        measure=partial(_measure_dispatch, system, level),
    )


class _System(NamedTuple):
    load: np.ndarray  # (hours,)
    wind: np.ndarray  # (hours,), forecast
    root: np.ndarray  # (hours, hours), of the errors' covariance
    price: np.ndarray  # (3, 1), of the first unit of each plant
    slope: np.ndarray  # (3, 1), of the price
    ramp: np.ndarray  # (3, 1)

    @property
    def deviation(self) -> np.ndarray:
        return np.linalg.norm(self.root, axis=1)

    @property
    def deviation_of_mean(self) -> float:
        return float(np.linalg.norm(self.root.mean(axis=0)))


def _system(hours: int) -> _System:
    day = np.linspace(0, 1, hours)
    load, wind = 3.0 + 1.2 * np.sin(np.pi * day) ** 2 + 0.6 * day, 1.2 - 0.6 * day
    apart = np.abs(np.subtract.outer(np.arange(hours), np.arange(hours)))
    covariance = 0.25**2 * np.outer(wind, wind) * 0.8**apart
    price, slope, ramp = np.array([[1.0, 1.6, 2.6], [0.5, 0.6, 0.8], [0.2, 0.5, 2.0]])[:, :, None]
    return _System(load, wind, np.linalg.cholesky(covariance), price, slope, ramp)


def _cost(system: _System, p: Any, error: Any = None) -> Any:
    return jnp.sum(system.price * p + system.slope * p**2 / 2)


def _ramps(system: _System, p: Any) -> Any:
    change = jnp.diff(p, axis=1)
    return jnp.concatenate([(change - system.ramp).ravel(), (-change - system.ramp).ravel()])


def _solve_dispatch(system: _System, chance: float, level: float, reserve: float) -> Solution:
    hours, z = system.load.size, float(scipy.stats.norm.ppf(1 - chance))
    beyond = float(scipy.stats.norm.pdf(scipy.stats.norm.ppf(level))) / (1 - level)
    need, net = z * system.deviation, system.load - system.wind

    def residuals(flat: Any) -> Any:
        p = flat.reshape(3, hours)
        short = net - jnp.sum(p, axis=0)
        calm = jnp.mean(short) + beyond * system.deviation_of_mean + reserve
        return jnp.concatenate([short + need, calm[None], _ramps(system, p)])

    rows = hours + 1 + 6 * (hours - 1)
    found = kkt_point(
        lambda flat: _cost(system, flat.reshape(3, hours)),
        residuals,
        [True] * rows,
        np.ones(3 * hours),
        bounds=(0.0, 3.0),
    )
    prices = found.multipliers[:hours] * system.deviation / scipy.stats.norm.pdf(z)  # from powers to probabilities
    return Solution(
        found.value,
        found.x.reshape(3, hours),
        {
            **{f"hour {t + 1}": np.asarray(prices[t]) for t in range(hours)},
            "calm": np.asarray(found.multipliers[hours]),
            "ramps": found.multipliers[hours + 1 :],
        },
    )


def _spare(system: _System, p: Any) -> np.ndarray:
    return np.sum(np.asarray(p, float), axis=0) + system.wind - system.load


def _measure_dispatch(system: _System, level: float, p: Any) -> dict[str, float]:
    spare = _spare(system, p)
    beyond = float(scipy.stats.norm.pdf(scipy.stats.norm.ppf(level))) / (1 - level)
    return {
        "cost": float(_cost(system, np.asarray(p, float))),
        "largest P(short of power)": float(np.max(scipy.stats.norm.cdf(-spare / system.deviation))),
        "to spare on calm days": float(np.mean(spare) - beyond * system.deviation_of_mean),
    }


def _draw_dispatch(system: _System, p: Any) -> list[Picture]:
    hours = np.arange(1, system.load.size + 1)
    power = np.asarray(p, float)
    curves = {
        **dict(zip(("base", "middle", "turbine"), power, strict=True)),
        "load less wind": system.load - system.wind,
    }
    return [
        Picture(
            "Power of three plants, and what is asked of them",
            "lines",
            {name: np.column_stack([hours, values]) for name, values in curves.items()},
            x_label="hour",
            y_label="power",
        )
    ]


# --- a network of stocks


@entry
def newsvendor_network(shops: int = 5, scenarios: int = 500, lost: float = 0.3, seed: int = 0) -> Entry:
    """Shops with a common stock that helps whoever runs out.

        minimise    sum_i c x_i + c_0 y + E[ sum_i h max(x_i - d_i, 0) ]          x: stocks of shops, y: common stock
        subject to  E[ max( sum_i max(d_i - x_i, 0) - y, 0 ) ]  <=  lost,    0 <= x, y <= 50

    Each shop orders before it knows its demand d_i. What is left over costs h, what is missing is sent from the common
    stock, and what is missing there too is a lost sale: on average at most `lost` of them. The common stock costs more
    (c_0 > c), but it pools: shops seldom run out together. The optimum keeps less than the mean
    demand at each shop. All functions of a demand have kinks; the default method sees them and averages its iterates.
    The multiplier is what one lost sale less costs. Demands are rows, as a planner has them: past weeks, lognormal
    with a common cause.

    Scale: 5 shops, 6 unknowns, 1 constraint, 500 rows.
    Check: over rows this is a linear program, with one more unknown for each row and each maximum; HiGHS solves it.
    Arguments:
        shops: how many.
        scenarios: rows of demands.
        lost: sales, on average.
        seed: of the demands.

    >>> from lariax import gallery
    >>> case = gallery.newsvendor_network(shops=2, scenarios=50)
    >>> {name: stock.shape for name, stock in sorted(case.x0.items())}
    {'common': (), 'shops': (2,)}
    """
    rng = np.random.default_rng(seed)
    size = np.linspace(4.0, 8.0, shops)
    demands = size * np.exp(0.4 * rng.normal(size=(scenarios, shops)) + 0.2 * rng.normal(size=(scenarios, 1)))

    def cost(x: PyTree, d: Array) -> Array:
        own = SHOP_COST * jnp.sum(x["shops"]) + COMMON_COST * x["common"]
        return own + HOLDING * jnp.sum(jnp.maximum(x["shops"] - d, 0))

    def lost_sales(x: PyTree, d: Array) -> Array:
        return jnp.maximum(jnp.sum(jnp.maximum(d - x["shops"], 0)) - x["common"], 0)

    return Entry(
        problem=Problem(
            cost,
            samples=Dataset(jnp.asarray(demands)),
            constraints={"lost": AtMost(lost_sales, jnp.asarray(lost))},
            within=Box(0.0, 50.0),
        ),
        x0={"shops": jnp.asarray(size), "common": jnp.asarray(1.0)},
        defaults={"batch_size": 16, "iterations": 20_000},
        solve=partial(_solve_network, demands, lost),
        draw=partial(_draw_network, demands),
        measure=partial(_measure_network, demands),
    )


SHOP_COST, COMMON_COST, HOLDING = 1.0, 1.3, 0.5


def _solve_network(demands: np.ndarray, lost: float) -> Solution:
    """Unknowns x, y, then left over and missing by row and shop, then lost by row."""
    n, m = demands.shape
    cells = n * m
    eye, rows = scipy.sparse.identity, scipy.sparse.csr_matrix
    shop = scipy.sparse.kron(np.ones((n, 1)), eye(m))
    none = rows((cells, cells))
    over = scipy.sparse.hstack([shop, rows((cells, 1)), -eye(cells), none, rows((cells, n))])
    missing = scipy.sparse.hstack([-shop, rows((cells, 1)), none, -eye(cells), rows((cells, n))])
    summed = scipy.sparse.kron(eye(n), np.ones((1, m)))
    late = scipy.sparse.hstack([rows((n, m)), -np.ones((n, 1)), rows((n, cells)), summed, -eye(n)])
    bound = scipy.sparse.hstack([rows((1, m + 1 + 2 * cells)), np.full((1, n), 1 / n)])
    right = np.concatenate([demands.ravel(), -demands.ravel(), np.zeros(n), [lost]])
    costs = [np.full(m, SHOP_COST), np.full(1, COMMON_COST), np.full(cells, HOLDING / n), np.zeros(cells + n)]
    found = scipy.optimize.linprog(
        np.concatenate(costs),
        A_ub=scipy.sparse.vstack([over, missing, late, bound]).tocsr(),
        b_ub=right,
        bounds=[(0, 50)] * (m + 1) + [(0, None)] * (2 * cells + n),
        method="highs",
    )
    x = {"shops": found.x[:m], "common": np.asarray(found.x[m])}
    return Solution(float(found.fun), x, {"lost": np.asarray(-found.ineqlin.marginals[-1])})


def _measure_network(demands: np.ndarray, x: PyTree) -> dict[str, float]:
    own, common = np.asarray(x["shops"], float), float(x["common"])
    missing = np.maximum(demands - own, 0).sum(axis=1)
    over = np.maximum(own - demands, 0).sum(axis=1)
    return {
        "cost": float(SHOP_COST * own.sum() + COMMON_COST * common + HOLDING * over.mean()),
        "lost sales": float(np.mean(np.maximum(missing - common, 0))),
        "weeks without a lost sale": float(np.mean(missing <= common)),
    }


def _draw_network(demands: np.ndarray, x: PyTree) -> list[Picture]:
    own = np.asarray(x["shops"], float)
    return [
        Picture(
            "Stocks, and the mean of the demand",
            "bars",
            {"stock": np.append(own, float(x["common"])), "mean demand": np.append(demands.mean(axis=0), 0.0)},
            categories=(*(f"shop {i + 1}" for i in range(own.size)), "common"),
            y_label="units",
        )
    ]
