"""How often the error bars of `lx.inference` hold the truth, and how long they are.

python -m benchmarks.inference                    # 1,000 seeds of each case, written to benchmarks/results/inference.md
python -m benchmarks.inference --seeds 100 --dry
python -m benchmarks.inference --only simplex --keep runs/inference.json   # in pieces; the page when all are there
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402 (the precision is chosen first)

import lariax as lx  # noqa: E402
from benchmarks._results import origin, table, write  # noqa: E402
from benchmarks.inference import large, path, rival  # noqa: E402
from benchmarks.inference.cases import Case, W, cases, drawn, solution  # noqa: E402
from benchmarks.inference.run import Numbers, coverage, measured, width  # noqa: E402

PARTS = ("x", "multipliers", "objective")
PATHS = 300  # runs, one after another
BAND, LEAST = (0.935, 0.965), 0.95
HEAD = ["case", *(f"{part}, %" for part in PARTS), *(f"{part}, width" for part in PARTS), "ambiguous, %", "refused"]


def _cell(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _row(name: str, numbers: Numbers) -> list[str]:
    covered = [_cell(100 * coverage(numbers, part), ".1f") for part in PARTS]
    widths = [_cell(width(numbers, part), ".2f") for part in PARTS]
    return [name, *covered, *widths, f"{100 * numbers.ambiguous:.0f}", str(numbers.refused)]


def _holds(numbers: Numbers, conservative: bool) -> bool:
    """Within the band; where the law of x and of the multipliers is not normal, at least 95 % for those."""
    for part in PARTS:
        value = coverage(numbers, part)
        wide = conservative and part != "objective"
        if not np.isnan(value) and not (LEAST if wide else BAND[0]) <= value <= (1 if wide else BAND[1]):
            return False
    return True


Found = tuple[list[list[str]], bool]
"""Lines of the table, and whether all that is asked for holds."""


def _of_case(case: Case, seeds: int) -> Found:
    numbers = measured(case, seeds)
    name = f"{case.name}{' (conservative)' if case.conservative else ''}"
    return [_row(name, numbers)], _holds(numbers, case.conservative)


def _of_rival(seeds: int) -> Found:
    rows = [_row(f"deterministic equality, {name}", numbers) for name, numbers in rival.measured(seeds).items()]
    return rows, True


def _of_path(seeds: int) -> Found:
    return [_row(*path.measured(min(PATHS, seeds)))], True


def _of_large(seeds: int) -> Found:
    return [large.lines()], True


def _pieces(seeds: int) -> dict[str, Callable[[int], Found]]:
    exact = drawn(
        "deterministic equality", solution([W], [rival.AT], ["c"]), {"c": lx.Equal(_row_of_w, rival.AT, samples=None)}
    )
    found: dict[str, Callable[[int], Found]] = {case.name: partial(_of_case, case) for case in (*cases(), exact)}
    return found | {"averaged SQP": _of_rival, "random scaling": _of_path, "large x": _of_large}


def _row_of_w(x):
    return W @ x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", default="", help="pieces whose name holds this")
    parser.add_argument("--keep", type=Path, help="a file of what has been measured, to go on with")
    parser.add_argument("--dry", action="store_true", help="print, and leave the results alone")
    options = parser.parse_args()
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.exists() else {}
    pieces = _pieces(options.seeds)
    for name, measure in pieces.items():
        if options.only in name:
            start = time.process_time()
            rows, holds = measure(options.seeds)
            kept[name] = [rows, holds, time.process_time() - start]
            print("\n".join(" | ".join(row) for row in rows), f"({kept[name][2]:.0f} s of CPU)", flush=True)
            if options.keep:
                options.keep.parent.mkdir(exist_ok=True)
                options.keep.write_text(json.dumps(kept))
    if set(pieces) <= set(kept):
        page = _page({name: kept[name] for name in pieces}, options.seeds)
        print(page)
        if not options.dry:
            write("inference", page)


def _page(kept: dict[str, list], seeds: int) -> str:
    failed = [name for name, (_, holds, _) in kept.items() if not holds]
    words = f"Not so: {', '.join(failed)}." if failed else "All cases are."
    rows = [row for name, (own, *_) in kept.items() if name != "large x" for row in own]
    lines = [
        "## Error bars",
        "",
        f"The share of {seeds:,} seeds whose 95 % interval holds the truth, entries together, and the mean width "
        "beside that of an oracle which knows the standard deviation of the estimate over the seeds. 2,000 draws; 50 "
        "variables: 4,000. Data sets are drawn, solved by a run over so many epochs and inferred from by "
        "`result.inference()`, seed by seed. Asked for: 93.5 to 96.5 %; where the law is not normal (conservative), at "
        f"least 95 % for x and multipliers. {words} Widths are more than the oracle's where seeds have an ambiguous "
        "row (one that may or may not be active: the intervals cover both), and for the objective where losses are "
        "skewed.",
        "",
        *table(HEAD, rows),
        "",
        *kept["large x"][0][0],
        "",
        f"The rival: {rival.CHECKED}",
        "",
        origin("benchmarks.inference", ("jax", "numpy", "scipy"), sum(seconds for *_, seconds in kept.values())),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
