"""Training with constraints in torch beside cooper and humancompatible-train, in one run on one core.

    python -m benchmarks.torch_peers --settings 30 --seconds 20 --out peers.json

Adult, a 64-32 network, the gap between the mean losses of the groups within 0.005; and Fashion-MNIST, a 64-32 network,
the mean loss of each class at most 0.1 above the mean of all classes. A method runs for some seconds of processor time;
now and then, on a stopped clock, the exact values over all training rows and the AUC on test rows are looked at.
Rivals are run with every setting of a grid, and the best counts: the one that is first within the bound with an AUC of
at least 0.80 (Adult) or 0.85 (Fashion-MNIST).
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import cooper
import numpy as np
import torch
from humancompatible.train.dual_optim.alm import ALM

import lariax.torch as lt
from lariax.gallery.fairness import people

IMAGES = Path(__file__).parents[2] / "shared" / "data" / "fashion_mnist_8k.npz"
LOOKS = 20


class Task(NamedTuple):
    """Rows by stratum; a sample has one row of each. Constraints are at most 0 in the mean."""

    name: str
    strata: list[tuple[torch.Tensor, torch.Tensor]]  # (inputs, labels)
    shares: torch.Tensor  # of the strata, in the objective
    test: tuple[torch.Tensor, torch.Tensor]
    outputs: int
    rows: int  # samples in a batch
    useful: float  # the AUC from which on a model counts: one that has learned nothing keeps the bound
    values: Callable[[torch.Tensor], torch.Tensor]  # (n, strata) losses -> (n, m) constraint values

    def model(self, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        sizes = [self.strata[0][0].shape[1], 64, 32, self.outputs]
        layers = [part for a, b in itertools.pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        return torch.nn.Sequential(*layers[:-1])

    def losses(self, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = model(x)
        if self.outputs == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(out.squeeze(-1), y, reduction="none")
        return torch.nn.functional.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)

    def closure(self, model: torch.nn.Module) -> Callable:
        def closure(batch):
            losses = self.losses(model, *batch)  # (n, strata)
            return losses @ self.shares, {"gap": self.values(losses)}

        return closure

    def batches(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            picks = [torch.randint(0, len(y), (self.rows,), generator=generator) for _, y in self.strata]
            x = torch.stack([x[i] for (x, _), i in zip(self.strata, picks, strict=True)], dim=1)
            yield x, torch.stack([y[i] for (_, y), i in zip(self.strata, picks, strict=True)], dim=1)

    @torch.no_grad()
    def look(self, model: torch.nn.Module) -> tuple[float, float]:
        """The largest constraint value over all training rows, and the AUC on test rows."""
        means = torch.stack([self.losses(model, x, y).mean() for x, y in self.strata])
        return float(self.values(means[None]).max()), _auc(model(self.test[0]), self.test[1])


def adult() -> Task:
    table = people("adult")
    inputs, labels = (torch.tensor(part, dtype=torch.float32) for part in (table.inputs, table.labels))
    training, group = torch.tensor(table.training), torch.tensor(table.groups)
    strata = [(inputs[training & (group == g)], labels[training & (group == g)]) for g in (1, 0)]
    counts = torch.tensor([float(len(y)) for _, y in strata])
    shares, test = counts / counts.sum(), (inputs[~training], labels[~training])

    def values(losses):
        gap = losses[:, 0] - losses[:, 1]
        return torch.stack([gap - 0.005, -gap - 0.005], dim=1)

    return Task("Adult", strata, shares, test, 1, 32, 0.8, values)


def fashion() -> Task:
    with np.load(IMAGES) as data:
        x, y, x_test, y_test = (torch.tensor(data[k]) for k in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test = (part.flatten(1).float() / 255 for part in (x, x_test))
    strata = [(x[y == c], y[y == c].long()) for c in range(10)]
    shares = torch.tensor([float((y == c).float().mean()) for c in range(10)])

    def values(losses):
        return losses - losses.mean(dim=1, keepdim=True) - 0.1

    return Task("Fashion-MNIST", strata, shares, (x_test, y_test.long()), 10, 8, 0.85, values)


def _auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Of a score, or the mean over classes, each against the others."""
    if scores.shape[1] == 1:
        return _rank_auc(scores[:, 0].numpy(), labels.numpy() > 0.5)
    return statistics.mean(_rank_auc(scores[:, c].numpy(), labels.numpy() == c) for c in range(scores.shape[1]))


