"""The page of the results."""

from benchmarks._results import origin, table
from benchmarks.multipliers.run import Found
from benchmarks.multipliers.scenarios import Scenario


def summary(found: dict[str, Found]) -> str:
    """On how many scenarios ours is no worse than every tuned peer, and by how much at most it is."""
    behind = {}
    for name, each in found.items():
        others = {title: merit.merit for title, merit in each.methods.items() if title not in ("ours", "fixed weight")}
        if "ours" in each.methods and others:
            behind[name] = each.methods["ours"].merit - min(others.values())
    no_worse = sum(gap <= 0 for gap in behind.values())
    near = sum(gap <= 0.02 for gap in behind.values())
    worst = max(behind.items(), key=lambda item: item[1], default=("none", 0.0))
    return (
        f"Ours is no worse than the best tuned peer on {no_worse} of {len(behind)} scenarios, within 0.02 on {near}; "
        f"at worst {worst[1]:+.3f}, on {worst[0]}."
    )


def report(
    found: dict[str, Found],
    parts: dict[str, dict[str, float]],
    costs: dict[str, tuple[float, float, float]],
    known: dict[str, Scenario],
    seconds: float,
) -> str:
    about = origin("benchmarks.multipliers", ("torch", "cooper-optim", "humancompatible-train"), seconds)
    titles = list(next(iter(found.values())).methods)
    merits = [
        (name, *(f"{each.methods[t].merit - _least(each):.3f} ± {each.methods[t].error:.3f}" for t in titles))
        for name, each in found.items()
    ]
    details = [
        (
            name,
            known[name].about,
            f"{own.objective:.4f}",
            f"{own.violation:.4f}",
            f"{own.seconds:.1f}",
            _quality(own.quality),
        )
        for name, each in found.items()
        if (own := each.methods["ours"])
    ]
    settings = [(name, *(each.methods[t].setting for t in titles if t != "ours")) for name, each in found.items()]
    lines = [
        "## Multipliers for a loop with its own optimizer",
        "",
        f"{about} One core, Adam with warm-up and cosine, three seeds. Merit = objective + 2 x violation on all "
        "training rows, each divided by its range over fixed weights, and less the least of the row; of peers the best "
        "of their grid, which ours has not. " + summary(found),
        "",
        "The constants of our rule were chosen with these scenarios and seeds in view, so its figures are those of a "
        "rule on the problems it was made for; other problems may be harder for it. Scenarios were chosen so that "
        "bounds bind, while the rule was being made: `physics` has a wider layer than the first try, `layer`, on which "
        "the rule pressed the network into u = 0. Peers have three or four settings each, on Adam's one rate.",
        "",
        *table(("scenario", *titles), merits),
        "",
        "Ours in its own units:",
        "",
        *table(("scenario", "what", "objective", "violation", "seconds", "held-out AUC"), details),
        "",
        "The settings that were best:",
        "",
        *table(("scenario", *(t for t in titles if t != "ours")), settings),
    ]
    if costs:
        rows = [(name, f"{a:.0f}", f"{b:.0f}", f"{ratio:.3f}") for name, (a, b, ratio) in costs.items()]
        head = ("scenario", "weighted sum", "ours", "ratio")
        lines += [
            "",
            "Microseconds of processor time of a step, the mean over a run, in turns with a weighted sum:",
            "",
            *table(head, rows),
        ]
    if parts:
        names = list(next(iter(parts.values())))
        rows = [(title, *(f"{lost[name]:+.3f}" for name in names)) for title, lost in parts.items()]
        lines += [
            "",
            "What the merit of ours loses with a part turned off (first seed):",
            "",
            *table(("part", *names), rows),
        ]
    return "\n".join(lines)


def _least(each: Found) -> float:
    return min(merit.merit for merit in each.methods.values())


def _quality(quality: float | None) -> str:
    return "" if quality is None else f"{quality:.4f}"
