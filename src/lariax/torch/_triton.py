"""What a GPU does with vectors, in one kernel a parameter: the update, which reads and writes seven streams of it and
no more, and the sums that can be had in passing.

Imported where there is a GPU: Triton comes with torch there alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lariax.torch import _update
from lariax.torch._update import Update

BLOCK = 1024


@triton.jit(do_not_specialize=["which", "count", "first"])  # type: ignore[untyped-decorator]
def _program(  # type: ignore[no-untyped-def] # Triton reads annotations as its own
    point, start, previous, estimate, fresh, stale, scaling, good, numbers, parts, which, count, first, size,
    scaled: tl.constexpr, summed: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < size
    g = tl.load(estimate + at, inside, 0)
    off, change = tl.zeros_like(g), tl.zeros_like(g)
    if tl.load(good):
        x = tl.load(start + at, inside, 0)
        now, then, momentum = tl.load(fresh + at, inside, 0), tl.load(stale + at, inside, 0), tl.load(numbers)
        off, change = then - g, now - then
        g = now + (1 - momentum) * (g - then)  # formulas.storm, of which Triton would read the annotations
        step = tl.load(numbers + 1 + which)
        tl.store(previous + at, tl.load(point + at, inside), inside)
        tl.store(estimate + at, g, inside)
    else:
        x = tl.load(previous + at, inside, 0).to(start.dtype.element_ty)
        step = tl.load(numbers + 1 + count + which)
    move = g
    if scaled:
        weight = tl.load(scaling + at, inside, 0)
        move = g * weight
    tl.store(start + at, x - step * move, inside)
    if summed:
        if scaled:
            off_term, change_term = off * weight, change * weight
        else:
            off_term, change_term = off, change
        place = parts + 3 * (first + tl.program_id(0))
        tl.store(place, tl.sum(off * off_term))
        tl.store(place + 1, tl.sum(change * change_term))
        tl.store(place + 2, tl.sum(g * move))


def advance(update: Update, summed: bool = False) -> list[Tensor]:
    """What `_update.advance` does."""
    *vectors, scaling, good, numbers = update
    counts = [triton.cdiv(part.numel(), BLOCK) for part in update.estimate]
    parts, first = numbers.new_zeros(sum(counts) if summed else 1, 3), 0
    for i, (count, each) in enumerate(zip(counts, zip(*vectors, scaling or update.estimate, strict=True), strict=True)):
        if _in_one_order(each):
            order = i, len(counts), first, each[0].numel()
            _program[(count,)](*each, good, numbers, parts, *order, scaling is not None, summed, BLOCK)
        elif found := _update.advance(update.only(i), summed):
            parts[first] = torch.stack(found)
        first += count
    return list(parts.sum(dim=0).unbind()) if summed else []


def _in_one_order(tensors: tuple[Tensor, ...]) -> bool:
    """Whether entries lie in memory without gaps and alike."""
    first = tensors[0]
    dense = first.is_contiguous() or first.is_contiguous(memory_format=torch.channels_last)
    return dense and all(each.stride() == first.stride() for each in tensors)
