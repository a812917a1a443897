"""`python -m lariax.rates`: the rate laboratory from a shell."""

import argparse
import sys
from pathlib import Path

import jax

from lariax.rates import THEOREM, check_can_draw, draw, measure

jax.config.update("jax_enable_x64", True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lariax.rates",
        description="Measure the rates of the paper's theorems, and the ablations that must look different. Writes "
        "rates.md, rates.png and rates-inside.png. The status is 1 if a claim is missed. A full run on a machine with "
        "N cores: python -m lariax.rates --processes N",
    )
    parser.add_argument("cases", nargs="*", default=None, help=f"of {', '.join(THEOREM)}; by default all")
    parser.add_argument("--seeds", type=int, default=64, help="problems and runs for each experiment (64)")
    parser.add_argument("--longest", type=int, default=1_000_000, help="the largest K (1,000,000)")
    parser.add_argument("--processes", type=int, default=2, help="experiments side by side (2)")
    parser.add_argument("--output", type=Path, default=Path("rates"), help="folder for the results (./rates)")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.cases or []) - set(THEOREM))
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(THEOREM)}")
    for name, least in (("seeds", 2), ("longest", 2_000), ("processes", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, found {getattr(options, name)}")
    check_can_draw()
    report = measure(
        options.cases or None,
        seeds=options.seeds,
        longest=options.longest,
        processes=options.processes,
        progress=True,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "rates.md").write_text(report.markdown())
    pictures = draw(report, options.output)
    print(report.markdown())
    print("Written:", options.output / "rates.md", *pictures)
    return 0 if all(claim.holds for claim in report.claims()) else 1


if __name__ == "__main__":
    sys.exit(main())
