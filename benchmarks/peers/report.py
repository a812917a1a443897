"""Tables of the comparison."""

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks._results import table
from benchmarks.peers.methods import JAX, TORCH, Setting
from benchmarks.peers.run import WEIGHT, Outcome, Trace
from benchmarks.peers.tasks import Shape

OURS = (JAX, TORCH)
NORMAL = 1.96
LEVELS = (0.80, 0.81, 0.82, 0.83, 0.84, 0.85, 0.86, 0.87)
"""AUCs at which the front is read off."""


def first(trace: Trace, good: np.ndarray) -> float:
    """Seconds at the first good look, infinite without one."""
    return trace.seconds[int(np.argmax(good))] if good.any() else np.inf


def for_good(trace: Trace, good: np.ndarray) -> float:
    """Seconds from which on every look is good, the last tenth of the run at least."""
    bad = np.flatnonzero(~good)
    start = 0 if not len(bad) else bad[-1] + 1
    return trace.seconds[start] if start < len(good) and trace.seconds[start] <= 0.9 * trace.seconds[-1] else np.inf


def merits(trace: Trace) -> np.ndarray:
    return trace.table[:, 0] + WEIGHT * np.maximum(trace.table[:, 1], 0)


def _late(trace: Trace) -> np.ndarray:
    return trace.table[-(len(trace.looks) // 3) :]


def _median(values: Sequence[float], form: str = ".2g", unit: str = "") -> str:
    """With the least and the most; how many got there, if not more than half did."""
    there = np.isfinite(values)
    if 2 * there.sum() <= len(values):
        return f"{there.sum()} of {len(values)}" if there.any() else "never"
    low, middle, high = (
        f"{value:{form}}" if np.isfinite(value) else "never"
        for value in (np.min(values), np.median(values), np.max(values))
    )
    return f"{middle}{unit} [{low}, {high}]"


def _with_error(pairs: list[tuple[float, float]], form: str) -> str:
    value, error = np.median(np.asarray(pairs), axis=0)
    return f"{value:{form}} ± {NORMAL * error:{form}}"


def words(setting: Setting) -> str:
    return (
        ", ".join(
            f"{name} {value[0]} {value[1]:g}" if isinstance(value, tuple | list) else f"{name} {value}"
            for name, value in setting.items()
        )
        or "defaults"
    )


def problem_table(shape: Shape, better: str, found: list[Outcome]) -> list[str]:
    """One row a method: ours first, then by the merit in the end."""
    target = min((middle_merit(each) for each in found if each.method not in OURS), default=np.inf)
    head = [
        "method",
        "within, first",
        "within, for good",
        "as good as the best rival's end",
        "excess late: mean",
        "most",
        "loss late",
        f"{better} late",
        *(["held-out AUC", "held-out excess"] if better == "AUC" else []),
        "µs an iteration",
        "setting",
    ]
    rows = []
    for each in sorted(found, key=lambda each: (each.method not in OURS, middle_merit(each))):
        within = [trace.table[:, 1] <= shape.slack for trace in each.traces]
        pairs = list(zip(each.traces, within, strict=True))
        late = np.stack([_late(trace).mean(axis=0) for trace in each.traces])
        most = [_late(trace)[:, 1].max() for trace in each.traces]
        steps = [trace.draws[-1] / (shape.batch * shape.draws) for trace in each.traces]
        pace = np.median([trace.seconds[-1] / count for trace, count in zip(each.traces, steps, strict=True)])
        cells = [
            _median([first(trace, good) for trace, good in pairs], unit=" s"),
            _median([for_good(trace, good) for trace, good in pairs], unit=" s"),
            _median([first(trace, merits(trace) <= target) for trace in each.traces], unit=" s"),
            _median(late[:, 1], ".4f"),
            _median(most, ".4f"),
            _median(late[:, 0], ".4f"),
            _median(late[:, 2], ".4f"),
        ]
        if better == "AUC":
            cells += [
                _with_error([(h.auc, h.auc_error) for h in each.heldout if h], ".4f"),
                _with_error([(h.excess, h.excess_error) for h in each.heldout if h], ".4f"),
            ]
        rows.append([each.method, *cells, f"{pace * 1e6:,.0f}", words(each.setting)])
    return table(head, rows)


def middle_merit(each: Outcome) -> float:
    return float(np.median([trace.merit for trace in each.traces]))


def summary_table(parts: list[tuple[Shape, str, list[Outcome]]]) -> list[str]:
    """One row a problem: the rival with the least merit in the end, and ours."""
    head = ["problem", "best rival", "its merit", "largest excess late", "seconds to it"]
    for name in OURS:
        head += [f"{name}: merit", "largest excess late", "seconds to the rival's merit"]
    rows = []
    for shape, _, found in parts:
        rivals = [each for each in found if each.method not in OURS]
        best = min(rivals, key=middle_merit)
        target = middle_merit(best)
        ours = [each for name in OURS for each in found if each.method == name]
        row = [shape.name, best.method]
        for each in (best, *ours):
            most = float(np.median([_late(trace)[:, 1].max() for trace in each.traces]))
            soon = float(np.median([first(trace, merits(trace) <= target) for trace in each.traces]))
            row += [f"{middle_merit(each):.4f}", f"{most:.4f}", f"{soon:.2g}" if np.isfinite(soon) else "never"]
        rows.append(row)
    return table(head, rows)


# --- how soon, for what AUC


Runs = list[tuple[str, list[Trace]]]
"""What was run, in words, and its traces; their median counts."""


def front(rivals: Runs, ours: list[Trace], allowed: tuple[float, float], when: Callable) -> list[list[str]]:
    """By AUC: the fastest rival with an excess up to the first number allowed, and ours with one up to the second and
    an AUC no more than 0.002 lower."""

    def times(traces: list[Trace], excess: float, level: float) -> list[float]:
        return [when(trace, (trace.table[:, 1] <= excess) & (trace.table[:, 2] >= level)) for trace in traces]

    rows = []
    for level in LEVELS:
        found = [float(np.median(times(traces, allowed[0], level))) for _, traces in rivals]
        best = int(np.argmin(found))
        mine = times(ours, allowed[1], level - 0.002)
        rival, own = found[best], float(np.median(mine))
        if not np.isfinite(min(rival, own)):
            break
        ratio = f"{own / rival:.2f}" if np.isfinite([rival, own]).all() else ""
        name = f"{rival:.2f} s, {rivals[best][0]}" if np.isfinite(rival) else "never"
        rows.append([f"{level:.2f}", name, _median(mine, unit=" s"), ratio])
    return rows


def front_table(found: list[Outcome], bound: float) -> list[str]:
    """Of a bounded gap, where the excess of a gap of twice the bound is the bound."""
    rivals = [each for each in found if each.method not in OURS]
    ours = next(each.traces for each in found if each.method == JAX)
    single = [
        (f"{each.method}: {words(setting)}", [trace])
        for each in rivals
        for setting, trace in [*each.tuning, *((each.setting, trace) for trace in each.traces)]
    ]
    tuned = [(f"{each.method}: {words(each.setting)}", each.traces) for each in rivals]
    return [
        "",
        f"First look; the fastest of all {len(single)} runs of rivals, tuning and lucky ones included, within twice "
        "the bound; ours within the bound:",
        "",
        *table(["AUC", "fastest rival", "ours", "ours / rival"], front(single, ours, (bound, 0.0), first)),
        "",
        "For the rest of the run, everybody within twice the bound; tuned rivals, medians over seeds:",
        "",
        *table(["AUC", "fastest rival", "ours", "ours / rival"], front(tuned, ours, (bound, bound), for_good)),
    ]
