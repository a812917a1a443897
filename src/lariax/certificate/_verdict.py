"""A certificate in one sentence."""

from collections.abc import Sequence

import numpy as np

from lariax.certificate._certificate import Certificate, ConstraintReport, Interval

MOST_NAMED = 3  # rows of constraints


def verdict(certificate: Certificate) -> str:
    return f"{_judgement(certificate)} ({_circumstances(certificate)})."


def _judgement(certificate: Certificate) -> str:
    s, f, c = certificate.stationarity, certificate.feasibility, certificate.complementarity
    if not all(np.isfinite([s.high, f.high, c.high])):
        return "Nothing can be said: a function or its gradient is not finite here"
    off = f"off by {_at_least(s)}{_share(certificate)}"
    moreover = f"; and not stationary, {off}" if s.low > certificate.tolerance else ""
    if certificate.outside > 0:
        return f"Not feasible: x lies {certificate.outside:.3g} outside of its set{moreover}"
    if certificate.violated:
        return f"Not feasible: {_violations(certificate)}, in all by {_at_least(f)}{moreover}"
    if certificate.within(certificate.tolerance):
        return f"A solution within {certificate.tolerance:.3g}: feasible, stationary and complementary"
    feasible = "Feasible" if f.high <= certificate.tolerance else f"Feasible to within {f.high:.3g}"
    if s.low > certificate.tolerance:
        return f"{feasible}, but not stationary: the gradient of the Lagrangian is {off}"
    if c.low > certificate.tolerance:
        return (
            f"{feasible}, but multipliers are at work on inactive constraints: {_slack_rows(certificate)}; "
            f"complementarity is {_at_least(c)}"
        )
    return (
        f"{feasible}, and not distinguishable from a solution: stationarity is at most {s.high:.3g}, complementarity "
        f"at most {c.high:.3g}"
    )


def _violations(certificate: Certificate) -> str:
    """The constraints that are violated, each by the entry for which that is surest."""
    rows = []
    for name in certificate.violated:
        report = certificate.constraints[name]
        entry = report.worst
        rows.append(f"{_row(name, report, entry)} ({report.at(entry).estimate:.4g}, asked {report.asked(entry)})")
    return f"{_listed(rows)} {'is' if len(rows) == 1 else 'are'} violated"


def _slack_rows(certificate: Certificate) -> str:
    """The inequalities with the largest products of slack and multiplier."""
    rows = []
    for name, report in certificate.constraints.items():
        if report.relation == "=":
            continue
        slack = np.ravel(np.abs(report.value - report.bound))
        multipliers = np.ravel(certificate.multipliers[name])
        for entry in map(int, np.flatnonzero(slack * multipliers)):
            words = f"{_row(name, report, entry)} (slack {slack[entry]:.3g}, multiplier {multipliers[entry]:.3g})"
            rows.append((abs(slack[entry] * multipliers[entry]), words))
    return _listed([words for _, words in sorted(rows, key=lambda row: -row[0])])


def _row(name: str, report: ConstraintReport, entry: int) -> str:
    return f"{name!r}{report.place(entry)}"


def _at_least(interval: Interval) -> str:
    if interval.low == interval.high:
        return f"{interval.estimate:.3g}"
    return f"{interval.estimate:.3g} (at least {interval.low:.3g})"


def _share(certificate: Certificate) -> str:
    return "" if certificate.relative is None else f", relative {certificate.relative.stationarity.estimate:.2g}"


def _circumstances(certificate: Certificate) -> str:
    if certificate.exact:
        return f"{certificate.about}, no sampling error"
    return f"{certificate.about}, {certificate.confidence:.4g} confidence each, {certificate.draws:,} draws"


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_NAMED
    shown = [*words[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
