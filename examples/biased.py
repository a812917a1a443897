"""A problem that same-batch methods get wrong, solved twice: `python examples/biased.py`.

    minimise  (x1^2 + (x2 - 2)^2) / 2    subject to    E[ x1 + x2 - 1 + 2 z (x1 - x2) ] = 0,   z standard normal

In expectation the constraint is the line x1 + x2 = 1, and the solution is (-0.5, 1.5). A penalty on the square of a
batch's mean also penalises its *variance*, 4 (x1 - x2)^2 / 8 for a batch of 8: the answer is drawn towards x1 = x2,
looks feasible, and is wrong. Products of different samples have no such bias.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from rich.console import Console
from rich.table import Table

import lariax as lx

PICTURE = Path("lariax-demo.png")
START = jnp.array([1.6, -1.1])
SOLUTION = np.array([-0.5, 1.5])
BATCH = 8
PHASES = ((200, 1), (19_800, 99))  # iterations, and how often the path is looked at
ITERATIONS = sum(length for length, _ in PHASES)
INK, OURS, THEIRS = "#22262e", "#0a5f8a", "#d1495b"


def objective(x):
    return (x[0] ** 2 + (x[1] - 2) ** 2) / 2


def constraint(x, z):
    return x[0] + x[1] - 1 + 2 * z * (x[0] - x[1])


def with_lariax():
    """The default method, without a setting: a sample's constraint gradient is weighted by other samples' values."""
    problem = lx.Problem(
        objective,
        constraints={"line": lx.Equal(constraint, samples=lx.Distribution(jax.random.normal))},
    )
    path = [START]

    def watch(snapshot):
        path.append(snapshot.x)

    result = START
    for length, every in PHASES:  # the first phase starts, the others go on
        new = {"batch_size": BATCH} if result is START else {}
        result = lx.solve(problem, result, iterations=length, record_every=every, callback=watch, **new)
    return np.asarray(result.x), np.stack(path)


def with_the_same_batch(penalty=10.0):
    """The augmented Lagrangian as automatic differentiation of a batch's loss gives it: y c + (rho / 2) c^2."""

    def loss(x, y, z):
        c = jnp.mean(jax.vmap(constraint, (None, 0))(x, z))
        return objective(x) + y * c + penalty / 2 * c**2, c

    def step(k, state):
        x, y = state
        z = jax.random.normal(jax.random.fold_in(jax.random.key(0), k), (BATCH,))
        step_size = 0.01 * (k + 1.0) ** -0.5
        gradient, c = jax.grad(loss, has_aux=True)(x, y, z)
        return x - step_size * gradient, y + step_size * c

    several = jax.jit(lambda state, first, last: jax.lax.fori_loop(first, last, step, state))
    state, k, path = (START, jnp.zeros(())), 0, [START]
    for length, every in PHASES:
        for _ in range(length // every):
            state, k = several(state, k, k + every), k + every
            path.append(state[0])
    return np.asarray(state[0]), np.stack(path)


def draw(ours, theirs, picture=PICTURE, size=8, dpi=150):
    """The two paths over the contours of the objective."""
    figure = Figure(figsize=(size, size + 0.4), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.075, 0.065, 0.9, 0.84))
    left, right, low, high = -1.9, 2.3, -1.6, 2.6
    grid = np.stack(np.meshgrid(np.linspace(left, right, 300), np.linspace(low, high, 300)))
    values = objective(grid)
    levels = np.linspace(0, np.sqrt(values.max()), 18) ** 2
    axes.contourf(*grid, values, levels, cmap="GnBu", alpha=0.55)
    axes.contour(*grid, values, levels, colors="white", linewidths=0.9)

    halo = [withStroke(linewidth=3.5, foreground="white")]
    ends = np.array([left, right])
    axes.plot(ends, 1 - ends, color=INK, linewidth=1.8, linestyle=(0, (6, 3)), zorder=2)
    axes.text(-1.05, 2.1, "E[c] = 0", color=INK, rotation=-45, fontsize=12, path_effects=halo, ha="center", va="bottom")
    for path, color in ((theirs, THEIRS), (ours, OURS)):
        axes.plot(*path.T, color="white", linewidth=4, alpha=0.8, zorder=3, solid_joinstyle="round")
        axes.plot(*path.T, color=color, linewidth=1.7, zorder=4, solid_joinstyle="round")
    axes.plot(*SOLUTION, "*", color="#ffc53d", markersize=27, markeredgecolor=INK, markeredgewidth=1.1, zorder=5)
    for point, color, size in ((START, INK, 8), (theirs[-1], THEIRS, 11), (ours[-1], OURS, 9)):
        axes.plot(*point, "o", color=color, markersize=size, markeredgecolor="white", markeredgewidth=1.5, zorder=6)

    def label(text, point, offset, color, side="left"):
        axes.annotate(
            text,
            point,
            xytext=offset,
            textcoords="offset points",
            ha=side,
            fontsize=12.5,
            color=color,
            zorder=7,
            path_effects=halo,
        )

    label("start", START, (11, -4), INK)
    label(f"Lariax\n({ours[-1][0]:.2f}, {ours[-1][1]:.2f})", ours[-1], (20, 10), OURS)
    label(f"solution\n({SOLUTION[0]:.2f}, {SOLUTION[1]:.2f})", SOLUTION, (-18, -32), INK, "right")
    label(f"penalty on the batch\n({theirs[-1][0]:.2f}, {theirs[-1][1]:.2f})", theirs[-1], (-14, -28), THEIRS, "right")
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
    axes.tick_params(colors="#6b7280", length=0)
    axes.spines[:].set_visible(False)
    title = "A penalty on a batch's constraint is biased;\nproducts of different samples are not"
    axes.set_title(title, loc="left", fontsize=13.5, color=INK, pad=10)
    figure.savefig(picture)


def main():
    console = Console()
    table = Table(title=f"{ITERATIONS:,} iterations, batches of {BATCH}", title_justify="left")
    for heading in ("", "answer", "distance", "constraint", "seconds"):
        table.add_column(heading, justify="right" if heading else "left")
    paths = {}
    for name, run in (("Lariax, no settings", with_lariax), ("penalty on the batch", with_the_same_batch)):
        began = time.perf_counter()
        with console.status(name):
            x, paths[name] = run()
        table.add_row(
            name,
            f"({x[0]:.3f}, {x[1]:.3f})",
            f"{np.linalg.norm(x - SOLUTION):.3f}",
            f"{constraint(x, 0.0):+.3f}",  # linear in z, so this is the expectation
            f"{time.perf_counter() - began:.1f}",
        )
    console.print(table)
    draw(*paths.values())
    console.print(f"The paths are in {PICTURE}.")


if __name__ == "__main__":
    main()
