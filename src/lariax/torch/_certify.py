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

from lariax.certificate import (
    AbstractCertifier,
    BatchPlan,
    Certificate,
    Evidence,
    Fit,
    PointMeans,
    Scope,
    estimates_from_means,
    fit_from_means,
    forms_jacobian,
)
from lariax.oracle import Coordinates, Structure
from lariax.prox import AbstractProximable, Zero
from lariax.torch._batches import rows_of
from lariax.torch._constraints import AbstractConstraint, ClosureValues, Constraints
from lariax.torch._multipliers import Multipliers
from lariax.torch._optimizer import AbstractConstrained
from lariax.torch._passes import Closure, Passes
from lariax.torch._space import Space, precision_of
from lariax.utils import check_confidence, helped_by

MOST_BATCHES, FEWEST_BATCHES = 64, 8
BATCH_ENTRIES = 2**24  # numbers in all batch means together, where there are more than the fewest
ANY_EXAMPLE = 2**62  # the rows of a loader may have any numbers


@helped_by("certificate")
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

    >>> import torch, lariax.torch as lt
    >>> _ = torch.manual_seed(0)
    >>> model, rows = torch.nn.Linear(2, 1), torch.randn(256, 2)
    >>> def closure(batch):
    ...     out = model(batch).squeeze(1)
    ...     return (out - batch[:, 0]) ** 2, {"mean": out}
    >>> certificate = lt.certify(model, closure, rows.split(16), {"mean": lt.AtMost(5.0)})
    >>> certificate.constraints["mean"].holds
    'surely'
    """
    check_confidence(confidence)
    found = constraints.multipliers if isinstance(constraints, AbstractConstrained | Multipliers) else {}
    constraints = constraints.constraints if isinstance(constraints, Multipliers) else constraints
    optimizer = constraints if isinstance(constraints, AbstractConstrained) else None
    params: list[Tensor] = optimizer.space.params if optimizer else [p for p in model.parameters() if p.requires_grad]
    named = optimizer.constraints if optimizer else None
    given: Mapping[str, AbstractConstraint] = constraints if named is None else {**named.named, **named.indexed}  # type: ignore[assignment]
    kinds = {name: replace(kind, indexed=kind.indexed and ANY_EXAMPLE) for name, kind in given.items()}
    dtype = precision_of(params)
    means = _Means(Passes(Space(params, dtype), Constraints(kinds, dtype, params[0].device), model), closure)
    names = means.constraints.named.keys()
    known = (optimizer is not None or bool(found)) and found.keys() >= names  # steps were taken
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with jax.enable_x64(dtype == torch.float64):
            fits = multipliers is None and not known and bool(names)
            batches = means.usable(list(loader), population, fits)
            certifier = _ModelCertifier(means, optimizer, batches, population, confidence, tolerance)
            if fits:
                return certifier.of_fit(certifier.fitted)
            if multipliers is None:
                return certifier.of_run(certifier.known(found)).certificate
            return certifier.of_given(certifier.known(multipliers))
    finally:
        for module, training in modes.items():
            module.training = training


class _ModelCertifier(AbstractCertifier):
    """By passes of the model over the batches of a loader."""

    def __init__(
        self,
        means: "_Means",
        optimizer: AbstractConstrained | None,
        batches: list[Any],
        population: bool,
        confidence: float,
        tolerance: float | None,
    ) -> None:
        self._means, self._batches = means, batches
        means.look(batches[0], graph=False)  # which teaches the shapes
        structure, z = means.structure(optimizer)
        rows = sum(map(means.rows, batches))
        about = "on the loader's rows, about the distribution behind them" if population else f"about all {rows:,} rows"
        indexed = list(means.constraints.indexed)
        notes = (f"constraints of single training examples were not judged: {indexed}.",) if indexed else ()
        super().__init__(structure, z, Scope(population, not population, about), confidence, tolerance, notes)

    def known(self, multipliers: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Those of the constraints that are judged."""
        constraints = self._means.constraints
        unknown = sorted(set(multipliers) - set(constraints.names))
        if unknown:
            raise ValueError(f"there are multipliers for {unknown}; the constraints are {constraints.names}.")
        return {n: np.asarray(torch.as_tensor(y).cpu()) for n, y in multipliers.items() if n in constraints.named}

    @property
    def can_fit(self) -> bool:
        enough = len(self._batches) >= 2 * FEWEST_BATCHES or self.scope.exact
        return bool(self.structure.rows) and forms_jacobian(self.structure) and enough

    def fit(self) -> Fit:
        """On every second batch."""
        if not forms_jacobian(self.structure):
            raise ValueError(
                "there are too many constraints or parameters to fit multipliers. Pass multipliers=opt.multipliers."
            )
        first = self._batches if self.scope.exact else self._batches[::2]
        parts = self._means.parts(first, self._means.parts_of(first))
        objective, residuals = map(np.stack, zip(*map(self._means.values, parts), strict=True))
        slope, jacobian = self._means.jacobian(first)
        values = PointMeans(self._array(objective), self._array(residuals), None)
        return fit_from_means(values, self.structure, self.z, self._array(slope), self._array(jacobian))

    def estimate(self, y: Any, share: float, fit: Fit | None) -> Evidence:
        means, batches = self._means, self._batches
        first, rest = (batches, batches) if fit is None else (batches[::2], batches[1::2])
        parts = [batches] if self.scope.exact else means.parts(rest, means.parts_of(first))
        found = PointMeans(*map(self._array, means.of_lagrangian(parts, np.asarray(y))))
        rows = sum(map(means.rows, parts[0]))
        plan = BatchPlan(len(parts), rows, np.asarray(1, np.int32))
        at = self.levels(plan.batches, share, fit)
        draws = sum(means.rows(batch) for part in parts for batch in part) + rows * self.earlier(fit)
        return Evidence(estimates_from_means(found, self.structure, self.z, y, at, fit), at, plan, draws)

    def _array(self, part: np.ndarray) -> Array:
        return jnp.asarray(part, self.structure.dtype)


