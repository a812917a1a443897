"""A robust design through a simulator: an ordinary differential equation with uncertain parameters."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float

from lariax.gallery._case import Entry, Picture, Solution, entry
from lariax.gallery._reference import kkt_point
from lariax.problem import Distribution, Problem
from lariax.risk import Chance
from lariax.sets import Box

TIME, STEPS, NODES = 4.0, 40, 24
MASS_SPREAD, SPEED_SPREAD = 0.2, 0.25
LIMITS = np.array([[0.2, 0.2], [10.0, 10.0]])


class _Motion(NamedTuple):
    position: Float[Array, " n"]
    acceleration: Float[Array, " n"]


@entry
def suspension(stroke: float = 0.5, chance: float = 0.05) -> Entry:
    """A spring and a damper that are soft, and seldom hit their stop.

        minimise    E[ mean over time of a^2 ]                 a: acceleration, over 4 seconds after a bump
        subject to  P( max over time of q > stroke )  <=  chance
                    m q'' + c q' + k q = 0,    q(0) = 0,    q'(0) = v,    0.2 <= k, c <= 10

    A wheel hits a bump, and a passenger feels the acceleration of the seat. A soft spring and a soft damper feel best,
    but then the seat travels far and hits its stop, which must not happen more than once in twenty bumps. Neither the
    load m nor the speed v of the bump is known when the spring is chosen: m is lognormal, v normal. The designer has a
    simulator, forty steps of Runge and Kutta, and nothing else; JAX differentiates it, and the event "the stop is hit"
    is written as it is said. The answer is a spring that is rather soft and a damper that does most of the work: a
    stiffer spring would stop the seat as well, but throw it back. The multiplier is the price of the promise, in
    comfort.

    Scale: 2 unknowns, 1 chance, a simulation of 40 steps for each sample.
    Check: positions are proportional to v, so the chance is a mean over m of a normal probability; Gauss and Hermite's
        quadrature over m, SLSQP and Newton give k, c and the multiplier.
    Arguments:
        stroke: how far the seat may travel.
        chance: that it travels farther.

    >>> from lariax import gallery
    >>> case = gallery.suspension()
    >>> case.x0.shape
    (2,)
    """
    if not (0 < chance < 1 and stroke > 0):
        raise ValueError(f"chance must lie between 0 and 1 and stroke be positive, found {chance!r} and {stroke!r}.")

    def motion(x: Array, z: Array) -> _Motion:
        return _simulated(x, jnp.exp(MASS_SPREAD * z[0]), 1 + SPEED_SPREAD * z[1])

    problem = Problem(
        lambda x, z: jnp.mean(motion(x, z).acceleration ** 2),
        samples=Distribution(lambda key: jax.random.normal(key, (2,))),
        constraints={"stop": Chance(lambda x, z: _peak(motion(x, z).position) - stroke, chance)},
        within=Box(*jnp.asarray(LIMITS)),
    )
    return Entry(
        problem=problem,
        x0=jnp.full(2, 3.0),
        defaults={"batch_size": 32, "iterations": 4_000},
        solve=partial(_solve, stroke, chance),
        draw=partial(_draw, stroke),
        measure=partial(_measure, stroke),
    )


def _simulated(x: Any, mass: Any, speed: Any) -> _Motion:
    """Runge and Kutta's method of fourth order on (q, q')."""
    stiffness, damping = x
    step = TIME / STEPS

    def slope(state: Any) -> Any:
        return jnp.stack([state[1], -(stiffness * state[0] + damping * state[1]) / mass])

    def advance(state: Any, _: None) -> tuple[Any, Any]:
        first = slope(state)
        second = slope(state + step / 2 * first)
        third = slope(state + step / 2 * second)
        fourth = slope(state + step * third)
        return state + step / 6 * (first + 2 * second + 2 * third + fourth), (state[0], first[1])

    start = jnp.stack([0 * stiffness, speed + 0 * stiffness])
    return _Motion(*jax.lax.scan(advance, start, length=STEPS)[1])


def _peak(position: Any) -> Any:
    """The top of the parabola through the highest point and its neighbours."""
    top = jnp.clip(jnp.argmax(position), 1, STEPS - 2)
    before, at, after = position[top - 1], position[top], position[top + 1]
    bend = jnp.maximum(2 * at - before - after, jnp.finfo(position.dtype).tiny)
    return at + (after - before) ** 2 / (8 * bend)


def _exact(stroke: float, x: Any) -> tuple[Any, Any]:
    """The mean of the objective, and the probability, by quadrature over the mass."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(NODES)
    each = jax.vmap(lambda mass: _simulated(x, mass, 1.0))(jnp.exp(MASS_SPREAD * nodes))
    weights = jnp.asarray(masses / masses.sum())
    comfort = (1 + SPEED_SPREAD**2) * weights @ jnp.mean(each.acceleration**2, axis=1)
    fastest = stroke / jax.vmap(_peak)(each.position)  # up to this speed the stop is not hit
    return comfort, weights @ jax.scipy.stats.norm.cdf((1 - fastest) / SPEED_SPREAD)


def _solve(stroke: float, chance: float) -> Solution:
    found = kkt_point(
        lambda x: _exact(stroke, x)[0],
        lambda x: _exact(stroke, x)[1][None] - chance,
        [True],
        np.full(2, 3.0),
        bounds=LIMITS.T,
    )
    return Solution(found.value, found.x, {"stop": np.asarray(found.multipliers[0])})


def _measure(stroke: float, x: Any) -> dict[str, float]:
    with jax.enable_x64(True):
        comfort, chance = jax.jit(partial(_exact, stroke))(np.asarray(x, float))
    return {"mean square acceleration": float(comfort), "P(stop is hit)": float(chance)}


def _draw(stroke: float, x: Any) -> list[Picture]:
    times = np.linspace(0, TIME, STEPS, endpoint=False)
    curves = {}
    for name, z in {"usual": (0.0, 0.0), "heavy": (2.0, 0.0), "heavy and fast": (2.0, 2.0)}.items():
        motion = _simulated(jnp.asarray(x), float(np.exp(MASS_SPREAD * z[0])), 1 + SPEED_SPREAD * z[1])
        curves[name] = np.column_stack([times, np.asarray(motion.position)])
    chances = np.asarray(scipy.stats.norm.sf([0.0, 2.0]))
    title = f"Travel of the seat after a bump; one load in {1 / chances[1]:.0f} is heavier than the heavy one"
    return [Picture(title, "lines", curves, x_label="seconds", y_label="travel", reference=stroke)]
