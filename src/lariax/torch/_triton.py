"""What a GPU does with vectors, in one kernel a parameter: the update, which reads and writes seven streams of it and
no more, and sums of squares.

Imported where there is a GPU: Triton comes with torch there alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lariax.torch import _kernels
from lariax.torch._kernels import Update

BLOCK = 1024
ROUNDS = 16  # blocks that one program adds up


@triton.jit(do_not_specialize=["which", "count"])  # type: ignore[untyped-decorator]
def _program(  # type: ignore[no-untyped-def] # Triton reads annotations as its own
    point, start, previous, estimate, fresh, stale, scaling, good, numbers, which, count, size,
    scaled: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < size
    g = tl.load(estimate + at, inside)
    if tl.load(good):
        x = tl.load(start + at, inside)
        now, then, momentum = tl.load(fresh + at, inside), tl.load(stale + at, inside), tl.load(numbers)
        g = now + (1 - momentum) * (g - then)  # formulas.storm, of which Triton would read the annotations
        step = tl.load(numbers + 1 + which)
        tl.store(previous + at, tl.load(point + at, inside), inside)
        tl.store(estimate + at, g, inside)
    else:
        x = tl.load(previous + at, inside).to(start.dtype.element_ty)
        step = tl.load(numbers + 1 + count + which)
    move = g
    if scaled:
        move = g * tl.load(scaling + at, inside)
    tl.store(start + at, x - step * move, inside)


def advance(update: Update) -> None:
    """What `_kernels.advance` does."""
    *vectors, scaling, good, numbers = update
    count = len(update.params)
    for i, each in enumerate(zip(*vectors, scaling or update.estimate, strict=True)):
        if _in_one_order(each):
            size = each[0].numel()
            grid = (triton.cdiv(size, BLOCK),)
            _program[grid](*each, good, numbers, i, count, size, scaling is not None, BLOCK)
        else:
            _kernels.advance(update.only(i))


@triton.jit(do_not_specialize=["first"])  # type: ignore[untyped-decorator]
def _sums_program(a, b, out, first, size, rounds: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    zero = tl.zeros((block,), a.dtype.element_ty)
    of_a, apart, of_b = zero, zero, zero
    for i in range(rounds):
        at = (program.to(tl.int64) * rounds + i) * block + tl.arange(0, block)
        x, y = tl.load(a + at, at < size, 0), tl.load(b + at, at < size, 0)
        of_a, apart, of_b = of_a + x * x, apart + (x - y) * (x - y), of_b + y * y
    place = out + 3 * (first + program)
    tl.store(place, tl.sum(of_a))
    tl.store(place + 1, tl.sum(apart))
    tl.store(place + 2, tl.sum(of_b))


_compiled_sums = torch.compile(_kernels.sums, dynamic=False)  # another program for each pattern of arguments


def sums(a: list[Tensor], b: list[Tensor], scaling: list[Tensor] | None) -> list[Tensor]:
    """What `_kernels.sums` does."""
    if scaling is not None or not all(_in_one_order(pair) for pair in zip(a, b, strict=True)):
        return _compiled_sums(a, b, scaling)
    counts = [triton.cdiv(x.numel(), BLOCK * ROUNDS) for x in a]
    parts, first = torch.empty(sum(counts), 3, dtype=a[0].dtype, device=a[0].device), 0
    for x, y, count in zip(a, b, counts, strict=True):
        _sums_program[(count,)](x, y, parts, first, x.numel(), ROUNDS, BLOCK)
        first += count
    return list(parts.sum(dim=0).unbind())


def _in_one_order(tensors: tuple[Tensor, ...]) -> bool:
    """Whether entries lie in memory without gaps and alike."""
    first = tensors[0]
    dense = first.is_contiguous() or first.is_contiguous(memory_format=torch.channels_last)
    return dense and all(each.stride() == first.stride() for each in tensors)
