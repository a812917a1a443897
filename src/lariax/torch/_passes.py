"""Passes of the user's closure over a batch: at the current and at the previous parameters, with the same randomness.

A batch is seen in pieces. With several processes each has pieces of one large batch, in the order of the ranks.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from lariax.torch._batches import joined, rows_from, rows_of
from lariax.torch._constraints import ClosureValues, Constraints
from lariax.torch._processes import processes, rank
from lariax.torch._space import Space, Vector, weighted

Closure = Callable[[Any], tuple[Tensor, dict[str, Any]]]
Kept = tuple[dict[str, Tensor | None], str, Tensor, Tensor]
"""(buffers of a module, name, buffer, its value)."""

Result = TypeVar("Result")
_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)


ONE_GRAPH_ENTRIES = 2**16
"""Rows of a batch times parameters up to which both halves come from one forward pass: a backward pass over half of its
rows costs as much as one over all of them, and less than the calls that it saves."""


class GraphUsedOnce(Exception):
    """The graph of a compiled model was to be used twice, and cannot."""


class Piece(NamedTuple):
    batch: Any
    group: int
    rows: slice | None  # among the rows of this process; None: not known before the closure has been called


class Cut(NamedTuple):
    """The pieces of a batch that are on this process, and what the groups are of the whole."""

    pieces: list[Piece]
    shares: list[float]
    total: int
    streamed: bool  # it came in several parts, of which one is to be in memory at a time
    factors: tuple[Tensor, ...] = ()  # of the rows for each group, where one piece has them all


class Groups(NamedTuple):
    """Gradients of the Lagrangian for one batch, group by group where they were asked for, and their mean."""

    each: list[Vector]
    mean: Vector


Choice = Callable[[int, ClosureValues], tuple[Tensor, list[Tensor]]]
"""(number of a piece, what was seen of it) -> weights of its values in the whole batch's mean, and of its indexed
constraints."""


class Passes:
    """Runs closures for one optimizer."""

    def __init__(self, space: Space, constraints: Constraints, model: torch.nn.Module | None) -> None:
        self.space, self.constraints, self.model = space, constraints, model
        self.params = tuple(space.params)
        self.single_use = self.differentiates = False
        self._factors: tuple[Tensor, ...] = ()  # of the last cut into halves
        modules = [] if model is None else model.modules()
        self.buffers = [(module._buffers, name) for module in modules for name in module._buffers]  # of batch norm
        self.rank, self.processes = rank(), processes()

    # --- one batch

    def batches(self, batch: Any) -> list[Any]:
        """The parts of an accumulated batch. A list of tensors is one batch, as data loaders give it."""
        if isinstance(batch, list) and batch and not any(isinstance(part, Tensor) for part in batch):
            return batch
        return [batch]

    def whole(self, batch: Any) -> list[Piece]:
        """The batch as it came."""
        return [Piece(part, 0, None) for part in self.batches(batch)]

    def cut(self, batch: Any, groups: int = 2) -> "Cut":
        """The batch as one group or cut into halves, of which the first is larger if it is odd."""
        parts = self.batches(batch)
        counts = [rows_of(part) for part in parts]
        first, total = self.place(sum(counts))
        if total < 2:
            raise ValueError(
                f"a batch of {'one row' if total else 'no rows'} shows neither noise nor pairs: give batches of at "
                "least two rows. A data loader leaves out a short last one with drop_last=True."
            )
        if len(parts) == groups == self.processes == 1:
            return Cut([Piece(parts[0], 0, slice(0, total))], [1.0], total, False)
        bounds = [-(-total * i // groups) for i in range(groups + 1)]
        pieces, at = [], 0
        for part, count in zip(parts, counts, strict=True):
            for group, (low, high) in enumerate(pairwise(bounds)):
                begin, end = max(low - first, at), min(high - first, at + count)
                if begin < end:
                    rows = part if end - begin == count else rows_from(part, begin - at, end - at)
                    pieces.append(Piece(rows, group, slice(begin, end)))
            at += count
        return Cut(pieces, [(high - low) / total for low, high in pairwise(bounds)], total, len(parts) > 1)

    def halves(self, batch: Any) -> "Cut":
        """The batch cut into halves; as one piece with two groups of rows where that is quicker."""
        cut = self.cut(batch, 1)
        if cut.streamed or not self.takes_one_graph(cut.total):
            return self.cut(batch)
        first = -(-cut.total // 2)
        shares = [first / cut.total, 1 - first / cut.total]
        if not self._factors or len(self._factors[0]) != cut.total:
            self._factors = self.factors_of([first, cut.total - first])
        return cut._replace(shares=shares, factors=self._factors)

    def factors_of(self, counts: list[int]) -> tuple[Tensor, ...]:
        """For each of several groups of rows, one after the other, what makes a mean over all rows one over it."""
        zeros = torch.zeros(sum(counts), dtype=self.space.dtype, device=self.params[0].device)
        groups = zeros.repeat(len(counts), 1)
        for group, begin, count in zip(groups, accumulate([0, *counts]), counts, strict=False):
            group[begin : begin + count] = len(zeros) / count
        return tuple(groups)

    def takes_one_graph(self, rows: int) -> bool:
        """Whether parts of a batch are better seen in one forward pass: the model is small and without buffers, which
        make something else of it (batch norm); its loss has one value a row, and graphs can be used again."""
        small = rows * self.space.size <= ONE_GRAPH_ENTRIES and not self.buffers
        return small and self.constraints.loss_by_row and self.processes == 1 and not self.single_use

    def together(self, closure: Closure, batches: list[Any]) -> ClosureValues | None:
        """Several batches in one forward pass; None where they are better seen one by one, as where each is to see the
        same random numbers."""
        parts = [part for batch in batches for part in self.batches(batch)]
        rows, random = sum(map(rows_of, parts)), self.random_state()
        batch = joined(parts) if len(parts) == len(batches) and self.takes_one_graph(rows) else None
        seen = None if batch is None else self.call(closure, Piece(batch, 0, slice(0, rows)))
        is_random = not all(map(torch.equal, random, self.random_state()))
        self.set_random_state(random)
        return None if is_random else seen

    def call(self, closure: Closure, piece: Piece, *, graph: bool = True) -> ClosureValues:
        count = None if piece.rows is None else piece.rows.stop - piece.rows.start
        if count is None:
            count = rows_of(piece.batch, None)
        with torch.set_grad_enabled(graph or self.differentiates):
            answer = closure(piece.batch) if graph or self.differentiates else self._values(closure, piece.batch)
        return self.constraints.read(answer, count, graph=graph)

    def _values(self, closure: Closure, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """The answer without a graph; with one, from now on, if the closure takes gradients itself."""
        random = self.random_state()
        try:
            return closure(batch)
        except RuntimeError:
            self.set_random_state(random)
            with torch.enable_grad():
                answer = closure(batch)
            self.differentiates = True
            return answer

    def pull(
        self,
        seen: ClosureValues,
        weights: Tensor,
        indexed: list[Tensor],
        total: float,
        keep: bool = False,
        factors: Tensor | None = None,
    ) -> Vector:
        """This piece's part of the mean of  grad f + J^T w  over `total` rows: one backward pass."""
        gradients = self.gradient(*self.constraints.cotangents(seen, weights, indexed, total, factors), keep)
        if gradients[0] is None and all(gradient is None for gradient in gradients):
            raise RuntimeError(
                "neither the loss nor a constraint depends on the optimizer's parameters: does the closure use another "
                "model, or a copy?"
            )
        return self.space.pack(gradients)

    def copies(
        self, closure: Closure, piece: Piece, count: int, seen: ClosureValues | None = None
    ) -> Iterator[tuple[ClosureValues, bool]]:
        """What `count` backward passes start from, and whether it is to be kept for another: one forward pass, or,
        where its graph can be used once (a compiled model), as many with the same random numbers."""
        if not self.single_use:
            seen = self.call(closure, piece) if seen is None else seen
            yield from ((seen, i + 1 < count) for i in range(count))
            return
        for _ in range(count - 1):
            with self.undisturbed():
                again = self.call(closure, piece)
            yield again, False
        yield self.call(closure, piece) if seen is None else seen, False

    def backward(
        self,
        closure: Closure,
        cut: Cut,
        sets: list[Choice],
        graphs: list[ClosureValues] | None,
        means: Collection[int] = (),
    ) -> tuple[list[Groups], list[ClosureValues]]:
        """Gradients of the Lagrangian for several sets of weights, group by group; and what was seen. Of the sets with
        the numbers `means` only the mean is wanted."""
        if cut.factors:
            return self._from_one_graph(closure, cut, sets, graphs, means)
        if graphs and len(graphs) == len(sets) == len(cut.shares) == 1:  # most calls, and quicker
            weights, indexed = sets[0](0, graphs[0])
            whole = self.total(self.pull(graphs[0], weights, indexed, cut.total))
            return [Groups([whole], whole)], [graphs[0].without_graph()]
        looks = []
        sums: list[list[list[Vector]]] = [[[] for _ in cut.shares] for _ in sets]
        for i, piece in enumerate(cut.pieces):
            share = cut.shares[piece.group]
            copies = self.copies(closure, piece, len(sets), graphs[i] if graphs else None)
            for of_set, choose, (look, keep) in zip(sums, sets, copies, strict=True):
                weights, indexed = choose(i, look)
                parts = of_set[piece.group]
                weights = weights if share == 1 else weights / share
                parts.append(self.pull(look, weights, indexed, share * cut.total, keep))
                if len(parts) == 2:
                    parts[:] = [weighted(parts, [1.0, 1.0])]
            looks.append(look.without_graph())
        groups = []
        for parts_of in sums:
            each = [self.total(parts[0] if parts else self.space.zeros()) for parts in parts_of]
            groups.append(Groups(each, weighted(each, cut.shares)))
        return groups, looks

    def _from_one_graph(
        self,
        closure: Closure,
        cut: Cut,
        sets: list[Choice],
        graphs: list[ClosureValues] | None,
        means: Collection[int],
    ) -> tuple[list[Groups], list[ClosureValues]]:
        asked: list[tuple[Any, ...]] = [(None,) if i in means else cut.factors for i in range(len(sets))]
        copies = self.copies(closure, cut.pieces[0], sum(map(len, asked)), graphs[0] if graphs else None)
        groups = []
        for choose, parts in zip(sets, asked, strict=True):
            each = []
            for factors in parts:
                look, keep = next(copies)
                each.append(self.pull(look, *choose(0, look), cut.total, keep, factors))
            groups.append(Groups(each, weighted(each, cut.shares if len(each) > 1 else [1.0])))
        return groups, [look.without_graph()]

    def gradient(self, outputs: Any, cotangents: Any, keep: bool, batched: bool = False) -> Any:
        try:
            if _engine is not None and not batched:  # what `grad` calls, without its checks of shapes, made here before
                return _engine(tuple(outputs), tuple(cotangents), keep, False, self.params, True, accumulate_grad=False)
            return torch.autograd.grad(
                outputs, self.params, cotangents, retain_graph=keep, allow_unused=True, is_grads_batched=batched
            )
        except RuntimeError as error:
            if keep and not batched and "retain_graph" in str(error):
                self.single_use = True
                raise GraphUsedOnce from error
            if "second time" in str(error) and not keep:
                raise RuntimeError(
                    "the graph of the closure's answer was used before: leave out backward() and autograd.grad of the "
                    "loss, since the optimizer takes its gradients itself."
                ) from error
            frozen = [tuple(p.shape) for p in self.params if not p.requires_grad]
            if frozen:
                raise RuntimeError(
                    f"parameters of shapes {frozen} require no gradient any more, and the optimizer's estimates are "
                    "about all that it was given. To freeze some, give them a group of their own and set its lr to 0, "
                    "or make a new optimizer."
                ) from error
            raise

    def insist(self, look: Callable[[], Result]) -> Result:
        """What a look gives; once more from the beginning, if it turns out that graphs can be used once."""
        if self.single_use:
            return look()
        random, buffers = self.random_state(), self.kept()
        try:
            return look()
        except GraphUsedOnce:
            self.set_random_state(random)
            self.restore(buffers)
            return look()

    # --- what was seen of the pieces of a batch

    def residuals(self, looks: list[ClosureValues]) -> Tensor:
        """Of all rows of the whole batch."""
        rows = [look.residuals for look in looks]
        return self.gather(rows[0] if len(rows) == 1 else torch.cat(rows))

    def mean_loss(self, looks: list[ClosureValues]) -> Tensor:
        """Over the whole batch."""
        local = sum(look.size for look in looks)
        first, *rest = [self.constraints.mean_loss(look, local) for look in looks]
        return self.mean(sum(rest, first))

    # --- the two points

    def rows(self, closure: Closure, pieces: list[Piece]) -> Tensor:
        """Residuals of all rows, by forward passes that leave nothing behind."""
        with self.undisturbed():
            return self.residuals([self.call(closure, piece, graph=False) for piece in pieces])

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Buffers and random numbers come out as they went in."""
        random = self.random_state()
        try:
            with self.at([p.data for p in self.params]):
                yield
        finally:
            self.set_random_state(random)

    @contextmanager
    def at(self, point: list[Tensor]) -> Iterator[None]:
        """The parameters hold other values; buffers (of batch norm) come out as they went in."""
        here, buffers = [p.data for p in self.params], self.kept()
        try:
            for p, value in zip(self.params, point, strict=True):
                p.data = value
            yield
        finally:
            for p, value in zip(self.params, here, strict=True):
                p.data = value
            self.restore(buffers)

    @contextmanager
    def or_not_at_all(self) -> Iterator[list[Kept]]:
        """If what is done fails, buffers come out as they went in; they are also given, to be restored later."""
        buffers = self.kept()
        try:
            yield buffers
        except BaseException:
            self.restore(buffers)
            raise

    def kept(self) -> list[Kept]:
        """Buffers that modules write into or replace, and their values."""
        found = ((owner, name, owner.get(name)) for owner, name in self.buffers)
        return [(owner, name, buffer, buffer.clone()) for owner, name, buffer in found if buffer is not None]

    def restore(self, buffers: list[Kept], unless: Tensor | None = None) -> None:
        """`unless` is a truth that need not be known here yet."""
        for owner, name, buffer, value in buffers:
            new = owner[name]
            buffer.copy_(value if unless is None or new is None else torch.where(unless, new, value))
            owner[name] = buffer

    def random_state(self) -> list[Tensor]:
        device = self.params[0].device
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states

    def set_random_state(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0].cpu())
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1].cpu(), self.params[0].device)

    # --- several processes

    def place(self, count: int) -> tuple[int, int]:
        """The number of this process's first row in the whole batch, and the number of all rows."""
        if self.processes == 1:
            return 0, count
        counts = [torch.zeros(1, dtype=torch.int64, device=self.params[0].device) for _ in range(self.processes)]
        distributed.all_gather(counts, torch.full_like(counts[0], count))
        all_counts = [int(each) for each in counts]
        if len(set(all_counts)) > 1:
            raise ValueError(
                f"the processes have batches of {all_counts} rows: they must be equal. Use a DistributedSampler with "
                "drop_last=True."
            )
        return self.rank * count, sum(all_counts)

    def own(self, total: int) -> slice:
        """Which of all rows are those of this process."""
        if self.processes == 1:
            return slice(0, total)
        each = total // self.processes
        return slice(self.rank * each, (self.rank + 1) * each)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes."""
        return self.total([value])[0] / self.processes if self.processes > 1 else value

    def gather(self, rows: Tensor) -> Tensor:
        """Rows of all processes, in the order of the ranks."""
        if self.processes == 1:
            return rows
        self.place(rows.shape[0])
        everyone = [torch.empty_like(rows) for _ in range(self.processes)]
        distributed.all_gather(everyone, rows.contiguous())
        return torch.cat(everyone)

    def total(self, vector: Vector) -> Vector:
        """The sum over the processes."""
        if self.processes > 1:
            vector = [part.clone() for part in vector]  # which may be memory of the graph
            for part in vector:
                distributed.all_reduce(part)
        return vector
