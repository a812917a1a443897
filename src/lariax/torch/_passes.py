"""Passes of the user's closure over a batch: at the current and at the previous parameters, with the same randomness.

A batch is seen in pieces. With several processes each has pieces of one large batch, in the order of the ranks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor

from lariax.torch._batches import rows_from, rows_of
from lariax.torch._constraints import ClosureValues, Constraints

Closure = Callable[[Any], tuple[Tensor, dict[str, Any]]]
Vector = list[Tensor]
"""Something like the parameters: one flat tensor, or one for each of them (`Space`)."""


Kept = tuple[dict[str, Tensor | None], str, Tensor, Tensor]
"""(buffers of a module, name, buffer, its value)."""

Result = TypeVar("Result")
_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)


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


class Groups(NamedTuple):
    """Gradients of the Lagrangian for one batch, group by group, and their mean."""

    each: list[Vector]
    mean: Vector


Choice = Callable[[int, ClosureValues], tuple[Tensor, list[Tensor]]]
"""(number of a piece, what was seen of it) -> weights of its values in the whole batch's mean, and of its indexed
constraints."""


class Space:
    """The parameters as a vector. On the CPU it is one flat tensor, on a GPU one tensor a parameter."""

    def __init__(self, params: list[Tensor], dtype: torch.dtype) -> None:
        self.params, self.dtype = params, dtype
        self.flat = params[0].device.type == "cpu"
        self.size = sum(p.numel() for p in params)
        self._viewed: tuple[Tensor | None, list[Tensor]] = (None, [])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_viewed": (None, [])}  # a copy has memory of its own

    def pack(self, gradients: Any) -> Vector:
        """A vector from one tensor a parameter; None counts as zero. It may share memory with them: read it only."""
        full = [
            g if g is not None and g.dtype is self.dtype and not g.is_sparse else self._converted(g, p)
            for p, g in zip(self.params, gradients, strict=True)
        ]
        return [torch._utils._flatten_dense_tensors(full)] if self.flat else full

    def _converted(self, gradient: Tensor | None, like: Tensor) -> Tensor:
        if gradient is None:
            return torch.zeros_like(like, dtype=self.dtype)
        return dense(gradient).to(self.dtype)

    def zeros(self) -> Vector:
        if self.flat:
            return [torch.zeros(self.size, dtype=self.dtype)]
        return [torch.zeros_like(p, dtype=self.dtype) for p in self.params]

    def split(self, flat: Tensor) -> Vector:
        """A vector from one flat tensor."""
        like = self.zeros()
        parts = flat.split([part.numel() for part in like])
        return [part.reshape(shape.shape).to(shape) for part, shape in zip(parts, like, strict=True)]

    def views(self, vector: Vector) -> list[Tensor]:
        """One tensor a parameter."""
        if not self.flat:
            return vector
        if vector[0] is not self._viewed[0]:  # the estimate is looked at in every call
            self._viewed = vector[0], list(torch._utils._unflatten_dense_tensors(vector[0], self.params))
        return self._viewed[1]

    def point(self) -> Vector:
        """The parameters themselves, to be read."""
        return self.pack([p.detach() for p in self.params])


def precision_of(params: list[Tensor]) -> torch.dtype:
    """What vectors like the parameters are kept in."""
    return torch.float64 if all(p.dtype == torch.float64 for p in params) else torch.float32


def dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def minus(a: Vector, b: Vector) -> Vector:
    return [x - y for x, y in zip(a, b, strict=True)]


def weighted(vectors: list[Vector], shares: list[float]) -> Vector:
    if shares == [1.0]:
        return vectors[0]
    total = [x * shares[0] for x in vectors[0]]
    for vector, share in zip(vectors[1:], shares[1:], strict=True):
        torch._foreach_add_(total, vector, alpha=share)
    return total


class Passes:
    """Runs closures for one optimizer."""

    def __init__(self, space: Space, constraints: Constraints, model: torch.nn.Module | None) -> None:
        self.space, self.constraints, self.model = space, constraints, model
        self.params = tuple(space.params)
        self.single_use = self.differentiates = False
        modules = [] if model is None else model.modules()
        self.buffers = [(module._buffers, name) for module in modules for name in module._buffers]  # of batch norm
        self.rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
        self.processes = (
            distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        )

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
        self, seen: ClosureValues, weights: Tensor, indexed: list[Tensor], total: float, keep: bool = False
    ) -> Vector:
        """This piece's part of the mean of  grad f + J^T w  over `total` rows: one backward pass."""
        gradients = self.gradient(*self.constraints.cotangents(seen, weights, indexed, total), keep)
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
        self, closure: Closure, cut: Cut, sets: list[Choice], graphs: list[ClosureValues] | None
    ) -> tuple[list[Groups], list[ClosureValues]]:
        """Gradients of the Lagrangian for several sets of weights, group by group; and what was seen."""
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