def _rank_auc(score: np.ndarray, positive: np.ndarray) -> float:
    ranks = np.empty(len(score))
    ranks[np.argsort(score)] = np.arange(1, len(score) + 1)
    count = positive.sum()
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


# --- methods: (task, model, setting) -> a function that takes a batch and makes a step

Step = Callable[[tuple[torch.Tensor, torch.Tensor]], object]


def with_lariax(make: Callable) -> Callable[[Task, torch.nn.Module, dict], Step]:
    def build(task: Task, model: torch.nn.Module, setting: dict) -> Step:
        opt, closure = make(model, {"gap": lt.AtMost()}, **setting), task.closure(model)
        return lambda batch: opt.step(closure, batch)

    return build


def with_cooper(task: Task, model: torch.nn.Module, setting: dict) -> Step:
    rows = task.values(torch.zeros(1, len(task.strata))).shape[1]
    augmented = setting["penalty"] > 0
    kind = cooper.formulations.AugmentedLagrangian if augmented else cooper.formulations.Lagrangian
    extra = {}
    if augmented:
        coefficient = cooper.penalty_coefficients.DensePenaltyCoefficient(torch.full((rows,), setting["penalty"]))
        extra["penalty_coefficient"] = coefficient

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self):
            super().__init__()
            self.gap = cooper.Constraint(
                cooper.ConstraintType.INEQUALITY,
                kind,
                cooper.multipliers.DenseMultiplier(num_constraints=rows),
                **extra,
            )

        def compute_cmp_state(self, batch):
            losses, values = task.closure(model)(batch)
            state = cooper.ConstraintState(violation=values["gap"].mean(dim=0))
            return cooper.CMPState(loss=losses.mean(), observed_constraints={self.gap: state})

    problem = Problem()
    primal = torch.optim.Adam(model.parameters(), lr=setting["lr"])
    dual = torch.optim.SGD(problem.dual_parameters(), lr=setting["dual_lr"], maximize=True)
    optimizer = cooper.optim.AlternatingDualPrimalOptimizer if augmented else cooper.optim.SimultaneousOptimizer
    opt = optimizer(cmp=problem, primal_optimizers=primal, dual_optimizers=dual)
    return lambda batch: opt.roll(compute_cmp_state_kwargs={"batch": batch})


def with_humancompatible(task: Task, model: torch.nn.Module, setting: dict) -> Step:
    rows = task.values(torch.zeros(1, len(task.strata))).shape[1]
    primal = torch.optim.Adam(model.parameters(), lr=setting["lr"])
    dual = ALM(m=rows, lr=setting["dual_lr"], penalty=setting["penalty"], is_ineq=True)
    closure = task.closure(model)

    def step(batch):
        losses, values = closure(batch)
        primal.zero_grad()
        dual.forward_update(losses.mean(), values["gap"].mean(dim=0)).backward()
        primal.step()

    return step


GRID = [
    {"lr": lr, "dual_lr": dual_lr, "penalty": penalty}
    for penalty in (1.0, 0.0, 10.0)
    for lr in (1e-3, 3e-3, 3e-4, 1e-2)
    for dual_lr in (0.1, 0.01, 1.0)
]
METHODS: dict[str, tuple[Callable, list[dict]]] = {
    "lariax TrackedLagrangian": (with_lariax(lt.TrackedLagrangian), [{}]),
    "lariax TrackedLagrangian, adaptive_metric": (with_lariax(lt.TrackedLagrangian), [{"adaptive_metric": True}]),
    "cooper": (with_cooper, GRID),
    "humancompatible-train ALM": (with_humancompatible, GRID),
}


class Run(NamedTuple):
    reached: float  # seconds until the exact values were within the bound, or infinity
    auc: float  # there, or at the end
    kept: float  # the share of all later looks that were within the bound
    excess: float  # the largest exact value at the end, over the bound
    final_auc: float
    steps: int


def run(task: Task, build: Callable, setting: dict, seconds: float, seed: int) -> Run:
    model = task.model(seed)
    step, spent, steps = build(task, model, setting), 0.0, 0
    reached, auc, within = float("inf"), float("nan"), []
    batches = task.batches(seed)
    for look in range(1, LOOKS + 1):
        while spent < seconds * look / LOOKS:
            some = list(itertools.islice(batches, 10))
            begin = time.process_time()
            for batch in some:
                step(batch)
            spent += time.process_time() - begin
            steps += 10
        excess, final_auc = task.look(model)
        if excess <= 0 and final_auc >= task.useful and reached == float("inf"):
            reached, auc = spent, final_auc
        if np.isfinite(reached):
            within.append(float(excess <= 0))
    return Run(reached, auc, statistics.mean(within[1:]) if within[1:] else 0.0, excess, final_auc, steps)


