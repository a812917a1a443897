"""How long a newcomer waits for a first answer: `python -m benchmarks.first_answer [--write]`.

Every figure is from processes of their own: CPU seconds of importing, of a first `solve`, of its certificate, and how
many programs were compiled, with nothing kept on disk and with programs kept by `keep_programs`. Beside them peers on
the same task: the same rows, batches and number of steps by cooper, all rows by SciPy; and the calls of `lariax.torch`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from rich.console import Console

from benchmarks._results import RESULTS, origin, table, write

MEASURE = """
import json, os, resource, sys
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
at = [cpu()]
def lap():
    at.append(cpu())
    return at[-1] - at[-2]
found = {}
"""
OURS = """
import jax
found["import jax"] = lap()
import lariax as lx
found["import lariax"] = lap()
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: compiled.append(seconds) if name.endswith("backend_compile_duration") else None
)
import jax.numpy as jnp
"""
END = """
print(json.dumps(found))
"""
ROWS = """
import numpy as np
rng = np.random.default_rng(0)
x = rng.normal(size=(5000, 10)).astype(np.float32)
y = (x @ rng.normal(size=10) + rng.logistic(size=5000) > 0).astype(np.float32)
group = (rng.random(5000) < 0.5).astype(np.float32)
"""
TASKS = {
    "two variables, an equation": """
problem = lx.Problem(
    lambda x, z: 0.5 * (x[0] ** 2 + (x[1] - 2) ** 2),
    samples=lx.Distribution(jax.random.normal),
    constraints={"line": lx.Equal(lambda x, z: x[0] + x[1] - 1 + 2 * z * (x[0] - x[1]))},
)
x0 = jnp.zeros(2)
""",
    "logistic regression, 5,000 rows, an inequality": ROWS
    + """
problem = lx.Problem(
    lambda w, r: jnp.logaddexp(0.0, r["x"] @ w) - r["y"] * (r["x"] @ w),
    samples=lx.Dataset({"x": x, "y": y, "group": group}),
    constraints={"gap": lx.AtMost(lambda w, r: (2 * r["group"] - 1) * jax.nn.sigmoid(r["x"] @ w), 0.01)},
)
x0 = jnp.zeros(10)
""",
}
SOLVE = """
lap()
result = lx.solve(problem, x0, iterations=2000, batch_size=8)
found["first solve"] = lap()
result.certificate
found["certificate"] = lap()
found["programs compiled"] = len(compiled)
lx.solve(problem, x0, iterations=2000, batch_size=8, seed=1)
found["second solve"] = lap()
"""
COOPER = (
    """
import torch, cooper
found["import torch, cooper"] = lap()
"""
    + ROWS
    + """
x, y, group = map(torch.as_tensor, (x, y, group))
w = torch.zeros(10, requires_grad=True)
multiplier = cooper.multipliers.DenseMultiplier(num_constraints=1)

class Gap(cooper.ConstrainedMinimizationProblem):
    def __init__(self):
        super().__init__()
        self.gap = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
            multiplier=multiplier,
        )

    def compute_cmp_state(self, rows):
        score = x[rows] @ w
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, y[rows])
        gap = ((2 * group[rows] - 1) * torch.sigmoid(score)).mean() - 0.01
        return cooper.CMPState(loss=loss, observed_constraints={self.gap: cooper.ConstraintState(violation=gap[None])})

problem = Gap()
optimizer = cooper.optim.SimultaneousOptimizer(
    cmp=problem,
    primal_optimizers=torch.optim.Adam([w], lr=0.01),
    dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=0.01, maximize=True),
)
for _ in range(2000):
    optimizer.roll(compute_cmp_state_kwargs={"rows": torch.randint(5000, (8,))})
found["2,000 steps"] = lap()
"""
)

SCIPY = (
    """
import numpy as np
from scipy.optimize import NonlinearConstraint, minimize
found["import scipy"] = lap()
"""
    + ROWS
    + """
sign = 2 * group - 1
def loss(w):
    score = x @ w
    return np.mean(np.logaddexp(0, score) - y * score), x.T @ (1 / (1 + np.exp(-score)) - y) / len(y)
def gap(w):
    return np.mean(sign / (1 + np.exp(-x @ w)))
answer = minimize(loss, np.zeros(10), jac=True, method="SLSQP", constraints=NonlinearConstraint(gap, -np.inf, 0.01))
assert answer.success, answer
found["SLSQP on all rows"] = lap()
"""
)
TORCH = (
    """
import torch, lariax.torch as lt
found["import torch, lariax.torch"] = lap()
"""
    + ROWS
    + """
x, y, group = map(torch.as_tensor, (x, y, group))
model = torch.nn.Linear(10, 1)
optimizer = lt.TrackedLagrangian(model.parameters(), constraints={"gap": lt.AtMost(0.01)})
def closure(rows):
    score = model(x[rows])[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(score, y[rows], reduction="none")
    return loss, {"gap": (2 * group[rows] - 1) * torch.sigmoid(score)}
def calls(count):
    lap()
    for _ in range(count):
        optimizer.step(closure, torch.randint(5000, (8,)))
    return 1000 * lap() / count
found["ms a call of the first 256"] = calls(256)
calls(744)
found["ms a later one"] = calls(1000)
"""
)
PEERS = {
    "cooper, the logistic regression": COOPER,
    "SciPy, the logistic regression, which is no stochastic method": SCIPY,
    "lariax.torch, the logistic regression": TORCH,
}


def measured(script: str, cache: str | None = None) -> dict[str, float]:
    """The figures that a script leaves, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    if cache is not None:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"OMP_NUM_THREADS": "1"},
        cwd=RESULTS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_answer", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page of the results")
    options, console, began = parser.parse_args(), Console(width=160), time.perf_counter()
    rows: list[list[str]] = []
    head = ["", "import jax", "import lariax", "first solve", "certificate", "programs compiled", "second solve"]
    for name, task in TASKS.items():
        script = MEASURE + OURS + task + SOLVE + END
        with tempfile.TemporaryDirectory() as cache:
            measured(script, cache)
            for where, folder in (("", None), (", programs kept", cache)):
                found = measured(script, folder)
                rows.append([name + where, *(f"{found[column]:.2f}".removesuffix(".00") for column in head[1:])])
                console.print(rows[-1])
    notes = []
    for name, script in PEERS.items():
        figures = (
            f"{what} {value:.2f}" + ("" if what.startswith("ms") else " s")
            for what, value in measured(MEASURE + script + END).items()
        )
        notes += [f"- {name}: {', '.join(figures)}"]
    text = [
        "# A first answer",
        "",
        origin("benchmarks.first_answer", ("lariax", "jax", "torch", "cooper-optim"), time.perf_counter() - began),
        "",
        "CPU seconds in a new process; 2,000 iterations with batches of 8. Goals: `import lariax` 0.5 s, first `solve` "
        "4 s, certificate 1.5 s.",
        "",
        *table(head, rows),
        "",
        "Beside it:",
        "",
        *notes,
    ]
    console.print("\n".join(text), markup=False)
    if options.write:
        console.print(f"written to {write('first-answer', chr(10).join(text))}")


if __name__ == "__main__":
    main()
