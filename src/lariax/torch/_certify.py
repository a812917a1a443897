"""The core's certificate for a torch model."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, ArrayLike, Float, PyTree
from torch import Tensor

from lariax.certificate import Certificate, Court
from lariax.problem import AtLeast, AtMost, Equal
from lariax.prox import AbstractProximable, Zero
from lariax.torch._batches import rows_of
from lariax.torch._constraints import AbstractConstraint, Constraints, Seen
from lariax.torch._multipliers import Multipliers
from lariax.torch._optimizer import AbstractConstrained
from lariax.torch._passes import Closure, Passes, Space, precision_of

MOST_BATCHES, FEWEST_BATCHES = 64, 8
BATCH_ENTRIES = 2**24  # numbers in all batch means together, where there are more than the fewest
ANY_EXAMPLE = 2**62  # the rows of a loader may have any numbers
KINDS: dict[str, Any] = {"=": Equal, "<=": AtMost, ">=": AtLeast}


def certify(
    model: torch.nn.Module,
    closure: Closure,
    loader: Iterable[Any],
    constraints: AbstractConstrained | Multipliers | Mapping[str, AbstractConstraint],
    multipliers: Mapping[str, Any] | None = None,
    *,
    population: bool = True,
    confidence: float = 0.95,
    tolerance: float | None = None,
) -> Certificate:
    """Is the trained model feasible, is it a solution, and how sure can one be of it: the certificate of the core.

    Arguments:
        model: the model, judged as it is deployed: in `eval()` mode.
        closure: as for the optimizer: `closure(batch)` gives (loss, {name: values, ...}).
        loader: batches of equal size, of rows that the model was not trained on; one of another size is left out.
        constraints: the optimizer, whose constraints, sets and regularisers are taken, the `Multipliers` of a loop with
            another one, or constraints by name.
        multipliers: by name, as `opt.multipliers`. None: those of the optimizer or of `Multipliers`, unless they
            are refuted and fitted ones do better; without an optimizer that has taken steps, fitted ones. These are
            fitted on one half of the batches and judged on the other; values of constraints are judged on all.
        population: True: the rows are a sample, and the certificate is about the distribution behind them. False: they
            are all rows there are, and nothing is random.
        confidence: of each interval.
        tolerance: up to where a violation or a distance counts as none, in the words used.

    Indexed constraints are about single training examples, and are not judged; a warning says so.
    """
    found = constraints.multipliers if isinstance(constraints, AbstractConstrained | Multipliers) else {}
    constraints = constraints.constraints if isinstance(constraints, Multipliers) else constraints
    optimizer = constraints if isinstance(constraints, AbstractConstrained) else None
    params: list[Tensor] = optimizer.space.params if optimizer else [p for p in model.parameters() if p.requires_grad]
    named = optimizer.constraints if optimizer else None
    given: Mapping[str, AbstractConstraint] = constraints if named is None else {**named.named, **named.indexed}  # type: ignore[assignment]
    kinds = {name: replace(kind, indexed=kind.indexed and ANY_EXAMPLE) for name, kind in given.items()}
    dtype = precision_of(params)
    space = Space(params, dtype)
    bench = _Bench(Passes(space, Constraints(kinds, dtype, params[0].device), model), closure)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with jax.enable_x64(dtype == torch.float64):
            return _certified(bench, list(loader), optimizer, found, multipliers, population, confidence, tolerance)
    finally:
        for module, training in modes.items():
            module.training = training


def _certified(
    bench: "_Bench",
    batches: list[Any],
    optimizer: AbstractConstrained | None,
    found: Mapping[str, Any],
    multipliers: Mapping[str, Any] | None,
    population: bool,
    confidence: float,
    tolerance: float | None,
) -> Certificate:
    sizes = [bench.rows(batch) for batch in batches]
    if population and sizes:
        usual = statistics.mode(sizes)
        batches = [batch for batch, size in zip(batches, sizes, strict=True) if size == usual]
        sizes = [usual] * len(batches)
    named = bench.constraints.named
    known = (optimizer is not None or bool(found)) and found.keys() >= named.keys()  # steps were taken
    fits = multipliers is None and not known and bool(named)
    least = FEWEST_BATCHES * (2 if fits else 1) if population else 1
    if len(batches) < least:
        raise ValueError(
            f"the loader has {len(batches)} batches of equal size, and a certificate about the distribution needs at "
            f"least {least}. Use smaller batches, or population=False for a statement about these very rows."
        )
    trial = _Trial(bench, bench.court(batches[0], optimizer, confidence, tolerance), batches, population)
    if multipliers is not None:
        return trial.of_given(multipliers)
    if not known:
        return trial.of_fitted()
    own = trial.of_given(found, alone=not trial.can_fit)
    if not trial.can_fit or not trial.court.refutes(own):
        return own
    return trial.court.better(own, trial.of_fitted(alone=False))


class _Trial:
    """One model, and the batches that it is judged by."""

    def __init__(self, bench: "_Bench", court: Court, batches: list[Any], population: bool) -> None:
        self._bench, self.court, self._batches, self._population = bench, court, batches, population

    @property
    def can_fit(self) -> bool:
        enough = len(self._batches) >= 2 * FEWEST_BATCHES or not self._population
        return bool(self._bench.constraints.rows) and self.court.can_fit and enough

    def of_given(self, multipliers: Mapping[str, Any], alone: bool = True) -> Certificate:
        names = self._bench.constraints
        unknown = sorted(set(multipliers) - set(names.names))
        if unknown:
            raise ValueError(f"there are multipliers for {unknown}; the constraints are {names.names}.")
        known = {name: value for name, value in multipliers.items() if name in names.named}
        y, notes = self.court.given({name: np.asarray(torch.as_tensor(v).cpu()) for name, v in known.items()})
        return self._judged(self._batches, y, notes, None, alone)

    def of_fitted(self, alone: bool = True) -> Certificate:
        if not self.court.can_fit:
            raise ValueError(
                "there are too many constraints or parameters to fit multipliers. Pass multipliers=opt.multipliers."
            )
        if not self._bench.constraints.rows:
            return self._judged(self._batches, np.zeros(0), (), None, alone)
        first, second = (self._batches[i::2] if self._population else self._batches for i in (0, 1))
        size = self._bench.parts_of(first)
        found = self.court.fit(*self._bench.fitting(first, size))
        return self._judged(second, np.asarray(found.multipliers), (), found, alone, size)

    def _judged(
        self,
        batches: list[Any],
        y: np.ndarray,
        notes: tuple[str, ...],
        fitted: Any,
        alone: bool,
        size: int | None = None,
    ) -> Certificate:
        bench, population = self._bench, self._population
        parts = bench.parts(batches, size) if population else [batches]
        objective, residuals, gradient = bench.judging(parts, y)
        each = sum(bench.rows(batch) for batch in parts[0])
        used = sum(bench.rows(batch) for part in parts for batch in part)
        if fitted is not None and population:
            used += each * fitted.seen.objective.shape[0]
        if bench.constraints.indexed:
            notes += (f"constraints of single training examples were not judged: {list(bench.constraints.indexed)}.",)
        about = "on the loader's rows, about the distribution behind them" if population else f"about all {used:,} rows"
        return self.court.judge(
            objective,
            residuals,
            gradient,
            y,
            rows=each,
            draws=used,
            population=population,
            about=about,
            notes=notes,
            fitted=fitted,
            alone=alone,
        )


class _Bench:
    """Brings the means over batches that a court asks for."""

    def __init__(self, passes: Passes, closure: Closure) -> None:
        self.passes, self.closure = passes, closure
        self.space, self.constraints = passes.space, passes.constraints

    def rows(self, batch: Any) -> int:
        return sum(int(rows_of(part)) for part in self.passes.batches(batch))

    def court(
        self, batch: Any, optimizer: AbstractConstrained | None, confidence: float, tolerance: float | None
    ) -> Court:
        self.look(batch, graph=False)  # which teaches the shapes
        groups: list[dict[str, Any]] = optimizer.param_groups if optimizer else [{"params": self.space.params}]
        x = [[p.detach().to(self.space.dtype).cpu().numpy() for p in group["params"]] for group in groups]
        terms = [group.get("within") or group.get("regularizer") for group in groups]
        simple = None if all(term is None for term in terms) else _PerGroup(tuple(term or Zero() for term in terms))
        blocks = {
            block.name: (KINDS[block.constraint.relation](bound=np.asarray(block.constraint.bound, float)), block.shape)
            for block in self.constraints.blocks
        }
        return Court(x, blocks, simple, confidence, tolerance)

    def look(self, batch: Any, graph: bool = True) -> list[Seen]:
        return [self.passes.call(self.closure, piece, graph=graph) for piece in self.passes.whole(batch)]

    def parts_of(self, batches: list[Any]) -> int:
        """How many batches to put together to a part: many where there are many parameters, so that parts are few."""
        few = int(np.clip(BATCH_ENTRIES // self.space.size, FEWEST_BATCHES, MOST_BATCHES))
        return max(1, len(batches) // few)  # so that hardly any are left over

    def parts(self, batches: list[Any], size: int | None = None) -> list[list[Any]]:
        """Batches put together to parts of equal size."""
        each = size or self.parts_of(batches)
        return [batches[i * each : (i + 1) * each] for i in range(len(batches) // each)]

    def judging(self, parts: list[list[Any]], y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means of the objective, the residuals and the gradient of the Lagrangian, part by part."""
        weights = torch.from_numpy(np.array(y)).to(self.constraints.device, self.space.dtype)
        means = [self._mean(part, [weights])[0] for part in parts]
        objective, residuals, gradient = zip(*means, strict=True)
        return np.stack(objective), np.stack(residuals), np.stack(gradient)

    def fitting(self, batches: list[Any], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Means of the objective and the residuals part by part, mean gradient of the objective, mean Jacobian."""
        rows = self.constraints.rows
        sets = [torch.zeros(rows), *torch.eye(rows)]
        sets = [each.to(self.constraints.device, self.space.dtype) for each in sets]
        parts = self.parts(batches, size)
        objective, residuals = zip(*map(self._values, parts), strict=True)
        slope, *others = [gradient for _, _, gradient in self._mean(batches, sets)]
        return np.stack(objective), np.stack(residuals), slope, np.stack([each - slope for each in others])

    def _values(self, batches: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Means of the objective and of the residuals."""
        looks = [look for batch in batches for look in self.look(batch, graph=False)]
        sizes = np.array([look.size for look in looks], float)
        objective = np.array([float(look.loss.mean()) for look in looks])
        residuals = torch.cat([look.residuals for look in looks]).double().mean(dim=0).cpu().numpy()
        return np.asarray(sizes @ objective / sizes.sum()), residuals

    def _mean(self, batches: list[Any], sets: list[Tensor]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Means over the batches, with the gradient of f + y . r for each y."""
        return self.passes.insist(lambda: self._mean_once(batches, sets))

    def _mean_once(self, batches: list[Any], sets: list[Tensor]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        total = sum(self.rows(batch) for batch in batches)
        objective, residuals = 0.0, np.zeros(self.constraints.rows)
        gradients = [np.zeros(self.space.size) for _ in sets]
        for batch in batches:
            for piece in self.passes.whole(batch):
                for i, (look, keep) in enumerate(self.passes.copies(self.closure, piece, len(sets))):
                    nothing = [torch.zeros_like(residual) for residual, _ in look.indexed]
                    weights = self.constraints.of_values(sets[i], total)
                    vector = self.passes.pull(look, weights, nothing, total, keep)
                    gradients[i] += torch.cat([part.reshape(-1) for part in vector]).double().cpu().numpy()
                objective += float(look.loss.detach().mean()) * look.size / total
                residuals = residuals + look.residuals.double().sum(dim=0).cpu().numpy() / total
        return [(np.asarray(objective), residuals, gradient) for gradient in gradients]


class _PerGroup(AbstractProximable):
    """A term for each group of parameters."""

    terms: tuple[AbstractProximable, ...]

    @property
    def separable(self) -> bool:
        return all(term.separable for term in self.terms)

    def value(self, x: PyTree) -> Float[Array, ""]:
        return jnp.stack([term.value(part) for term, part in zip(self.terms, x, strict=True)]).sum()

    def prox(self, x: PyTree, step_size: PyTree[ArrayLike]) -> PyTree:
        return [term.prox(part, step_size) for term, part in zip(self.terms, x, strict=True)]

    def nearest_subgradient(self, x: PyTree, direction: PyTree, tolerance: ArrayLike | None = None) -> PyTree:
        return [
            term.nearest_subgradient(part, target, tolerance)
            for term, part, target in zip(self.terms, x, direction, strict=True)
        ]

    def _mismatch(self, x: PyTree) -> str | None:
        return next((m for t, part in zip(self.terms, x, strict=True) if (m := t.mismatch(part))), None)
