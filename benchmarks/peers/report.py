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
    rivals = [np.median([trace.merit for trace in each.traces]) for each in found if each.method not in OURS]
    target = min(rivals, default=np.inf)
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
    for each in sorted(found, key=lambda each: (each.method not in OURS, np.median([t.merit for t in each.traces]))):
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


# --- how soon, for what AUC


def fronts(found: list[Outcome], bound: float, when: Callable[[Trace, np.ndarray], float]) -> list[list[str]]:
    """By AUC: the fastest of all runs of all rivals' settings, within twice the bound; ours within the bound, at an AUC
    no more than 0.002 lower."""
    rows = []
    everybody = [
        (each, setting, trace)
        for each in found
        if each.method not in OURS
        for setting, trace in [*each.tuning, *((each.setting, trace) for trace in each.traces)]
    ]
    ours = next((each for each in found if each.method == JAX), None)
    for level in LEVELS:
        times = [when(trace, (trace.table[:, 1] <= bound) & (trace.table[:, 2] >= level)) for _, _, trace in everybody]
        best = int(np.argmin(times)) if times else 0
        if not times or not np.isfinite(times[best]):
            break
        own = [] if ours is None else ours.traces
        mine = [when(trace, (trace.table[:, 1] <= 0) & (trace.table[:, 2] >= level - 0.002)) for trace in own]
        middle = np.median(mine) if mine else np.inf
        each, setting, _ = everybody[best]
        ratio = f"{middle / times[best]:.2f}" if np.isfinite(middle) else ""
        rows.append([f"{level:.2f}", f"{times[best]:.2f} s", f"{each.method}: {words(setting)}", _median(mine), ratio])
    return rows


def front_table(found: list[Outcome], bound: float) -> list[str]:
    head = ["AUC", "fastest rival", "which", "ours", "ours / rival"]
    lines: list[str] = []
    for title, when in (("First look within", first), ("Within for the rest of the run", for_good)):
        lines += ["", f"{title}:", "", *table(head, fronts(found, bound, when))]
    return lines
