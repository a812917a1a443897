"""Merit of multipliers in loops that Adam drives: ours, with nothing set, beside tuned ones.

    python -m benchmarks.multipliers --data FOLDER [--only NAME ...] [--keep FILE] [--ablations] [--write]

Merit = objective + 2 x violation on all training rows, the objective divided by its range over the front of fixed
weights; the violation in its own units, and in another table divided by its range too. Of a method with a grid the
setting counts that is best in the mean over the seeds for tuning; figures are of other seeds.
"""

import argparse
import time
from pathlib import Path

import torch

from benchmarks._results import write
from benchmarks.multipliers.apart import scenarios_apart
from benchmarks.multipliers.cost import WORK, cost
from benchmarks.multipliers.report import report, summary
from benchmarks.multipliers.run import Runs, ablations, figures
from benchmarks.multipliers.scenarios import scenarios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="a folder with fashion_mnist_8k.npz")
    parser.add_argument("--only", nargs="*", default=None, help="scenarios")
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--tuning", type=int, nargs="*", default=[20, 21, 22], help="seeds that settings are chosen on")
    parser.add_argument("--seeds", type=int, nargs="*", default=[30, 31, 32], help="seeds of the figures")
    parser.add_argument("--keep", type=Path, default=None, help="a file of runs: those in it are not made again")
    parser.add_argument("--ablations", action="store_true", help="parts of the rule turned off")
    parser.add_argument("--cost", action="store_true", help="microseconds of a step")
    parser.add_argument("--apart", action="store_true", help="the scenarios that the rule was not made on")
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    everything = scenarios_apart() if options.apart else scenarios(options.data)
    known = {n: s for n, s in everything.items() if options.only is None or n in options.only}
    if options.data is None and not options.apart:
        print("left out: Fashion-MNIST (give --data with a folder that holds fashion_mnist_8k.npz)")
    found = figures(known, options.tuning, options.seeds, options.methods, Runs(options.keep))
    print(summary(found, len(options.seeds)))
    costs = {name: cost(make("cpu"), "cpu") for name, make in WORK.items() if options.cost and name == "adult"}
    parts = ablations(known, options.seeds[:1], found) if options.ablations else {}
    if options.write:
        write(
            "multipliers-apart" if options.apart else "multipliers",
            report(found, parts, costs, everything, time.perf_counter() - begin, (options.tuning, options.seeds)),
        )


if __name__ == "__main__":
    main()
