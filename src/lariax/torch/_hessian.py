"""Products with the Hessian of the Lagrangian, on the mean over a few batches."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lariax.torch._batch_looks import BatchLooks
from lariax.torch._constraints import ClosureValues


class LagrangianHessian:
    """Products with the Hessian of the Lagrangian that has given weights of the constraints.

    Arguments:
        count: how many products are asked for at once.
        span: products are differences over so much to both sides, where gradients of rows jump.
    """

    def __init__(self, looks: BatchLooks, weights: Tensor, count: int, span: float | None) -> None:
        self.looks, self.weights, self.span = looks, weights, span
        self.graphs = self._graphs(count)

    def products(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """The Lagrangian's gradients, batch by batch, and the mean of the products with its Hessian."""
        if self.span is None:
            return self._derivatives(directions)
        gradients, _ = self._derivatives(directions[:1])
        differences = torch.stack([self._difference(v, self.span) for v in directions])
        return gradients, self.looks.passes.total([differences])[0]

    def _derivatives(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        looks, products = self.looks, torch.zeros_like(directions)
        if self.graphs is not None:
            gradients, mean = self.graphs
            if mean.requires_grad:
                products = looks.gradients.flat(looks.gradients.batched(mean, directions)).detach()
        else:
            gradients = torch.zeros((len(looks.batches), looks.space.size)).to(looks.origin)
            for gradient, batch in zip(gradients, looks.batches, strict=True):
                for slope in self._slopes(batch):
                    gradient += slope.detach()
                    if slope.requires_grad:
                        for product, direction in zip(products, directions, strict=True):
                            pulled = looks.passes.gradient([slope], [direction], keep=True)
                            product += looks.gradients.flat(pulled).detach()
            products /= len(looks.batches)
        gradients, products = looks.passes.total([gradients, products])
        return gradients, products

    def _difference(self, v: Tensor, span: float) -> Tensor:
        """About H v, over `span` to both sides."""
        looks = self.looks
        share = span / (float(torch.linalg.vector_norm(v)) + torch.finfo(v.dtype).tiny)
        step, ends = share * (v if looks.metric is None else v * looks.metric), []
        for sign in (1, -1):
            with looks.passes.at(looks.values(looks.point() + sign * step)):
                look = looks.together()
                if look is not None:
                    ends.append(self._slope(look, look.size).detach())
                else:
                    slopes = [slope.detach() for batch in looks.batches for slope in self._slopes(batch)]
                    ends.append(torch.stack(slopes).sum(dim=0) / len(looks.batches))
        return (ends[0] - ends[1]) / (2 * share)

    def _graphs(self, count: int) -> tuple[Tensor, Tensor] | None:
        """The Lagrangian's gradients, batch by batch, and their mean, to be differentiated along `count` directions at
        once; None where the model may be large."""
        looks, look = self.looks, self.looks.together()
        if look is not None:
            return self._by_batch(look), self._slope(look, look.size)
        if looks.cheap(looks.batches[0], count * len(looks.batches)):
            slopes = [torch.stack(list(self._slopes(batch))).sum(dim=0) for batch in looks.batches]
            return torch.stack(slopes).detach(), torch.stack(slopes).mean(dim=0)
        return None

    def _by_batch(self, look: ClosureValues) -> Tensor:
        """The Lagrangian's gradients, batch by batch, from the one look at all of them."""
        looks, own = self.looks, [torch.zeros_like(residual) for residual, _ in look.indexed]
        weights = looks.constraints.of_values(self.weights, look.size)
        factors = looks.passes.factors_of([looks.rows_in(batch) for batch in looks.batches])
        gradients = [looks.passes.pull(look, weights, own, look.size, True, of_batch) for of_batch in factors]
        return torch.stack([looks.gradients.flat(looks.space.views(gradient)) for gradient in gradients])

    def _slope(self, look: ClosureValues, total: int) -> Tensor:
        """The part of the Lagrangian's gradient that a piece has, with its graph."""
        looks, own = self.looks, [torch.zeros_like(residual) for residual, _ in look.indexed]
        weights = looks.constraints.of_values(self.weights, total)
        outputs, cotangents = looks.constraints.cotangents(look, weights, own, total)
        return looks.gradients.flat(
            torch.autograd.grad(outputs, looks.space.params, cotangents, create_graph=True, allow_unused=True)
        )

    def _slopes(self, batch: Any) -> Iterator[Tensor]:
        """The parts of the Lagrangian's gradient that pieces of a batch have, with their graphs."""
        passes = self.looks.passes
        cut, random = passes.cut(batch, 1), passes.random_state()
        for piece in cut.pieces:
            yield self._slope(passes.call(self.looks.closure, piece), cut.total)
        passes.set_random_state(random)  # every batch sees the same