class _Means:
    """Means over batches, of the model's loss, its constraints and their gradients."""

    def __init__(self, passes: Passes, closure: Closure) -> None:
        self.passes, self.closure = passes, closure
        self.space, self.constraints = passes.space, passes.constraints

    def rows(self, batch: Any) -> int:
        return sum(int(rows_of(part)) for part in self.passes.batches(batch))

    def usable(self, batches: list[Any], population: bool, fits: bool) -> list[Any]:
        """Those of the usual size, if all of them are a sample; `fits`: half of them are for multipliers."""
        if population and batches:
            sizes = [self.rows(batch) for batch in batches]
            usual = statistics.mode(sizes)
            batches = [batch for batch, size in zip(batches, sizes, strict=True) if size == usual]
        least = FEWEST_BATCHES * (2 if fits else 1) if population else 1
        if len(batches) < least:
            raise ValueError(
                f"the loader has {len(batches)} batches of equal size, and a certificate about the distribution needs "
                f"at least {least}. Use smaller batches, or population=False for a statement about these very rows."
            )
        return batches

    def structure(self, optimizer: AbstractConstrained | None) -> tuple[Structure, Array]:
        """The problem without its functions, and the parameters as a vector."""
        groups: list[dict[str, Any]] = optimizer.param_groups if optimizer else [{"params": self.space.params}]
        x = [[jnp.asarray(p.detach().to(self.space.dtype).cpu().numpy()) for p in g["params"]] for g in groups]
        terms = [group.get("within") or group.get("regularizer") for group in groups]
        simple = Zero() if all(term is None for term in terms) else _PerGroup(tuple(term or Zero() for term in terms))
        layout, coordinates = self.constraints.layout, Coordinates.of(x)
        bound = jnp.full(layout.size, self.constraints.bounds_here, coordinates.dtype)
        return Structure(coordinates, layout, bound, simple), coordinates.ravel(x)

    def look(self, batch: Any, graph: bool = True) -> list[ClosureValues]:
        return [self.passes.call(self.closure, piece, graph=graph) for piece in self.passes.whole(batch)]

    def parts_of(self, batches: list[Any]) -> int:
        """How many batches to put together to a part: many where there are many parameters, so that parts are few."""
        few = int(np.clip(BATCH_ENTRIES // self.space.size, FEWEST_BATCHES, MOST_BATCHES))
        return max(1, len(batches) // few)  # so that hardly any are left over

    def parts(self, batches: list[Any], size: int) -> list[list[Any]]:
        """Batches put together to parts of equal size."""
        return [batches[i * size : (i + 1) * size] for i in range(len(batches) // size)]

    def values(self, batches: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Of the objective and of the residuals."""
        looks = [look for batch in batches for look in self.look(batch, graph=False)]
        sizes = np.array([look.size for look in looks], float)
        objective = np.array([float(look.loss.mean()) for look in looks])
        residuals = torch.cat([look.residuals for look in looks]).double().mean(dim=0).cpu().numpy()
        return np.asarray(sizes @ objective / sizes.sum()), residuals

    def of_lagrangian(self, parts: list[list[Any]], y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the objective, the residuals and the gradient of the Lagrangian, part by part."""
        means = [self._mean(part, [torch.from_numpy(np.array(y))])[0] for part in parts]
        objective, residuals, gradient = zip(*means, strict=True)
        return np.stack(objective), np.stack(residuals), np.stack(gradient)

    def jacobian(self, batches: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """The gradient of the objective, and those of the residuals."""
        rows = self.constraints.rows
        slope, *others = [gradient for _, _, gradient in self._mean(batches, [torch.zeros(rows), *torch.eye(rows)])]
        return slope, np.stack([each - slope for each in others])

    def _mean(self, batches: list[Any], weights: list[Tensor]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of the objective, the residuals and the gradient of f + y . r, for each y."""
        weights = [each.to(self.constraints.device, self.space.dtype) for each in weights]
        return self.passes.insist(lambda: self._mean_once(batches, weights))

    def _mean_once(self, batches: list[Any], weights: list[Tensor]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        total = sum(self.rows(batch) for batch in batches)
        objective, residuals = 0.0, np.zeros(self.constraints.rows)
        gradients = [np.zeros(self.space.size) for _ in weights]
        for batch in batches:
            for piece in self.passes.whole(batch):
                for i, (look, keep) in enumerate(self.passes.copies(self.closure, piece, len(weights))):
                    nothing = [torch.zeros_like(residual) for residual, _ in look.indexed]
                    vector = self.passes.pull(look, self.constraints.of_values(weights[i], total), nothing, total, keep)
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