# --- microseconds a step


def overhead(task: Task, repeats: int) -> list[dict]:
    """Processor time of a step over a plain Adam step with as many forward and backward passes, in turns.

    `TrackedLagrangian` makes four of each on half a batch, and three more backward passes at one of the two points in
    every eighth call.
    """
    cases = {
        "lariax QuadraticPenalty": (with_lariax(lt.QuadraticPenalty), {"lr": 1e-3}, 2, 1, 0),
        "lariax DualPenalty": (with_lariax(lt.DualPenalty), {"lr": 1e-3, "dual_step": 0.1}, 2, 1, 0),
        "lariax TrackedLagrangian": (with_lariax(lt.TrackedLagrangian), {}, 2, 2, 3),
        "cooper": (with_cooper, GRID[0], 1, 1, 0),
        "humancompatible-train ALM": (with_humancompatible, GRID[0], 1, 1, 0),
    }
    table = []
    for name, (build, setting, points, parts, more) in cases.items():
        model, batch = task.model(0), next(task.batches(0))
        step, closure = build(task, model, setting), task.closure(model)
        plain = torch.optim.Adam(model.parameters(), lr=0.0)
        pieces = list(zip(*(part.chunk(parts) for part in batch), strict=True)) * points

        calls = itertools.count()

        def bare(pieces=pieces, parts=parts, closure=closure, plain=plain, calls=calls, more=more) -> None:
            plain.zero_grad()
            often = more if next(calls) % 8 == 0 else 0
            for i, piece in enumerate(pieces):
                losses, values = closure(piece)
                total = losses.mean() + values["gap"].mean()
                for _ in range(often if i < parts else 0):
                    total.backward(retain_graph=True)
                total.backward()
            plain.step()

        for _ in range(130):
            step(batch)
        pairs = [(_clock(bare), _clock(lambda step=step, batch=batch: step(batch))) for _ in range(repeats)]
        bare_time, step_time = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        table.append({"method": name, "plain_us": bare_time * 1e6, "step_us": step_time * 1e6, "ratio": ratio})
    return table


def _clock(function: Callable[[], object], inner: int = 16) -> float:
    begin = time.process_time()
    for _ in range(inner):
        function()
    return (time.process_time() - begin) / inner


def spread(grid: list[dict], count: int) -> list[dict]:
    """`count` settings, evenly through the grid."""
    if count >= len(grid):
        return grid
    return [grid[int(i * len(grid) / count)] for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=len(GRID), help="of each rival's grid; 0: no training")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", default="", help="only those whose name holds this")
    parser.add_argument("--tasks", default="", help="likewise")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, object] = {"settings": options.settings, "seconds": options.seconds, "seeds": options.seeds}
    tasks = [adult()]
    if IMAGES.exists():
        tasks.append(fashion())
    else:
        print(f"Fashion-MNIST is left out: {IMAGES.name} is not there.")
    for task in (task for task in tasks if options.tasks in task.name):
        figures[f"{task.name}, microseconds"] = overhead(task, 9)
        for row in figures[f"{task.name}, microseconds"]:
            print(
                f"| {task.name} | {row['method']} | {row['plain_us']:.0f} | {row['step_us']:.0f} | {row['ratio']:.2f} |"
            )
        for name, (build, grid) in ((n, m) for n, m in METHODS.items() if options.methods in n and options.settings):
            best = None
            for setting in spread(grid, options.settings):
                runs = [run(task, build, setting, options.seconds, seed) for seed in range(options.seeds)]
                middle = Run(*(statistics.median(column) for column in zip(*runs, strict=True)))
                key = (middle.reached, max(middle.excess, 0))
                if best is None or key < best[0]:
                    best = (key, setting, middle)
            assert best is not None
            _, setting, middle = best
            figures[f"{task.name}, {name}"] = {"setting": setting, **middle._asdict()}
            reached = f"{middle.reached:.2f} s | AUC {middle.auc:.4f} | {middle.kept:.0%}"
            end = f"excess {middle.excess:.4f} | AUC {middle.final_auc:.4f}"
            pace = options.seconds / middle.steps * 1e6
            print(f"| {task.name} | {name} | {setting} | {reached} | {end} | {pace:.0f} us |", flush=True)
    if options.out:
        Path(options.out).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
