"""Networks for regression, by `lariax.solve`: least squares under bounds on means of soft errors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from lariax.gallery._models import forward, half_square, network
from lariax.loop import solve
from lariax.problem import AtMost, Dataset, Problem
from lariax.sklearn._fitted import Fitted
from lariax.sklearn._linear import scaling
from lariax.sklearn._network import BATCH, FEWEST_STEPS, MOST_STEPS, PASSES, Network, adam
from lariax.sklearn._slots import slots
from lariax.sklearn._train import mixing

WIDTH = 0.1
"""Of a soft step or corner, in standard deviations of y."""

KINDS = {"mean_error": 1, "absolute_error": 1, "squared_error": 2, "coverage": 0}
"""The power of the unit of y that each mean is in."""

RIDGE = 10.0
"""Times alpha: networks learn a bound on their rows by heart (docs/heldout.md)."""


def path(problem: Any, targets: Sequence[np.ndarray | None]) -> list[Fitted]:
    """One network for each vector of bounds of a `Regression`, each from the one before, in units of the deviation of
    y."""
    problem = _merged(problem)
    inputs = problem.inputs
    middle, spread = scaling(inputs, problem.weights)
    share = problem.weights / problem.weights.sum()
    mean = float(share @ problem.y)
    unit = float(np.sqrt(share @ (problem.y - mean) ** 2)) or 1.0
    units = np.asarray([unit ** KINDS[problem.plan.bases[row.first].rate] for row in problem.plan.rows])
    data = _data(problem, (inputs - middle) / spread, (problem.y - mean) / unit)
    fun = Partial(_losses, jnp.asarray(RIDGE * problem.alpha, jnp.float32))
    x: PyTree = network(jax.random.key(problem.seed), (inputs.shape[1], *problem.hidden, 1))
    steps = int(np.clip(PASSES * len(problem.y) / BATCH, FEWEST_STEPS, MOST_STEPS))
    found = []
    for number, bounds in enumerate(targets):
        free = np.full(len(problem.plan.rows), 1e3)
        limit = {"means": AtMost(bound=jnp.asarray(free if bounds is None else bounds / units, jnp.float32))}
        task = Problem.joint(fun, samples=data, constraints=limit if problem.plan.rows else {})
        result = solve(task, x, method=adam(steps), iterations=steps, batch_size=BATCH, seed=problem.seed + number)
        x = result.x
        prices = np.asarray(result.multipliers["means"], float) if problem.plan.rows else np.zeros(0)
        layers = [{name: np.asarray(value, float) for name, value in layer.items()} for layer in x]
        layers[-1] = {name: unit * value for name, value in layers[-1].items()}  # a mean is added by the intercept
        net = Network(
            tuple(layer["weights"] for layer in layers),
            tuple(layer["bias"] for layer in layers),
            middle,
            spread,
            prices,
            np.zeros(0),
            0.0,
            int(result.iterations),
        )
        loss = float(share @ (net.scores(inputs)[:, 0] + mean - problem.y) ** 2)
        found.append(Fitted(None, mean, prices * unit**2 / units, loss, int(result.iterations), True, net))
    return found


def _merged(problem: Any) -> Any:
    """Dense, with equal rows as one."""
    inputs = problem.inputs.toarray() if scipy.sparse.issparse(problem.inputs) else problem.inputs
    own = slots(problem.weights, inputs, problem.y, *(base.mask for base in problem.plan.bases))
    at, weights = own.index, own.weights(problem.weights)
    return replace(problem, inputs=inputs[at], y=problem.y[at], weights=weights, plan=problem.plan.at(at))


def _data(problem: Any, inputs: np.ndarray, y: np.ndarray) -> Dataset:
    """Rows with what each adds to the values of the constraints: `above` times the four soft errors."""
    kinds, n = list(KINDS), len(y)
    above = np.zeros((len(problem.plan.bases), n, len(kinds)))
    for b, base in enumerate(problem.plan.bases):
        own = base.mask * problem.weights
        above[b, :, kinds.index(base.rate)] = n * own / max(float(own.sum()), 1e-300)
    arrays = {
        "input": inputs.astype(np.float32),
        "y": y.astype(np.float32),
        "weight": (problem.weights / problem.weights.mean()).astype(np.float32),
        "above": np.einsum("rb,bnk->nrk", mixing(problem.plan), above).astype(np.float32),
    }
    return Dataset(jax.tree.map(jnp.asarray, arrays))


def _losses(ridge: Array, x: PyTree, row: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
    r = forward(x, row["input"])[0] - row["y"]
    total = row["weight"] * r**2 + ridge * half_square(x)
    if not row["above"].shape[0]:
        return total, {}
    soft = jnp.stack([r, jnp.sqrt(r**2 + WIDTH**2), r**2, jax.nn.sigmoid(r / WIDTH)])  # in the order of KINDS
    return total, {"means": row["above"] @ soft}
