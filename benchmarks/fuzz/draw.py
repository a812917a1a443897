"""Random shapes, and random numbers for them with a known truth.

Feasible problems are built around a point v of the set at which all constraints hold. Of convex ones v is the solution:
multipliers are drawn, and the objective gets the slope that the KKT conditions ask for.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.fuzz.functions import Objective, Rows
from benchmarks.fuzz.problems import Block, Case, Shape, look, set_rows

TOGETHER = 12
"""So many cases in a row have one shape, and share their compiled code."""

MOST_ROWS = 12

LINEAR = 0.2
"""How often the objective is linear."""

TRUTHS = {"convex": 0.35, "degenerate": 0.2, "nonconvex": 0.2, "infeasible": 0.15, "unbounded": 0.1}
"""How often each is drawn, where the shape allows it."""

Generator = np.random.Generator


def case_of(seed: int, number: int) -> Case:
    """Case `number` of the stream of a seed, whatever others are drawn."""
    shape = shape_of(np.random.default_rng([seed, number // TOGETHER]))
    rng = np.random.default_rng([seed, number // TOGETHER, number % TOGETHER])
    possible = truths(shape)
    weights = np.array([TRUTHS[truth] for truth in possible])
    return Draw(shape, rng, str(rng.choice(possible, p=weights / weights.sum()))).case()


def shape_of(rng: Generator) -> Shape:
    d = int(rng.choice([1, 2, 3, 4, 6]))
    sets = ["everything", "box", "nonnegative", "ball"] + (["simplex", "product"] if d > 1 else [])
    within = str(rng.choice(sets))
    blocks: list[Block] = []
    free = d - 1 - (within == "simplex")  # equalities that leave something to choose
    for _ in range(rng.choice(4, p=[0.05, 0.35, 0.4, 0.2])):
        room = MOST_ROWS - sum(block.rows for block in blocks)
        kind = str(rng.choice(["AtMost", "AtLeast", "Equal", "Linear"], p=[0.4, 0.25, 0.2, 0.15]))
        rows = int(rng.integers(1, min(room, 6) + 1)) if room else 0
        if kind in ("Equal", "Linear"):
            rows = min(rows, free)
            free -= rows
        terms = str(rng.choice(["linear", "quadratic", "softplus"], p=[0.5, 0.3, 0.2]))
        samples = str(rng.choice(["shared", "own", "none"], p=[0.5, 0.2, 0.3]))
        if rows:
            blocks.append(Block(kind, rows, *(("linear", "none") if kind == "Linear" else (terms, samples))))
    shape = Shape(
        d,
        within,
        str(rng.choice(["quadratic", "logsumexp", "logistic", "cosine"], p=[0.5, 0.15, 0.15, 0.2])),
        tuple(blocks),
        str(rng.choice(["Distribution", "Dataset", "epochs", "Stratified"], p=[0.5, 0.2, 0.15, 0.15])),
        int(rng.choice([1, 2, 4, 8])),
        bool(rng.random() < 0.2 and any(block.samples == "shared" for block in blocks)),
    )
    return linear(shape) if rng.random() < LINEAR else shape


def linear(shape: Shape) -> Shape:
    """The same with a linear objective, and with rows enough to hold it in a corner."""
    blocks = (*shape.blocks[:1], Block("AtMost", shape.d, "linear", "shared"))
    return shape._replace(objective="linear", blocks=blocks)


def truths(shape: Shape) -> list[str]:
    """Those that a problem of this shape can have. A linear objective has to end in a corner."""
    straight = shape.objective == "linear"
    several = any(block.rows > 1 for block in shape.blocks)
    bent = shape.objective == "cosine" or shape.bounded or any(block.terms == "quadratic" for block in shape.blocks)
    at_the_edge = bool(shape.blocks) and shape.within in ("box", "ball", "simplex", "nonnegative")
    endless = shape.objective in ("quadratic", "linear") and shape.within in ("everything", "nonnegative")
    degenerate = several and not (straight and any(block.equal for block in shape.blocks))
    bent = shape.bounded if straight else bent
    allowed = {"degenerate": degenerate, "nonconvex": bent, "infeasible": several or at_the_edge, "unbounded": endless}
    return [truth for truth in TRUTHS if allowed.get(truth, True)]


def turned(rng: Generator, d: int, values: np.ndarray) -> np.ndarray:
    """A symmetric matrix with these eigenvalues."""
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (basis * values) @ basis.T


class Draw:
    """The numbers of one case, made step by step."""

    def __init__(self, shape: Shape, rng: Generator, truth: str):
        self.shape, self.rng, self.truth = shape, rng, truth
        self.units = 10 ** rng.uniform(-0.7, 0.7, shape.d) if rng.random() < 0.2 else np.ones(shape.d)
        self.defect = str(rng.choice(["copy", "opposite", "meet", "weak"])) if truth == "degenerate" else ""
        if self.defect and shape.objective == "linear":
            self.defect = "meet"
        elif self.defect == "meet" and any(block.equal for block in shape.blocks):
            self.defect = "weak"
        self.v, self.set_numbers = self.place()
        residuals = set_rows(shape, self.set_numbers, self.v)[0]
        self.at_edge = int(np.sum(residuals > -1e-9))
        self.direction = np.abs(rng.standard_normal(shape.d)) if truth == "unbounded" else None

    def place(self) -> tuple[np.ndarray, dict[str, Any]]:
        """A point and a set that has it, inside or at an edge."""
        rng, d, first = self.rng, self.shape.d, self.shape.in_ball
        v, within = rng.standard_normal(d) * self.units, self.shape.within
        if self.truth == "unbounded":
            v = np.abs(v) + self.units
        edge = (rng.random(d) < 0.3) & (self.truth == "convex" or self.defect in ("meet", "weak"))
        edge &= np.cumsum(edge) <= d - sum(block.rows for block in self.shape.blocks if block.equal) - 1
        if within == "box":
            low, high = v - self.units * rng.uniform(0.3, 2, d), v + self.units * rng.uniform(0.3, 2, d)
            return np.where(edge, low, v), {"low": low, "high": high}
        if within == "simplex":
            total, edge[-1] = rng.uniform(0.5, 2), False
            v = np.where(edge, 0, rng.uniform(0.3, 1, d))
            return v * total / v.sum(), {"total": total}
        if within in ("nonnegative", "product"):
            v = np.where(edge, 0, np.abs(v))
        if first:
            center = rng.standard_normal(first) * 0.5
            away = v[:first] - center
            radius = np.linalg.norm(away) * (1 if edge[0] else rng.uniform(1.1, 2))
            return v, {"radius": radius, "center": np.append(center, np.zeros(d - first))}
        return v, {}

    # --- constraints

    def rows(self, number: int, block: Block) -> Rows:
        """Random ones; convex where that is wanted, and linear where the objective falls for ever."""
        rng, d, m = self.rng, self.shape.d, block.rows
        matrix = rng.standard_normal((m, d))
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        matrix /= self.units
        straight = self.truth == "unbounded" or self.defect == "meet"
        must_be_convex = self.truth != "nonconvex"
        keep = 0.0 if straight or (must_be_convex and block.equal) else 1.0
        quadratic = weight = inner = None
        if block.terms == "quadratic":
            values = rng.uniform(0 if must_be_convex else -1, 1, (m, d)) * keep * block.sign
            quadratic = np.stack([turned(rng, d, one) for one in values]) / np.outer(self.units, self.units)
        if block.terms == "softplus":
            weight = rng.uniform(0.3, 1, m) * keep * block.sign
            weight = weight if must_be_convex else weight * rng.choice([-1, 1], m)
            inner = rng.standard_normal((m, d)) / self.units
        noisy = block.samples != "none"
        deviation = rng.uniform(0.05, 0.3, m) * noisy
        slopes = 0.1 * rng.standard_normal((m, d)) / self.units * noisy * (rng.random() < 0.5)
        index = self.shape.d + 1 + sum(b.rows for b in self.shape.blocks[:number])
        arrays = (matrix, quadratic, weight, inner, deviation, slopes, index + np.arange(m))
        return Rows(*(None if array is None else jnp.asarray(array) for array in arrays))

    def inwards(self, block: Block, rows: Rows) -> Rows:
        """Turned so that one direction leads inwards from all rows, or, without a lower bound, out to infinity."""
        if self.direction is not None:
            p = self.direction
        else:
            p = self.middle() - self.v
        along = np.asarray(rows.matrix) @ p
        if block.equal and self.direction is not None:
            return with_(rows, matrix=rows.matrix - np.outer(along, p) / (p @ p))
        outwards = block.sign * along > 0
        return with_(rows, matrix=np.where(outwards[:, None], -rows.matrix, rows.matrix))

    def middle(self) -> np.ndarray:
        """A point well inside the set."""
        numbers, d = self.set_numbers, self.shape.d
        inside = {
            "everything": lambda: self.v + self.rng.standard_normal(d),
            "box": lambda: (numbers["low"] + numbers["high"]) / 2,
            "nonnegative": lambda: self.v + 1.0,
            "simplex": lambda: np.full(d, numbers["total"] / d),
            "ball": lambda: numbers["center"],
            "product": lambda: np.where(np.arange(d) < self.shape.in_ball, numbers["center"], self.v + 1.0),
        }
        return inside[self.shape.within]()

    def mended(self, block: Block, rows: Rows, first: bool) -> tuple[Rows, np.ndarray]:
        """With the defect of a degenerate problem, and which rows say what others say."""
        copies = np.zeros(block.rows, bool)
        if self.defect == "meet" and not block.equal:
            rows = self.inwards(block, rows)
        if self.defect in ("copy", "opposite") and first and block.rows > 1:
            times = self.rng.uniform(0.5, 2)
            if self.defect == "opposite" and not block.equal:
                times = -1.0
                parts = ("quadratic", "weight")
                rows = with_(
                    rows, **{n: getattr(rows, n).at[0].set(0.0) for n in parts if getattr(rows, n) is not None}
                )
            names = ("matrix", "quadratic", "weight", "deviation", "slope_deviation")
            changed = {n: getattr(rows, n) for n in names if getattr(rows, n) is not None}
            rows = with_(rows, **{n: a.at[1].set(times * a[0]) for n, a in changed.items()})
            rows = with_(rows, index=rows.index.at[1].set(rows.index[0]))
            if rows.inner is not None:
                rows = with_(rows, inner=rows.inner.at[1].set(rows.inner[0]))
            copies[1] = times > 0
        return rows, copies

    def bounds(self, block: Block, rows: Rows, room: int, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """At v some rows are active, at most `room` where v is to be found again from averages."""
        values = np.asarray(rows.mean(jnp.asarray(self.v)))
        active = self.rng.random(block.rows) < 0.5
        if self.defect in ("meet", "weak") or self.shape.objective == "linear":  # the latter ends in a corner
            active[:] = True
        if self.defect != "meet":
            active &= np.cumsum(active) <= room
        if self.defect in ("copy", "opposite") and first and block.rows > 1:
            active[:2] = True
        active |= block.equal
        size = np.linalg.norm(np.asarray(rows.matrix), axis=1)
        return values + block.sign * np.where(active, 0, size * self.rng.uniform(0.3, 1.5, block.rows)), active

    def contradicted(self, block: Block, rows: Rows) -> tuple[Rows, np.ndarray]:
        """Two rows that cannot both hold, or one that cannot hold within the set, by a clear margin."""
        gap = self.rng.uniform(0.3, 1.5)
        none = {n: getattr(rows, n) * 0 for n in ("quadratic", "weight") if getattr(rows, n) is not None}
        rows = with_(rows, **none)
        a = np.array(rows.matrix)
        if block.rows > 1:
            a[1] = a[0] if block.equal else -a[0]
            bound = a @ self.v
            gap *= np.linalg.norm(a[0])
            bound[1] += gap if block.equal else -block.sign * gap
            return with_(rows, matrix=a), bound
        if self.shape.within == "nonnegative":  # a'x has a least value there
            a = np.abs(a) * block.sign
        far = self.reach(-block.sign * a[0])
        return with_(rows, matrix=a), np.array([-block.sign * (far + gap * np.linalg.norm(a))])

    def reach(self, a: np.ndarray) -> float:
        """max a'x over the set."""
        numbers, within = self.set_numbers, self.shape.within
        if within == "box":
            return float(np.maximum(a * numbers["low"], a * numbers["high"]).sum())
        if within == "simplex":
            return float(numbers["total"] * a.max())
        if within == "ball":
            return float(a @ numbers["center"] + numbers["radius"] * np.linalg.norm(a))
        return 0.0  # nonnegative, a <= 0

    # --- the whole

    def curvature(self) -> np.ndarray:
        rng, d = self.rng, self.shape.d
        if self.shape.objective == "linear":
            return np.zeros((d, d))
        values = 10 ** (rng.uniform(-1.5, 0, d) + rng.uniform(-0.5, 0.5))
        if self.truth == "nonconvex" and self.shape.bounded:
            values *= rng.choice([-1, 1], d)
        hessian = turned(rng, d, values) / np.outer(self.units, self.units)
        if self.direction is not None:
            p = self.direction / np.linalg.norm(self.direction)
            flat = np.eye(d) - np.outer(p, p)
            hessian = flat @ hessian @ flat - rng.choice([0.0, 0.3]) * np.outer(p, p)
        return hessian

    def function(self) -> Objective:
        rng, d, kind = self.rng, self.shape.d, self.shape.objective
        factors = rng.standard_normal((2 * d, d)) / self.units if kind in ("logsumexp", "logistic") else None
        waves = rng.uniform(0.3, 1.0, d) * (self.truth == "nonconvex") if kind == "cosine" else None
        slope = rng.standard_normal(d) / self.units
        if self.direction is not None:
            p = self.direction
            slope += p * (-rng.uniform(0.3, 1) * np.linalg.norm(p) - slope @ p) / (p @ p)
        straight = kind == "linear" or self.truth == "unbounded"
        deviation = np.array([rng.choice([0.0, 0.1, 0.5]), rng.choice([0.0, 0.1]) * (not straight)])
        arrays = (self.curvature(), slope, factors, waves, deviation)
        return Objective(*(None if a is None else jnp.asarray(a) for a in arrays), kind == "logistic")

    def case(self) -> Case:
        rng, shape, drawn, copies, actives = self.rng, self.shape, [], [], []
        broken = self.where_broken()
        room = shape.d - self.at_edge - sum(b.rows for b in shape.blocks if b.equal)
        defect_at = next((i for i, b in enumerate(shape.blocks) if b.rows > 1), None)
        for i, block in enumerate(shape.blocks):
            rows = self.rows(i, block)
            if self.direction is not None:
                rows = self.inwards(block, rows)
            rows, copied = self.mended(block, rows, i == defect_at)
            bound, active = self.bounds(block, rows, room, i == defect_at)
            if i == broken:
                rows, bound = self.contradicted(block, rows)
            room -= 0 if block.equal else int(active.sum())
            size = 10 ** rng.uniform(-2, 2, block.rows) if rng.random() < 0.3 else np.ones(block.rows)
            drawn.append((scaled(rows, size), bound * size))
            copies.append(copied)
            actives.append(active)
        start = rng.standard_normal(shape.d) * self.units
        case = Case(
            shape,
            self.truth,
            self.function(),
            tuple(rows for rows, _ in drawn),
            tuple(bound for _, bound in drawn),
            self.set_numbers,
            start,
            self.v if self.truth in ("convex", "degenerate") else None,
            np.concatenate([np.zeros(0, bool), *copies]),
        )
        return case if case.solution is None else self.solved_by_v(case, actives)

    def where_broken(self) -> int | None:
        """The constraint that makes it infeasible."""
        if self.truth != "infeasible":
            return None
        edge = self.shape.within in ("box", "ball", "simplex", "nonnegative")
        return int(self.rng.choice([i for i, block in enumerate(self.shape.blocks) if edge or block.rows > 1]))

    def solved_by_v(self, case: Case, actives: list[np.ndarray]) -> Case:
        """With multipliers drawn for active rows, and the slope of the objective that makes v the solution."""
        at_v = look(case, self.v)
        active = np.concatenate([np.zeros(0, bool), *actives, at_v.residuals[case.shape.rows :] > -1e-9])
        size = np.maximum(np.linalg.norm(at_v.jacobian, axis=1), 1e-12)
        push = np.where(at_v.equal, self.rng.standard_normal(len(active)), self.rng.uniform(0.2, 1, len(active)))
        if self.defect == "weak":
            push = np.where(at_v.equal, push, push * (self.rng.random(len(active)) < 0.5))
        needed = -at_v.jacobian.T @ np.where(active, push / size / self.units.max(), 0)
        slope = case.objective.slope + (needed - at_v.slope)
        return Case(**{**vars(case), "objective": with_(case.objective, slope=slope)})


def with_(module: Any, **changes: Any) -> Any:
    """The module with other arrays."""
    fields = {name: getattr(module, name) for name in module.__dataclass_fields__}
    arrays = {name: jnp.asarray(value) for name, value in changes.items()}
    return type(module)(**{**fields, **arrays})


def scaled(rows: Rows, size: np.ndarray) -> Rows:
    """Each row times a number."""
    names = ("matrix", "quadratic", "weight", "deviation", "slope_deviation")
    present = {name: np.asarray(getattr(rows, name)) for name in names if getattr(rows, name) is not None}
    return with_(rows, **{n: size.reshape(-1, *(1,) * (a.ndim - 1)) * a for n, a in present.items()})
