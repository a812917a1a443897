"""What is too costly for every iteration: gradients row by row, the Jacobian, products with it.

Row by row where that is cheap; for large models from the parts of a batch, which show the same less precisely.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lariax.formulas import (
    PROBES,
    ROUNDS,
    Curved,
    Load,
    Shape,
    averaged,
    balanced,
    diagonal_of,
    diagonal_shape,
    first_scales,
    is_whitened,
    natural_length,
    sizes,
    whitened,
)
from lariax.problem import probes
from lariax.torch._constraints import Seen
from lariax.torch._passes import Closure, Passes, Piece, Vector, dense, minus, rows_of
from lariax.torch._tuned import sum_of_squares

ROW_ENTRIES = 2**21
"""Rows of a batch times constraints times parameters up to which gradients are taken row by row,"""

CHUNK_ENTRIES = 2**22
"""and how many numbers of them are held at a time."""


class Moments:
    """Mean and spread of vectors, each the mean of `weight` independent ones."""

    def __init__(self, like: Tensor) -> None:
        self.parts, self.weight = 0, 0.0
        self.mean, self.squares = torch.zeros_like(like), torch.zeros_like(like)

    def add(self, vectors: Tensor, weight: float = 1.0) -> None:
        """`vectors` has a leading axis."""
        center = vectors.mean(dim=0)
        own = torch.sum((vectors - center) ** 2, dim=0) * weight
        self._merge(vectors.shape[0], weight * vectors.shape[0], center, own)

    def _merge(self, parts: int, weight: float, mean: Tensor, squares: Tensor) -> None:
        if parts == 0:
            return
        total = self.weight + weight
        apart = mean - self.mean
        self.squares = self.squares + squares + apart**2 * (self.weight * weight / total)
        self.mean = self.mean + apart * (weight / total)
        self.parts, self.weight = self.parts + parts, total

    def joined(self, other: "Moments") -> "Moments":
        self._merge(other.parts, other.weight, other.mean, other.squares)
        return self

    def over(self, passes: Passes) -> "Moments":
        """Of all processes together."""
        if passes.processes > 1:
            numbers = torch.tensor([self.parts, self.weight], dtype=torch.float64)
            everyone = passes.gather(numbers[None].to(self.mean.device)).cpu().tolist()
            vectors = passes.gather(torch.stack([self.mean, self.squares])[None])
            together = Moments(self.mean)
            for (parts, weight), (mean, squares) in zip(everyone, vectors, strict=True):
                together._merge(int(parts), weight, mean, squares)
            return together
        return self

    @property
    def variances(self) -> Tensor:
        """Of a single one, entry by entry."""
        return self.squares / max(self.parts - 1, 1)

    @property
    def variance(self) -> float:
        """In all entries together."""
        return float(torch.sum(self.variances))


class Survey:
    """Looks at a few batches at the current parameters; buffers and random numbers stay as they are.

    `metric`, if there is one, gives the coordinates that gradients are meant in: entry by entry, metric * gradient.
    """

    def __init__(self, passes: Passes, closure: Closure, batches: list[Any], metric: Tensor | None) -> None:
        self.passes, self.closure, self.batches, self.metric = passes, closure, batches, metric
        self.space, self.constraints = passes.space, passes.constraints
        like = self.space.params[0]
        self.origin = torch.zeros(self.space.size, dtype=self.space.dtype, device=like.device)

    # --- the objective

    def objective(self, by_row: bool = True) -> Moments:
        """The gradient of the objective, row by row where the closure gives its loss so."""
        rows, halves = Moments(self.origin), Moments(self.origin)
        with self.passes.undisturbed(), torch.enable_grad():
            for batch in self.batches:
                if by_row and self.constraints.loss_by_row and self._cheap(batch, 1):
                    for piece in self.passes.whole(batch):
                        for chunk in self._each(self.passes.call(self.closure, piece).loss):
                            rows.add(chunk)
                else:
                    for weight, (mean,) in self._parts(batch, 1 + by_row, 1, lambda seen, _: seen.loss.mean()):
                        halves.add(mean[None], weight)
        return rows.over(self.passes).joined(halves)

    def bend(self) -> float:
        """Its curvature on the first batch, from a short step along its gradient, or anywhere if it has none."""
        cut, point, info = self.passes.cut(self.batches[0]), self.space.point(), torch.finfo(self.space.dtype)
        nothing = self.origin.new_zeros(self.constraints.rows)

        def objective_alone(i: int, look: Seen) -> tuple[Tensor, list[Tensor]]:
            return nothing, [torch.zeros_like(residual) for residual, _ in look.indexed]

        def slope_at(x: list[Tensor]) -> Vector:
            with self.passes.undisturbed(), self.passes.at(x):
                return self.passes.backward(self.closure, cut, [objective_alone], None)[0][0].mean

        slope = slope_at([p.data for p in self.space.params])
        size, steep = (float(torch.sqrt(sum_of_squares(v))) for v in (point, slope))
        along = [g / (steep + info.tiny) for g in slope]
        if steep == 0:
            along = [torch.full_like(g, self.space.size**-0.5) for g in slope]
        reach = 100 * info.eps**0.5 * (1 + size)
        probe = self.space.views([x - reach * g for x, g in zip(point, along, strict=True)])
        beyond = slope_at([v.to(p) for v, p in zip(probe, self.space.params, strict=True)])
        return float(torch.sqrt(sum_of_squares(minus(beyond, slope)))) / (reach + info.tiny)

    def steepness(self) -> float:
        """||grad f|| on the first batch over the length of x: what a curvature is no less than a thousandth of."""
        with self.passes.undisturbed(), torch.enable_grad():
            ((_, (slope,)),) = self._parts(self.batches[0], 1, 1, lambda seen, _: seen.loss.mean())
        x = self._point() if self.metric is None else self._point() / self.metric
        return float(torch.linalg.vector_norm(slope)) / (1 + float(torch.linalg.vector_norm(x)))

    # --- the units of the parameters

    def scales(self, labels: np.ndarray) -> tuple[np.ndarray, Curved]:
        """Scales for the start, those that make the curvature equal along all axes, and the curvature there."""
        nothing, point = np.zeros(self.constraints.rows), self._point().double().cpu().numpy()
        own = self.objective()
        squares = (own.mean**2 + own.variances, own.variances)
        slopes, noise = (_by_unit(values.double().cpu().numpy(), labels) for values in squares)

        def seen_in(scales: np.ndarray) -> Curved:
            seen = self.curvature(nothing, labels, scales)
            return seen._replace(slopes=scales**2 * slopes, noise=scales**2 * noise)

        scales = first_scales(np, slopes)
        for _ in range(ROUNDS):
            seen = seen_in(scales)
            scales = balanced(np, scales, seen.diagonal, seen.slopes, seen.noise)
        scales = scales * natural_length(np, scales, seen_in(scales), point / scales)
        return scales, seen_in(scales)

    def curvature(self, weights: np.ndarray, labels: np.ndarray, scales: np.ndarray) -> Curved:
        """From products with the Hessian of the Lagrangian, on the mean over all batches, in the given scales."""
        scaling = torch.as_tensor(scales).to(self.origin)
        w = torch.as_tensor(weights).to(self.origin)
        directions = torch.as_tensor(probes(len(labels))).to(self.origin)

        def look(directions: Tensor) -> tuple[Tensor, Tensor]:
            looks = [self._products(batch, w, directions, scaling) for batch in self.batches]
            gradients, products = (torch.stack(each) for each in zip(*looks, strict=True))
            return gradients, products.mean(dim=0)

        gradients, products = look(directions)
        largest = float(torch.linalg.matrix_norm(look(torch.linalg.qr(products.T)[0].T)[1], ord=2))
        squares = torch.mean(gradients**2, dim=0)
        spread = torch.clamp(squares - torch.mean(gradients, dim=0) ** 2, min=0)
        v, hv, *rest = (values.double().cpu().numpy() for values in (directions, products, squares, spread))
        diagonal, slopes, noise = (_by_unit(each, labels) for each in (diagonal_of(np, v, hv, largest), *rest))
        return Curved(diagonal, slopes, noise, largest)

    def _products(self, batch: Any, weights: Tensor, directions: Tensor, scaling: Tensor) -> tuple[Tensor, Tensor]:
        """The Lagrangian's gradient, and products with its Hessian, by differentiating twice."""
        cut = self.passes.cut(batch, 1)
        cotangent = self.constraints.of_values(weights, cut.total)
        gradient, products = self.origin, torch.zeros_like(directions)
        with self.passes.undisturbed(), torch.enable_grad():
            for piece in cut.pieces:
                seen = self.passes.call(self.closure, piece)
                own = [torch.zeros_like(residual) for residual, _ in seen.indexed]
                outputs, cotangents = self.constraints.cotangents(seen, cotangent, own, cut.total)
                total = torch.stack([torch.sum(a * b) for a, b in zip(outputs, cotangents, strict=True)]).sum()
                slope = self._whole(torch.autograd.grad(total, self.space.params, create_graph=True, allow_unused=True))
                gradient = gradient + slope.detach() * scaling
                if slope.requires_grad:
                    for i, direction in enumerate(directions):
                        along = torch.sum(slope * (direction * scaling))
                        bend = torch.autograd.grad(along, self.space.params, retain_graph=True, allow_unused=True)
                        products[i] += self._whole(bend) * scaling
        gradient, products = self.passes.total([gradient, products])
        return gradient, products

    def _whole(self, gradients: Any) -> Tensor:
        pairs = zip(gradients, self.space.params, strict=True)
        parts = [torch.zeros_like(p).reshape(-1) if g is None else dense(g).reshape(-1) for g, p in pairs]
        return torch.cat([part.to(self.origin.dtype) for part in parts])

    # --- constraints with a multiplier for each example

    def indexed_size(self, seed: int) -> float:
        """The mean of ||J_i||^2 over the examples; for large models the largest of a few random ||J^T v||^2, which is
        rather too large than too small."""
        batch = self.batches[-1]
        pieces, total = self.passes.whole(batch), self.origin.new_zeros(())
        with self.passes.undisturbed(), torch.enable_grad():
            if self._cheap(batch, len(self.constraints.indexed)):
                for piece in pieces:
                    for slope in self._of_examples(self.passes.call(self.closure, piece)):
                        total = total + torch.stack([torch.sum(chunk**2) for chunk in self._each(slope)]).sum()
                (total,) = self.passes.total([total])
            else:
                total = torch.stack([torch.sum(vector**2) for vector in self._mixed(pieces, seed)]).max()
        return max(float(total) / self._rows(batch), torch.finfo(total.dtype).tiny)

    def _of_examples(self, look: Seen) -> list[Tensor]:
        return [slope.reshape(-1) for slope in look.slopes[len(self.constraints.blocks) :]]

    def _mixed(self, pieces: list[Piece], seed: int) -> list[Tensor]:
        """J^T v for a few normal v, the same whatever number of processes has its entries."""
        generator, sums = torch.Generator().manual_seed(seed), [self.origin] * PROBES
        for piece in pieces:
            for i, (look, keep) in enumerate(self.passes.copies(self.closure, piece, PROBES)):
                mixed = []
                for slope in self._of_examples(look):
                    weights = torch.randn((self.passes.processes, *slope.shape), generator=generator)[self.passes.rank]
                    mixed.append(torch.sum(slope * weights.to(slope)))
                sums[i] = sums[i] + self._gradient(torch.stack(mixed).sum(), keep)
        return self.passes.total(sums)

    # --- the shape of the penalty

    def shape(self, load: Load, before: Shape | None, seed: int) -> Shape:
        """The shape at the current point; the Jacobian is averaged with the one before."""
        rows = self.constraints.rows
        if rows == 0:
            return Shape.empty(np.zeros((0, self.space.size)))
        if not is_whitened(rows, self.space.size):
            return self._diagonal(load, seed)
        moments = self._jacobian()
        jacobian = np.stack([each.mean.double().cpu().numpy() for each in moments])
        variance = np.array([each.variance for each in moments])
        error = variance / np.array([each.weight for each in moments])
        if before is not None:
            jacobian, error = averaged(np, before, jacobian, error)
        return whitened(np, jacobian, error, variance, load)

    def _jacobian(self) -> list[Moments]:
        """The gradient of each row of the residuals, from sample to sample."""
        places = [(i, block, j) for i, block in enumerate(self.constraints.blocks) for j in range(block.size)]
        rows, halves = ([Moments(self.origin) for _ in places] for _ in range(2))

        def column(seen: Seen, row: int) -> Tensor:
            i, block, j = places[row]
            values = seen.slopes[i].reshape(seen.size if block.random else 1, block.size)
            return values[:, j] * block.sign

        with self.passes.undisturbed(), torch.enable_grad():
            for batch in self.batches:
                if self._cheap(batch, len(places)):
                    for piece in self.passes.whole(batch):
                        seen = self.passes.call(self.closure, piece)
                        for i, target in enumerate(rows):
                            for chunk in self._each(column(seen, i)):
                                target.add(chunk)
                else:
                    for weight, means in self._parts(batch, 2, len(places), lambda seen, i: column(seen, i).mean()):
                        for target, mean in zip(halves, means, strict=True):
                            target.add(mean[None], weight)
        return [own.over(self.passes).joined(common) for own, common in zip(rows, halves, strict=True)]

    def _parts(
        self, batch: Any, groups: int, count: int, mean_of: Callable[[Seen, int], Tensor]
    ) -> Iterator[tuple[float, list[Tensor]]]:
        """Of the whole batch in so many parts: how many rows each has, and gradients of `count` means over them."""
        cut = self.passes.cut(batch, groups)
        sums = [[self.origin] * count for _ in cut.shares]
        for piece in cut.pieces:
            rows, own = cut.shares[piece.group] * cut.total, sums[piece.group]
            for i, (seen, keep) in enumerate(self.passes.copies(self.closure, piece, count)):
                own[i] = own[i] + self._gradient(mean_of(seen, i), keep) * (seen.size / rows)
        for share, own in zip(cut.shares, sums, strict=True):
            yield share * cut.total, self.passes.total(own)

    def _diagonal(self, load: Load, seed: int) -> Shape:
        """From products with J and J^T alone: J v is a difference of values, J^T w a backward pass.

        ||J_i||^2 is taken to be the largest of (J_i v)^2 over a few normal v: rather too large, which slows a row down,
        than too small, which would throw it off. The largest eigenvalue of the row-scaled J J^T comes from power steps.
        """
        generator = torch.Generator(self.origin.device).manual_seed(seed)
        with self.passes.undisturbed():
            along = np.stack([self._along(generator) for _ in range(PROBES)], axis=1)
            alive, size = sizes(np, np.max(np.mean(along, axis=0) ** 2, axis=0))
            variance = 0 * size
            if len(self.batches) > 1:
                variance = load.batch_size * np.mean(np.var(along, axis=0, ddof=1), axis=0)
            vector, root = np.ones(self.constraints.rows), np.sqrt(size)
            for _ in range(PROBES):
                unit = vector / (np.linalg.norm(vector) + np.finfo(np.float64).tiny)
                vector = self._forward(self.batches[0], self._backward(self.batches[0], unit / root)) / root
        none = np.zeros((0, self.space.size))
        return diagonal_shape(np, alive, size, variance, np.linalg.norm(vector), load, none)

    def _along(self, generator: torch.Generator) -> np.ndarray:
        """J v for each batch, for one normal v."""
        like = self.origin
        probe = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        return np.stack([self._forward(batch, probe) for batch in self.batches])

    def _forward(self, batch: Any, direction: Tensor) -> np.ndarray:
        """J v, by a central difference."""
        x = self._point()
        step = direction if self.metric is None else direction * self.metric
        length = float(torch.linalg.vector_norm(step))
        reach = torch.finfo(x.dtype).eps ** (1 / 3) * (1 + float(torch.linalg.vector_norm(x))) / max(length, 1e-30)
        ends = []
        for sign in (1, -1):
            views = (x + sign * reach * step).split([p.numel() for p in self.space.params])
            values = [v.view_as(p).to(p.dtype) for v, p in zip(views, self.space.params, strict=True)]
            with self.passes.at(values):
                looks = [self.passes.call(self.closure, piece, graph=False) for piece in self.passes.whole(batch)]
            rows = sum(look.size for look in looks)
            mean = sum((self.constraints.slope_means(look) * (look.size / rows) for look in looks), start=0.0)
            ends.append(self.passes.mean(torch.as_tensor(mean)).double().cpu().numpy())
        return (ends[0] - ends[1]) / (2 * reach)

    def _backward(self, batch: Any, weights: np.ndarray) -> Tensor:
        """J^T w."""
        w = torch.as_tensor(weights).to(self.origin)
        with torch.enable_grad():
            means = self._parts(batch, 1, 1, lambda seen, _: (self.constraints.slope_means(seen) * w).sum())
            ((_, (mean,)),) = means
        return mean

    # --- inside

    def _rows(self, batch: Any) -> int:
        """Of the whole batch."""
        return self.passes.processes * sum(int(rows_of(part)) for part in self.passes.batches(batch))

    def _cheap(self, batch: Any, columns: int) -> bool:
        entries = self._rows(batch) * max(columns, 1) * self.space.size
        return not self.passes.single_use and entries <= ROW_ENTRIES

    def _point(self) -> Tensor:
        return torch.cat([part.reshape(-1) for part in self.space.point()])

    def _flat(self, gradients: Any) -> Tensor:
        """One tensor a parameter, with a leading axis or without, as one flat tensor or as many as the axis is long."""
        pairs = list(zip(gradients, self.space.params, strict=True))
        lead = next((g.shape[: g.ndim - p.ndim] for g, p in pairs if g is not None), ())
        full = [
            self.origin.new_zeros(*lead, p.numel()) if g is None else dense(g).to(self.origin.dtype).reshape(*lead, -1)
            for g, p in pairs
        ]
        joined = torch.cat(full, dim=-1)
        return joined if self.metric is None else joined * self.metric

    def _gradient(self, output: Tensor, keep: bool = False) -> Tensor:
        with torch.no_grad():
            return self._flat(self.passes.gradient([output], [torch.ones_like(output)], keep))

    def _batched(self, output: Tensor, cotangents: Tensor) -> Any:
        """Gradients for several cotangents at once; one after the other where an operation cannot be vectorised."""
        try:
            return self.passes.gradient([output], [cotangents], keep=True, batched=True)
        except RuntimeError:
            each = [self.passes.gradient([output], [row], keep=True) for row in cotangents]
            return [None if column[0] is None else torch.stack(column) for column in zip(*each, strict=True)]

    def _each(self, output: Tensor) -> Iterator[Tensor]:
        """Gradients of the entries of a vector, a chunk of them at a time."""
        identity = torch.eye(output.shape[0], dtype=output.dtype, device=output.device)
        for rows in identity.split(max(1, CHUNK_ENTRIES // self.space.size)):
            yield self._flat(self._batched(output, rows))


def _by_unit(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Means over the entries with a common unit."""
    return (np.bincount(labels, values) / np.bincount(labels))[labels]
