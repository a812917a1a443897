"""How often the error bars of `lx.inference` hold the truth, and how long they are.

python -m benchmarks.inference                    # 1,000 seeds of each case, written to benchmarks/results/inference.md
python -m benchmarks.inference --seeds 100 --dry
"""

import argparse
import time

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np  # noqa: E402 (the precision is chosen first)

import lariax as lx  # noqa: E402
from benchmarks._results import origin, table, write  # noqa: E402
from benchmarks.inference import large, path, rival  # noqa: E402
from benchmarks.inference.cases import W, cases, drawn, solution  # noqa: E402
from benchmarks.inference.run import Numbers, coverage, measured, width  # noqa: E402

PARTS = ("x", "multipliers", "objective")
BAND = (0.935, 0.965)


def _cell(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _row(name: str, numbers: Numbers) -> list[str]:
    covered = [_cell(100 * coverage(numbers, part), ".1f") for part in PARTS]
    widths = [_cell(width(numbers, part), ".2f") for part in PARTS]
    return [name, *covered, *widths, f"{100 * numbers.ambiguous:.0f}", str(numbers.refused)]


def _holds(numbers: Numbers, conservative: bool) -> bool:
    found = [value for part in PARTS if not np.isnan(value := coverage(numbers, part))]
    return all(value >= BAND[0] and (conservative or value <= BAND[1]) for value in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--dry", action="store_true", help="print, and leave the results alone")
    options = parser.parse_args()
    start = time.perf_counter()
    rows, failed = [], []
    for case in cases():
        if options.only in case.name:
            numbers = measured(case, options.seeds)
            rows.append(_row(f"{case.name}{' (conservative)' if case.conservative else ''}", numbers))
            failed += [] if _holds(numbers, case.conservative) else [case.name]
            print(" | ".join(rows[-1]), f"({numbers.seconds:.0f} s of CPU)", flush=True)
    if not options.only:
        rows += _beside_the_rival(options.seeds)
        rows.append(_row(*path.measured(min(60, options.seeds))))
        print(" | ".join(rows[-1]), flush=True)
    words = f"Not within the band: {', '.join(failed)}." if failed else "All cases are within the band."
    head = ["case", *(f"{part}, %" for part in PARTS), *(f"{part}, width" for part in PARTS), "ambiguous, %", "refused"]
    lines = [
        "## Error bars",
        "",
        f"The share of {options.seeds:,} seeds whose 95 % interval holds the truth, entries together, and the mean "
        "width beside that of an oracle which knows the standard deviation of the estimate over the seeds. 2,000 draws "
        "(data set: 500 rows, 50 variables: 4,000). Asked for: 93.5 to 96.5 %; where the law is not normal "
        f"at least that. {words} Widths are more than the oracle's where seeds have an ambiguous row (one that may or "
        "may not be active: the intervals cover both), and for the objective where losses are skewed.",
        "",
        *table(head, rows),
        "",
        *([] if options.only else [*large.lines(), ""]),
        origin("benchmarks.inference", ("jax", "numpy", "scipy"), time.perf_counter() - start),
    ]
    print("\n".join(lines))
    if not options.dry:
        write("inference", "\n".join(lines))


def _beside_the_rival(seeds: int) -> list[list[str]]:
    exact = drawn(
        "deterministic equality", solution([W], [rival.AT], ["c"]), {"c": lx.Equal(_row_of_w, rival.AT, samples=None)}
    )
    rows = [_row(exact.name, measured(exact, seeds))]
    for name, numbers in rival.measured(seeds).items():
        rows.append(_row(f"deterministic equality, averaged SQP, {name}", numbers))
    for row in rows:
        print(" | ".join(row), flush=True)
    return rows


def _row_of_w(x):
    return W @ x


if __name__ == "__main__":
    main()
