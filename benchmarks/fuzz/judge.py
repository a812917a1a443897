"""Is an answer right? By the truth that a case was built with, or by the KKT conditions of its exact expectations; what
the noise of so many samples excuses is excused."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize, nnls

from benchmarks.fuzz.problems import Case, Look, look

TIMES = 10.0
"""An answer is right within so many statistical limits,"""

FLOOR = 2e-3
"""and so much for what has no limit: x where nothing is noisy."""

AVERAGES = 12
"""So many sample-average problems are solved for the limit of a convex problem."""


class Verdict(NamedTuple):
    word: str  # right, said not, WRONG, false infeasible, missed; late, after a second look
    ratio: float  # of the error to what is excused, where an answer was judged
    why: str


def judged(case: Case, status: str, x: np.ndarray, draws: int, seed: int, doubt: str = "") -> Verdict:
    """A run's answer. `draws`: the samples that it saw from each source. `doubt`: what its end says against x."""
    found = _judged(case, status, x, draws, seed)
    return found._replace(word="said not") if doubt and found.word in ("WRONG", "missed") else found


def _judged(case: Case, status: str, x: np.ndarray, draws: int, seed: int) -> Verdict:
    if case.truth in ("infeasible", "unbounded"):
        return _hopeless(case.truth, status)
    if status == "infeasible_stationary":
        if case.truth == "nonconvex" and stuck(case, look(case, x)):
            return Verdict("said not", np.nan, "no way to less violation from there")
        return Verdict("false infeasible", np.nan, "there are points that satisfy all constraints")
    if status != "budget":
        return Verdict("said not", np.nan, status)
    if not np.all(np.isfinite(x)):
        return Verdict("WRONG", np.inf, "x is not finite")
    of_averages = np.nan if case.solution is None else limit(case, draws, seed)
    if case.solution is not None and np.isfinite(of_averages):
        away = float(np.linalg.norm(x - case.solution))
        excused = TIMES * of_averages + FLOOR * (1 + float(np.linalg.norm(case.solution)))
        return _measured(away / excused, f"{away:.2g} from the solution, excused {excused:.2g}")
    here = look(case, x)
    (stationary, violated), multipliers = kkt(here)
    slack, give = excuse(case, here, x, multipliers, draws)
    ratio = max(stationary / slack, violated / give)
    why = f"stationarity {stationary:.2g} (excused {slack:.2g}), violation {violated:.2g} (excused {give:.2g})"
    return _measured(ratio, why)


def _measured(ratio: float, why: str) -> Verdict:
    return Verdict("right" if ratio <= 1 else "WRONG", ratio, why)


def _hopeless(truth: str, status: str) -> Verdict:
    words = {"infeasible": ("infeasible_stationary",), "unbounded": ("diverged", "unbounded")}[truth]
    if status in words:
        return Verdict("right", np.nan, status)
    if truth == "unbounded" and status == "infeasible_stationary":
        return Verdict("false infeasible", np.nan, "there are points that satisfy all constraints")
    return Verdict("missed" if status == "budget" else "said not", np.nan, status)


def sizes(here: Look) -> np.ndarray:
    return np.maximum(np.linalg.norm(here.jacobian, axis=1), 1e-12)


def kkt(here: Look) -> tuple[tuple[float, float], np.ndarray]:
    """How far the KKT conditions are missed, and the multipliers for which it is least.

    Stationarity is min over y of || (gradient + J'y, y * slack) ||, y >= 0 for inequalities: it needs no decision which
    rows are active. The violation is that of rows scaled to a slope of 1.
    """
    size = sizes(here)
    rows, residuals = here.jacobian / size[:, None], here.residuals / size
    signs = np.where(here.equal, -1.0, 0.0)  # equalities once more, with the other sign
    both = np.concatenate([rows, (signs[:, None] * rows)[here.equal]])
    slack = np.concatenate([np.where(here.equal, 0, np.maximum(-residuals, 0)), np.zeros(here.equal.sum())])
    if not len(both):
        return (float(np.linalg.norm(here.slope)), 0.0), np.zeros(0)
    y, missed = nnls(np.vstack([both.T, np.diag(slack)]), np.append(-here.slope, np.zeros(len(both))), maxiter=1000)
    multipliers = y[: len(rows)]
    multipliers[here.equal] -= y[len(rows) :]
    violated = np.where(here.equal, residuals, np.maximum(residuals, 0))
    return (float(missed), float(np.linalg.norm(violated))), multipliers / size


