"""What each part of the default method does: `python -m benchmarks.suite.ablations [--seeds 8] [--write]`.

The method with one part taken out or replaced, on problems of the suite, in units of the statistical limit. With
`--write` the table and the figure go into `docs/theory`.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (the precision is chosen first)
import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

import lariax as lx  # noqa: E402
from benchmarks._results import replace_section  # noqa: E402
from benchmarks.suite.limits import solve  # noqa: E402
from benchmarks.suite.problems import by_name  # noqa: E402
from benchmarks.suite.run import Score, joined, pair, scored, solved_by_lariax  # noqa: E402
from lariax.tuned.rule import Lengths, Rule  # noqa: E402

mpl.use("Agg")

PROBLEMS = ("toy50", "bias2", "mixscale", "flatT", "sigL")
DRAWS = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
SHOWN = (2000, 10_000, 50_000)
PAGE = Path(__file__).parents[2] / "docs" / "theory" / "self-tuned.md"

Tracked = lx.TrackedLagrangian


# --- the parts, each replaced by something plainer


class _NoDriftRule(Rule):
    part: ClassVar[str] = "gradient"

    def gains(self, s: Any, k: Any) -> Any:
        name = f"{self.part}_filter"
        filter = getattr(s, name)
        return super().gains(s._replace(**{name: filter._replace(drift=0 * filter.drift)}), k)


class _NoDriftOfValuesRule(_NoDriftRule):
    part: ClassVar[str] = "constraint"


class NoDrift(Tracked):
    """Q = 0 in the filter of the gradient: as if moves of x brought no noise. Steps are held back by it as ever."""

    drifting: ClassVar[type[_NoDriftRule]] = _NoDriftRule

    def rule(self, oracle: Any) -> Rule:
        return self.drifting(**vars(super().rule(oracle)))

    def _step(self, oracle: Any, state: Any, k: Any, *args: Any, **options: Any) -> Any:
        new = super()._step(oracle, state, k, *args, **options)
        alphas = self.rule(oracle).gains(state.rule, k)
        kept = 1 - (alphas.gradient if self.drifting.part == "gradient" else alphas.constraints)
        name = f"{self.drifting.part}_filter"
        filter = getattr(new.rule, name)
        without = filter._replace(error=jnp.maximum(filter.error - kept**2 * filter.drift, 0))
        return new._replace(rule=new.rule._replace(**{name: without}))


class NoDriftOfValues(NoDrift):
    """Likewise in the filters of the constraint values."""

    drifting: ClassVar[type[_NoDriftRule]] = _NoDriftOfValuesRule


class CommonWeights(Tracked):
    """One weight for all samples, made from all of them: biased."""

    def rule(self, oracle: Any) -> Rule:
        def all_samples(each: Any) -> Any:
            return jnp.broadcast_to(jnp.mean(each, axis=0), each.shape)

        return replace(super().rule(oracle), partners=all_samples)


class NoWhitening(Tracked):
    """M = 1 / ||J J^T||, the same for every direction of the constraints."""

    def init(self, *args: Any) -> Any:
        return _plain(super().init(*args))

    def refresh(self, *args: Any) -> Any:
        return _plain(super().refresh(*args))


class NoController(Tracked):
    """theta = 1: steps as long as curvature permits, however noisy."""

    def _step(self, *args: Any, **options: Any) -> Any:
        state = super()._step(*args, **options)
        return state._replace(rule=state.rule._replace(theta=jnp.ones_like(state.rule.theta)))


class _NoSecantRule(Rule):
    def lengths(self, s: Any) -> Lengths:
        rho = super().lengths(s).rho
        return Lengths(s.theta / (s.curvature.largest + rho + self.tiny), rho)


class NoSecant(Tracked):
    """eta = theta / (L + rho), without the bound from differences whose weights have followed the step."""

    def rule(self, oracle: Any) -> Rule:
        return _NoSecantRule(**vars(super().rule(oracle)))


def _plain(state: Any) -> Any:
    shape = state.rule.shape
    tiny = jnp.finfo(shape.gram.dtype).tiny
    whole = jnp.eye(len(shape.gram), dtype=shape.gram.dtype) / (jnp.linalg.norm(shape.gram, 2) + tiny)
    return state._replace(rule=state.rule._replace(shape=shape._replace(penalty=whole, dual=whole)))


VARIANTS: dict[str, tuple[str, Callable[[], Tracked]]] = {
    "as it is": ("", Tracked),
    "gain (k + 1)^-2/3": ("gain", lambda: Tracked(gain_exponent=2 / 3)),
    "gain 1: no averaging": ("gain", lambda: Tracked(gain_exponent=1e-12)),
    "no drift of the gradient": ("drift", NoDrift),
    "no drift of the values": ("drift", NoDriftOfValues),
    "weights from all samples": ("weights", CommonWeights),
    "no whitening": ("weights", NoWhitening),
    "theta = 1": ("step", NoController),
    "no secant bound": ("step", NoSecant),
}


# --- the command


def measured(problem: str, seeds: int, console: Console) -> dict[str, list[Score]]:
    case = by_name(problem)
    solved, scores = solve(case), {}
    for name, (_, method) in VARIANTS.items():
        runs = solved_by_lariax(case, list(DRAWS), range(seeds), 2, "float64", method())
        scores[name] = scored(solved, joined(list(runs)))
        cells = "  ".join(f"{s.draws:,}: {pair(s.rms)}" for s in scores[name] if s.draws in SHOWN)
        console.print(f"{problem:10s} {name:26s} {cells}", highlight=False)
        jax.clear_caches()
    return scores


def table(found: dict[str, dict[str, list[Score]]], seeds: int) -> str:
    head = [f"{problem}, {n:,}" for problem in found for n in SHOWN]
    lines = [
        f"`python -m benchmarks.suite.ablations --seeds {seeds} --write`: rms over {seeds} seeds of stationarity / "
        "feasibility, in units of the statistical limit, after so many draws, batch size 2; each row has one part of "
        "the method taken out or replaced.",
        "",
        f"| | {' | '.join(head)} |",
        "|---|" + "---:|" * len(head),
    ]
    for name in VARIANTS:
        scores = (score for problem in found for score in found[problem][name] if score.draws in SHOWN)
        lines.append(f"| {name} | {' | '.join(_brief(score.rms) for score in scores)} |")
    return "\n".join([*lines, "", "![ablations](ablations.png)"])


def _brief(values: np.ndarray) -> str:
    return " / ".join(f"{v:.2f}" if v < 10 else f"{v:.0f}" if v < 1e4 else f"{v:.0e}" for v in values)


def draw(found: dict[str, dict[str, list[Score]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    groups = ("gain", "drift", "weights", "step")
    figure, panels = plt.subplots(
        len(found), len(groups), figsize=(13, 2.7 * len(found)), constrained_layout=True, sharex=True, sharey="row"
    )
    for row, (problem, scores) in zip(panels, found.items(), strict=True):
        for panel, group in zip(row, groups, strict=True):
            panel.axhline(1, color="0.3", linestyle="--", linewidth=1)
            for name, (belongs, _) in VARIANTS.items():
                if belongs not in ("", group):
                    continue
                larger = [min(score.rms.max(), 1e3) for score in scores[name]]
                style = {"color": "black", "linewidth": 2} if not belongs else {}
                panel.loglog([score.draws for score in scores[name]], larger, marker=".", label=name, **style)
            panel.set(title=f"{problem}: {group}", ylim=(0.5, 1e3))
            panel.grid(alpha=0.3)
    for panel in panels[0]:
        panel.legend(fontsize=8)
    for panel in panels[-1]:
        panel.set_xlabel("draws")
    for row in panels:
        row[0].set_ylabel("error over the limit")
    figure.savefig(path, dpi=70)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite.ablations", description=__doc__)
    parser.add_argument("problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="write table and figure to docs/theory")
    options, console = parser.parse_args(), Console(width=160)
    found = {problem: measured(problem, options.seeds, console) for problem in options.problems}
    console.print(table(found, options.seeds), highlight=False)
    if options.write:
        replace_section("ablations", table(found, options.seeds), PAGE)
        draw(found, PAGE.parent / "ablations.png")


if __name__ == "__main__":
    main()
