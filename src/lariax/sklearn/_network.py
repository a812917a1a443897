"""Networks: the same training by `lariax.solve`, on batches; Adam takes the steps, `lariax.Optax` the multipliers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from lariax.gallery._models import forward, half_square, network
from lariax.loop import solve
from lariax.methods import Optax
from lariax.problem import AtMost, Dataset, Problem
from lariax.sklearn._linear import scaling
from lariax.sklearn._rates import Plan, soft_parts
from lariax.sklearn._slots import slots
from lariax.sklearn._train import Rows, mixing

BATCH = 256
PASSES, FEWEST_STEPS, MOST_STEPS = 15, 500, 3000
"""Over the rows for each model of the pool, within so many steps."""

STEP_SIZE = 3e-3
RIDGE = 1e-3
"""At C = 1. Networks learn a bound on their rows by heart; a ridge keeps most of it on new rows (docs/heldout.md)."""

TEMPERATURE = 0.25
"""Of soft decisions; networks have sharper scores than linear models."""

LIKELY = 0.75  # a precision, about, to be linear around


@dataclass(frozen=True)
class Network:
    """Layers with rectifiers between them, on scaled inputs; and how it came about."""

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    middle: np.ndarray
    spread: np.ndarray
    multipliers: np.ndarray
    values: np.ndarray
    loss: float
    iterations: int

    def scores(self, inputs: Any) -> np.ndarray:
        dense = inputs.toarray() if scipy.sparse.issparse(inputs) else np.asarray(inputs)
        hidden = (dense - self.middle) / self.spread
        for i, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = (np.maximum(hidden, 0) if i else hidden) @ weights + bias
        return hidden

    def shifted(self, label: int, shift: float) -> "Network":
        """With the score of one class less by `shift`."""
        last = self.biases[-1].copy()
        last[0 if len(last) == 1 else label] -= shift
        return replace(self, biases=(*self.biases[:-1], last))


@dataclass(frozen=True)
class NetworkTrainer:
    """Trains networks with these hidden layers; C as for linear models."""

    hidden: tuple[int, ...]
    C: float
    seed: int

    levels: ClassVar[tuple[float, ...]] = (0.0, 2.0, 5.0, 9.0)
    flatters: ClassVar[bool] = True
    steps: ClassVar[int] = 1

    def path(self, rows: Rows, plan: Plan, targets: Sequence[np.ndarray | None]) -> list[Network]:
        """One network for each vector of bounds, each from the one before. Bounds and weights are arguments of one
        compiled program."""
        rows, plan = _merged(rows, plan)
        inputs = rows.inputs
        middle, spread = scaling(inputs, rows.weights)
        outputs = 1 if plan.classes == 2 else plan.classes
        data, sharp = _data(rows, plan, (inputs - middle) / spread)
        fun = Partial(_losses, jnp.asarray(RIDGE / self.C), jnp.asarray(sharp))
        x: PyTree = network(jax.random.key(self.seed), (inputs.shape[1], *self.hidden, outputs))
        steps = int(np.clip(PASSES * len(rows.y) / BATCH, FEWEST_STEPS, MOST_STEPS))
        found = []
        for number, bounds in enumerate(targets):
            free = np.full(len(plan.rows), 1e3)
            limit = {"rates": AtMost(bound=jnp.asarray(free if bounds is None else bounds, jnp.float32))}
            problem = Problem.joint(fun, samples=data, constraints=limit if plan.rows else {})
            result = solve(problem, x, method=adam(steps), iterations=steps, batch_size=BATCH, seed=self.seed + number)
            x = result.x
            found.append(_as_model(x, result, plan, fun, data, middle, spread))
        return found


@lru_cache(maxsize=16)
def adam(steps: int) -> Optax:
    """One object for each number of steps: equal ones share their compiled code."""
    return Optax(optax.adam(optax.cosine_decay_schedule(STEP_SIZE, steps)))


def _merged(rows: Rows, plan: Plan) -> tuple[Rows, Plan]:
    """Dense, with equal rows as one."""
    inputs = rows.inputs.toarray() if scipy.sparse.issparse(rows.inputs) else rows.inputs
    tables = [base.table for base in plan.bases if base.table is not None]
    own = slots(rows.weights, inputs, rows.y, *(base.mask for base in plan.bases), *tables)
    at = own.index
    return Rows(inputs[at], rows.y[at], own.weights(rows.weights), own.weights(rows.counted)), plan.at(at)


def _data(rows: Rows, plan: Plan, inputs: np.ndarray) -> tuple[Dataset, np.ndarray]:
    """Rows with what each adds to the values of the constraints: `above` times the soft decisions, and `constant`."""
    share, n = rows.counted / rows.counted.sum(), len(rows.y)
    outputs = 1 if plan.classes == 2 else plan.classes
    above, constant = np.zeros((len(plan.bases), n, outputs)), np.zeros((len(plan.bases), n))
    for b, base in enumerate(plan.bases):
        u, u0, v, v0 = soft_parts(base, rows.y, share, plan.classes)
        if v.any():  # a ratio is linear about where it is likely to be
            below = 0.5 * float(share @ base.mask)
            above[b], constant[b] = n * (u - LIKELY * v) / below, n * (u0 - LIKELY * v0) / below + LIKELY
        else:
            below = max(float(v0.sum()), 1e-12)
            above[b], constant[b] = n * u / below, n * u0 / below
    mix = mixing(plan)
    sharp = np.asarray([plan.bases[row.first].rate != "mean_score" for row in plan.rows], bool)
    arrays = {
        "input": inputs.astype(np.float32),
        "label": rows.y.astype(np.int32),
        "weight": (rows.weights / rows.weights.mean()).astype(np.float32),
        "above": np.einsum("rb,bnk->nrk", mix, above).astype(np.float32),
        "constant": (mix @ constant).T.astype(np.float32),
    }
    return Dataset(jax.tree.map(jnp.asarray, arrays)), sharp


def _losses(ridge: Array, sharp: Array, x: PyTree, row: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
    scores = forward(x, row["input"])
    if scores.shape[0] == 1:
        loss = jax.nn.softplus(scores[0]) - row["label"] * scores[0]
        soft = jax.nn.sigmoid
    else:
        loss = jax.nn.logsumexp(scores) - scores[row["label"]]
        soft = jax.nn.softmax
    total = row["weight"] * loss + ridge * half_square(x)
    if not row["above"].shape[0]:
        return total, {}
    values = jnp.where(sharp, row["above"] @ soft(scores / TEMPERATURE), row["above"] @ soft(scores))
    return total, {"rates": values + row["constant"]}


@partial(jax.jit, static_argnums=0)
def _means(fun: Any, parts: Any, x: PyTree, arrays: PyTree) -> tuple[Array, dict[str, Array]]:
    losses, values = jax.vmap(lambda row: fun(*parts, x, row))(arrays)
    return jnp.mean(losses), {name: jnp.mean(value, axis=0) for name, value in values.items()}


def _as_model(
    x: PyTree, result: Any, plan: Plan, fun: Partial, data: Dataset, middle: np.ndarray, spread: np.ndarray
) -> Network:
    loss, values = _means(fun.func, fun.args, x, data.arrays)
    layers = [{name: np.asarray(value, float) for name, value in layer.items()} for layer in x]
    multipliers = result.multipliers["rates"] if plan.rows else np.zeros(0)
    return Network(
        weights=tuple(layer["weights"] for layer in layers),
        biases=tuple(layer["bias"] for layer in layers),
        middle=middle,
        spread=spread,
        multipliers=np.asarray(multipliers, float),
        values=np.asarray(values.get("rates", np.zeros(0)), float),
        loss=float(loss),
        iterations=int(result.iterations),
    )