def excuse(case: Case, here: Look, x: np.ndarray, y: np.ndarray, draws: int) -> tuple[float, float]:
    """What averages of so many draws would miss them by: the noise of the gradient, of J'y, of values.

    At most a part of the gradient, so that large multipliers do not excuse everything.
    """
    own = y[: case.shape.rows]
    values = np.concatenate([np.zeros(0), *(_value_noise(rows, x) for rows in case.rows)])
    slopes = np.concatenate([np.zeros((0, x.size)), *(np.asarray(rows.slope_deviation) for rows in case.rows)])
    linear, curved = np.asarray(case.objective.deviation)
    gradient = linear**2 * x.size + curved**2 * (x @ x)
    total = gradient + np.sum((own[:, None] * slopes) ** 2) + np.sum((own * values) ** 2)
    least = FLOOR * (1 + float(np.linalg.norm(here.slope)))
    most = 0.2 * float(np.linalg.norm(here.slope) + np.sqrt(gradient)) + least
    size = sizes(here)[: len(values)]
    held = TIMES * np.sqrt(np.sum((values / size) ** 2) / draws) + FLOOR * (1 + np.linalg.norm(x))
    return float(min(TIMES * np.sqrt(total / draws) + least, most)), float(held)


def _value_noise(rows: object, x: np.ndarray) -> np.ndarray:
    return np.abs(np.asarray(rows.deviation) + np.asarray(rows.slope_deviation) @ x)  # type: ignore[attr-defined]


def stuck(case: Case, here: Look) -> bool:
    """Whether x violates constraints, and no direction within the set lowers that much: its slope, rows scaled to 1, is
    small beside it but for what the edges of the set take."""
    size, own = sizes(here), case.shape.rows
    rows, residuals = here.jacobian / size[:, None], here.residuals / size
    left = np.where(here.equal, residuals, np.maximum(residuals, 0))[:own]
    slope = rows[:own].T @ left
    edges = np.concatenate([rows[own:][residuals[own:] > -1e-6], -rows[own:][here.equal[own:]]])
    rest = nnls(edges.T, -slope)[1] if len(edges) else np.linalg.norm(slope)
    return bool(rest < 0.2 * np.linalg.norm(left) and np.linalg.norm(left) > 10 * FLOOR)


def limit(case: Case, draws: int, seed: int) -> float:
    """The rms distance from the solution of those of sample-average problems, solved from there by SLSQP; nan, if none
    of them has a solution, as where noise parts rows that meet in one point."""
    rng, away = np.random.default_rng(seed), []
    for _ in range(AVERAGES):
        z = averages(case, rng, draws)
        found = solved_exactly(case, np.asarray(case.solution), z)
        if found is not None:
            away.append(np.sum((found - case.solution) ** 2))
    return float(np.sqrt(np.mean(away))) if away else np.nan


def averages(case: Case, rng: np.random.Generator, draws: int) -> tuple[np.ndarray, ...]:
    """The mean noise of so many samples: of the objective and of each constraint, from its own source or the same."""
    shared = rng.standard_normal(case.shape.numbers) / np.sqrt(draws)
    own = [rng.standard_normal(case.shape.numbers) / np.sqrt(draws) for _ in case.rows]
    return (shared, *(z if b.samples == "own" else shared for b, z in zip(case.shape.blocks, own, strict=True)))


def solved_exactly(
    case: Case, start: np.ndarray, z: tuple[np.ndarray, ...] | None = None, steps: int = 200
) -> np.ndarray | None:
    """By SLSQP from a start, with the noise z or in the mean; None: it failed."""
    seen: dict[bytes, Look] = {}

    def at(x: np.ndarray) -> Look:
        key = x.tobytes()
        if key not in seen:
            seen.clear()
            seen[key] = look(case, x, z)
        return seen[key]

    first = at(start)
    size = sizes(first)
    kept = ~np.append(case.copies, np.zeros(len(size) - len(case.copies), bool))
    parts = []
    for kind, rows, sign in (("eq", first.equal & kept, 1.0), ("ineq", ~first.equal & kept, -1.0)):
        if rows.any():
            parts.append(
                {
                    "type": kind,
                    "fun": lambda x, r=rows, s=sign: s * (at(x).residuals / size)[r],
                    "jac": lambda x, r=rows, s=sign: s * (at(x).jacobian / size[:, None])[r],
                }
            )
    found = minimize(
        lambda x: at(x).value,
        start,
        jac=lambda x: at(x).slope,
        constraints=parts,
        method="SLSQP",
        options={"maxiter": steps, "ftol": 1e-13},
    )
    return found.x if found.success else None
