"""Decisions under uncertainty with bounded risk: a portfolio and a chance constraint, with normal returns and loads."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, PyTree

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._reference import kkt_point
from lariax.problem import AtLeast, AtMost, Distribution, Problem
from lariax.sets import Box, Everything, Product, Simplex


class Factors(NamedTuple):
    """Normal vectors with a few common causes: mean + loadings z + own e, z and e standard normal."""

    mean: np.ndarray
    loadings: np.ndarray
    own: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        return self.loadings @ self.loadings.T + np.diag(self.own**2)

    def sample(self, key: Array) -> Float[Array, " d"]:
        z = jax.random.normal(key, (self.mean.size + self.loadings.shape[1],))
        common, own = z[self.mean.size :], z[: self.mean.size]
        return self.mean + self.loadings @ common + self.own * own


def market(assets: int, seed: int) -> Factors:
    """Yearly returns of assets of which the riskier ones pay more: volatilities from 8 to 40 %, half of it common."""
    rng = np.random.default_rng(seed)
    volatility = np.linspace(0.08, 0.40, assets)
    loadings = rng.normal(size=(assets, 3)) + np.asarray([1.5, 0.0, 0.0])
    loadings *= (volatility * np.sqrt(0.5) / np.linalg.norm(loadings, axis=1))[:, None]
    mean = 0.02 + 0.3 * volatility + 0.01 * rng.normal(size=assets)
    return Factors(mean, loadings, volatility * np.sqrt(0.5))


# --- portfolio


@entry
def portfolio(assets: int = 20, level: float = 0.95, bound: float = 0.15, width: float = 0.03, seed: int = 0) -> Entry:
    """A portfolio with a bounded conditional value at risk.

        minimise    - E[ r . w ]                                          r: returns, w: shares of the money
        subject to  t + E[ plus(-r . w - t) ] / (1 - level)  <=  bound    CVaR of the loss -r . w
                    w >= 0,  sum w = 1

    The mean loss in the worst (1 - level) of all years is at most `bound` of the money. With plus(v) = max(v, 0) the
    least of the left side over t is that mean (Rockafellar and Uryasev), attained at the quantile, so t is one more
    unknown. Here plus is smoothed over `width`, plus(v) = v Phi(v / width) + width phi(v / width): the mean of
    max(v + width e, 0) for a standard normal e. That is never less, so the true CVaR keeps the bound too. Returns are
    normal with three common causes.

    Scale: 20 assets, 21 unknowns, 1 constraint.
    Check: for normal returns the least left side is -m . w + k s with s = sqrt(w . S w + width^2), k = phi(z) /
        (1 - level) and z the quantile of the standard normal; SLSQP and Newton on that give the shares, t = -m . w +
        z s, and the multiplier.
    Arguments:
        assets: how many.
        level: of the quantile; the worst 1 - level of the outcomes count.
        bound: of their mean loss.
        width: of the smoothing, in units of the money.
        seed: of the means and loadings.

    >>> from lariax import gallery
    >>> case = gallery.portfolio(assets=5)
    >>> sorted(case.problem.constraints)
    ['cvar']
    """
    if not 0 < level < 1 or width <= 0:
        raise ValueError(f"level must lie between 0 and 1 and width be positive, found {level!r} and {width!r}.")
    returns = market(assets, seed)

    def tail_loss(x: PyTree, r: Array) -> Array:
        return x["level"] + _plus(-(r @ x["weights"]) - x["level"], width) / (1 - level)

    problem = Problem(
        lambda x, r: -(r @ x["weights"]),
        samples=Distribution(returns.sample),
        constraints={"cvar": AtMost(tail_loss, jnp.asarray(bound))},
        within=Product({"weights": Simplex(), "level": Everything()}),
    )
    return Entry(
        problem=problem,
        x0={"weights": jnp.full(assets, 1 / assets), "level": jnp.asarray(0.1)},
        defaults={"batch_size": 64, "iterations": 20_000},
        solve=partial(_solve_portfolio, returns, level, bound, width),
        draw=partial(_draw_portfolio, returns, level, bound),
        measure=partial(_measure_portfolio, returns, level),
    )


def _tail(level: float) -> tuple[float, float]:
    """The quantile of the standard normal, and the mean beyond it."""
    quantile = float(scipy.stats.norm.ppf(level))
    return quantile, float(scipy.stats.norm.pdf(quantile)) / (1 - level)


def _plus(value: Array, width: float) -> Array:
    """max(value, 0), smoothed."""
    scaled = value / width
    return value * jax.scipy.special.ndtr(scaled) + width * jax.scipy.stats.norm.pdf(scaled)


def _solve_portfolio(returns: Factors, level: float, bound: float, width: float) -> Solution:
    quantile, beyond = _tail(level)
    mean, covariance = returns.mean, returns.covariance

    def spread(w: Any) -> Any:
        return jnp.sqrt(w @ covariance @ w + width**2)

    def residuals(w: Any) -> Any:
        return jnp.stack([jnp.sum(w) - 1, -(mean @ w) + beyond * spread(w) - bound])

    found = kkt_point(
        lambda w: -(mean @ w), residuals, [False, True], np.full(mean.size, 1 / mean.size), bounds=(0.0, 1.0)
    )
    threshold = -(mean @ found.x) + quantile * np.sqrt(found.x @ covariance @ found.x + width**2)
    return Solution(found.value, {"weights": found.x, "level": threshold}, {"cvar": np.asarray(found.multipliers[1])})


def _measure_portfolio(returns: Factors, level: float, x: PyTree) -> dict[str, float]:
    weights = np.asarray(x["weights"], float)
    mean, risk = returns.mean @ weights, np.sqrt(weights @ returns.covariance @ weights)
    return {"mean return": float(mean), "volatility": float(risk), "CVaR": float(-mean + _tail(level)[1] * risk)}


def _draw_portfolio(returns: Factors, level: float, bound: float, x: PyTree) -> list[Picture]:
    weights = np.asarray(x["weights"], float)
    mean, risk = returns.mean @ weights, np.sqrt(weights @ returns.covariance @ weights)
    outcomes = mean + risk * np.linspace(-4, 4, 401)
    density = scipy.stats.norm.pdf(outcomes, mean, risk)
    tail = outcomes <= mean - _tail(level)[0] * risk
    volatility = np.sqrt(np.diag(returns.covariance))
    return [
        Picture(
            "Shares of the money",
            "bars",
            {"share": weights},
            y_label="share",
            categories=tuple(f"asset {i + 1} ({100 * v:.0f} %)" for i, v in enumerate(volatility)),
            x_label="asset (its volatility)",
        ),
        Picture(
            f"Yearly return; the worst {100 * (1 - level):.3g} % may lose {bound:g} on average",
            "lines",
            {
                "all outcomes": np.column_stack([outcomes, density]),
                "the worst": np.column_stack([outcomes[tail], density[tail]]),
            },
            x_label="return",
            y_label="density",
        ),
    ]


# --- a chance constraint


@entry
def chance_constraint(products: int = 10, probability: float = 0.95, width: float = 0.05, seed: int = 0) -> Entry:
    """A plan that a random resource use lets through with a given probability, smoothed.

        maximise    sum_i p_i (x_i - x_i^2 / 2)                       x: amounts made, p: their first profits
        subject to  E[ Phi((1 - a . x) / width) ]  >=  probability    a: use of the resource, random
                    0 <= x <= 1

    Profits fall as more is made, to nothing at x = 1. Phi, the distribution function of the standard normal, stands for
    the indicator of a . x <= 1; as width goes to 0 the constraint becomes P(a . x <= 1) >= probability. a is normal
    with three common causes.

    Scale: 10 unknowns, 1 constraint.
    Check: for a normal with mean m and covariance S the expectation is Phi((1 - m . x) / sqrt(width^2 + x . S x));
        SLSQP and Newton on that give the plan and the multiplier.
    Arguments:
        products: how many.
        probability: with which the resource must suffice.
        width: of the smoothing, in units of the resource.
        seed: of profits and uses.

    >>> from lariax import gallery
    >>> case = gallery.chance_constraint(products=5)
    >>> case.x0.shape
    (5,)
    """
    if not 0 < probability < 1 or width <= 0:
        raise ValueError(
            f"probability must lie between 0 and 1 and width be positive, found {probability!r} and {width!r}."
        )
    rng = np.random.default_rng(seed)
    use = 2 * rng.uniform(0.5, 1.5, products) / products
    loadings = 0.5 * use[:, None] * rng.normal(size=(products, 3)) / np.sqrt(3)
    uses = Factors(use, loadings, 0.5 * use)
    profit = use * products * rng.uniform(0.8, 1.2, products) / 2

    problem = Problem(
        lambda x: -_profit(profit, x),
        constraints={
            "suffices": AtLeast(
                lambda x, a: jax.scipy.special.ndtr((1 - a @ x) / width),
                jnp.asarray(probability),
                samples=Distribution(uses.sample),
            )
        },
        within=Box(0.0, 1.0),
    )
    return Entry(
        problem=problem,
        x0=jnp.full(products, 0.1),
        defaults={"batch_size": 64, "iterations": 20_000},
        solve=partial(_solve_chance, uses, profit, probability, width),
        draw=partial(_draw_chance, uses, profit),
        measure=partial(_measure_chance, uses, profit),
    )


def _profit(profit: np.ndarray, x: Any) -> Any:
    return profit @ (x - x**2 / 2)


def _solve_chance(uses: Factors, profit: np.ndarray, probability: float, width: float) -> Solution:
    quantile = float(scipy.stats.norm.ppf(probability))
    mean, covariance = uses.mean, uses.covariance

    def margin(x: Any) -> Any:
        return (1 - mean @ x) / jnp.sqrt(width**2 + x @ covariance @ x)

    found = kkt_point(
        lambda x: -_profit(profit, x),
        lambda x: (quantile - margin(x))[None],
        [True],
        np.full(mean.size, 0.1),
        bounds=(0.0, 1.0),
    )
    slope = float(scipy.stats.norm.pdf(quantile))  # of Phi where it is `probability`: from margins to probabilities
    return Solution(found.value, found.x, {"suffices": np.asarray(-found.multipliers[0] / slope)})


def _measure_chance(uses: Factors, profit: np.ndarray, x: Any) -> dict[str, float]:
    x = np.asarray(x, float)
    chance = scipy.stats.norm.cdf((1 - uses.mean @ x) / np.sqrt(x @ uses.covariance @ x))
    return {"profit": float(_profit(profit, x)), "P(the resource suffices)": float(chance)}


def _draw_chance(uses: Factors, profit: np.ndarray, x: Any) -> list[Picture]:
    x = np.asarray(x, float)
    mean, spread = uses.mean @ x, np.sqrt(x @ uses.covariance @ x)
    used = mean + spread * np.linspace(-4, 4, 401)
    density = scipy.stats.norm.pdf(used, mean, spread)
    enough = used <= 1
    return [
        Picture(
            "What is made",
            "bars",
            {"amount": x},
            categories=tuple(f"{p:.2g}" for p in profit / uses.mean),
            x_label="product (profit for each unit of the resource)",
            y_label="amount",
        ),
        Picture(
            "Use of the resource",
            "lines",
            {
                "suffices": np.column_stack([used[enough], density[enough]]),
                "does not": np.column_stack([used[~enough], density[~enough]]),
            },
            x_label="use, of 1",
            y_label="density",
        ),
    ]
