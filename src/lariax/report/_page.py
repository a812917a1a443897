"""The page: one file, no network, nothing in it that the run's own names could turn into code."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lariax.report import _sections as sections
from lariax.report._answers import pictures_of_answers
from lariax.report._forest import error_bars
from lariax.report._html import Markup, element, joined, name_of
from lariax.report._panels import TIMES, Panel, constants, panels
from lariax.report._words import LONGEST_SENTENCE, number, short
from lariax.runs import RunFolderError, SavedRun, plain
from lariax.utils import write_atomically

GENERATOR = '<meta name="generator" content="Lariax report">'
HEAD = (
    f'<meta charset="utf-8">{GENERATOR}<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)
FIRST = 8  # constraints whose charts are open at once


def write(runs: Sequence[SavedRun], path: str | Path) -> Path:
    """Write the page. A file that is there is replaced only if it is such a page itself.

    >>> import tempfile, jax.numpy as jnp, lariax as lx
    >>> from lariax import report, runs
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> result = lx.solve(problem, jnp.zeros(2), iterations=100)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     report.write([runs.saved(result)], f"{parent}/report.html").name
    'report.html'
    """
    target = Path(path)
    if os.path.lexists(target) and not _is_ours(target):
        raise RunFolderError(f"{target} exists and is not a report of Lariax, so it stays. Choose another --output.")
    text = html(runs).encode("utf-8", errors="replace")
    try:
        write_atomically(target, lambda file: file.write(text))
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error.strerror}.") from error
    return target


def _is_ours(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return path.is_file() and GENERATOR.encode() in file.read(2000)
    except OSError:
        return False


def html(runs: Sequence[SavedRun]) -> str:
    """The whole page as text."""
    if not runs:
        raise ValueError("a report needs at least one run.")
    style, script = _resource("report.css"), _script()
    policy = _policy(style, script)
    charts = panels(runs)
    title = short(runs[0].title, LONGEST_SENTENCE) if len({run.title for run in runs}) == 1 else f"{len(runs)} runs"
    data = _safe_json(_data(runs, charts))
    head = joined(
        [
            Markup(HEAD),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            element("title", f"{title} · Lariax"),
            Markup(f"<style>{style}</style>"),
        ]
    )
    body = joined(
        [
            element("a", "Skip to the results", href="#main", class_="skip"),
            _header(runs, title),
            _links(runs),
            element("main", *_main(runs, charts), id="main"),
            element("footer", element("p", _made(runs))),
            element("div", id="live", class_="unseen", aria_live="polite"),
            Markup(f'<script type="application/json" id="data">{data}</script>'),
            Markup(f"<script>{script}</script>"),
        ]
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def live_page() -> tuple[str, str]:
    """The page of a run that goes on, and the policy to send with it. It asks for its numbers itself."""
    style, script = _resource("report.css"), _script("live.js")
    groups = {"progress": None, "constraints": "Constraint by constraint", "multipliers": None, "method": "The method"}
    grids = [
        part
        for group, title in groups.items()
        for part in (element("h3", title) if title else "", element("div", class_=f"grid {group}", data_group=group))
    ]
    body = joined(
        [
            _heading(element("h1", "A run that goes on"), element("p", "Compiling.", id="status", role="status")),
            element("main", _section("progress", "Progress", _controls(), *grids), id="main"),
            element("div", id="live", class_="unseen", aria_live="polite"),
            Markup('<script type="application/json" id="data">{"runs":[],"panels":[],"pictures":[]}</script>'),
            Markup(f"<script>{script}</script>"),
        ]
    )
    head = joined([Markup(HEAD), element("title", "A run · Lariax"), Markup(f"<style>{style}</style>")])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n', _policy(
        style, script, "connect-src 'self'"
    )


def live_data(run: SavedRun) -> dict[str, Any]:
    """The numbers of that page."""
    charts = panels([run]) if len(run) else []
    found = _data([run] if len(run) else [], charts)
    for panel, chart in zip(found["panels"], charts, strict=True):
        panel |= {"group": chart.group, "about": chart.about}
    return plain(found)


def _policy(style: str, script: str, *more: str) -> str:
    """What the page may do: run this one script, and be styled by this one style."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            *more,
        ]
    )


def _resource(name: str) -> str:
    return files("lariax.report").joinpath(name).read_text(encoding="utf-8")


def _script(*more: str) -> str:
    parts = "\n".join(_resource(name) for name in ("charts.js", "pictures.js", "page.js", *more))
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _header(runs: Sequence[SavedRun], title: str) -> Markup:
    names = [name_of(run.name) for run in runs]
    between = [part for name in names for part in (" · ", name)][1:]
    return _heading(element("h1", name_of(title, LONGEST_SENTENCE)), element("p", *between, class_="names"))


def _heading(*words: Markup) -> Markup:
    button = element("button", "Theme", type="button", id="theme", aria_label="Switch between light and dark")
    return element("header", element("p", "Lariax", class_="brand"), element("div", *words), button)


def _links(runs: Sequence[SavedRun]) -> Markup:
    links = {
        "Constraints": "constraints",
        "Certificate": "certificate",
        **({"Error bars": "inference"} if any(run.inference for run in runs) else {}),
        "Progress": "progress",
        **({"Pictures": "pictures"} if any(run.pictures for run in runs) else {}),
        "Answer": "answer",
        "Settings": "settings",
    }
    return element(
        "nav", *(element("a", title, href=f"#{name}") for title, name in links.items()), aria_label="Sections"
    )


def _made(runs: Sequence[SavedRun]) -> str:
    when = max(str(run.outcome.get("created", "")) for run in runs)
    return f"Made by Lariax {runs[0].versions.get('lariax', '')} from runs of {when}. This page needs no network."


def _main(runs: Sequence[SavedRun], charts: Sequence[Panel]) -> list[Markup]:
    several = len(runs) > 1
    verdicts = element("div", *(sections.verdict(run, several) for run in runs), class_="verdicts")
    tiles = [sections.figures(runs[0])] if not several else []
    numbered = list(enumerate(charts))
    measures = sections.measures(runs)
    bars = [error_bars(run, several) for run in runs if run.inference is not None]
    return [
        _section("verdict", "Verdict" if several else None, verdicts, *tiles, *([measures] if measures else [])),
        _section("constraints", "Constraints", sections.constraints(runs)),
        _section("certificate", "Certificate", sections.certificates(runs)),
        *([_section("inference", "Error bars", *bars)] if bars else []),
        _section("progress", "Progress", _controls(), *_grids(numbered, runs)),
        *([_section("pictures", "Pictures of the problem", _pictures(runs))] if any(r.pictures for r in runs) else []),
        _section("answer", "Answer", *(sections.answer(run) for run in runs), _answer_pictures(runs)),
        _section("settings", "Settings and versions", sections.settings(runs)),
    ]


def _section(name: str, title: str | None, *children: object) -> Markup:
    heading = element("h2", title, id=f"{name}-title") if title else ""
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title" if title else None)


def _controls() -> Markup:
    """What all charts have in common."""
    words = {"draws": "draws", "seconds": "seconds", "iteration": "iterations"}
    times = [
        element("label", Markup(f'<input type="radio" name="against" value="{name}">'), f" {words[name]}")
        for name in TIMES
    ]
    logarithmic = element("label", Markup('<input type="checkbox" id="log-x">'), " logarithmic")
    everything = element("button", "Show everything", type="button", id="reset", class_="quiet")
    hint = (
        "Bars at the right edge are intervals of the certificate (pale: held out), dashed lines bounds, dotted lines "
        "standard errors, pale lines single batches. On a logarithmic axis 0 is at its foot. Drag across a chart to "
        "zoom, double-click to see everything again; on a focused chart use arrows, plus, minus, 0 and L."
    )
    return element(
        "form",
        element("fieldset", element("legend", "Against"), *times, logarithmic),
        everything,
        element("p", hint, class_="hint"),
        element("noscript", element("p", "The charts need JavaScript. All tables on this page do not.")),
        id="controls",
    )


def _grids(numbered: Sequence[tuple[int, Panel]], runs: Sequence[SavedRun]) -> list[Markup]:
    titles = {"progress": None, "constraints": "Constraint by constraint", "multipliers": None, "method": "The method"}
    parts: list[Markup] = []
    for group, title in titles.items():
        members = [_figure(i, panel, runs) for i, panel in numbered if panel.group == group]
        if not members:
            continue
        if title:
            parts.append(element("h3", title))
        parts.append(element("div", *members[:FIRST], class_=f"grid {group}"))
        if group == "method" and (level := constants(runs)):
            parts.append(element("p", f"The same throughout: {_listed(level)}.", class_="hint"))
        if members[FIRST:]:
            more = element("div", *members[FIRST:], class_=f"grid {group}")
            parts.append(element("details", element("summary", f"{len(members) - FIRST} more"), more))
    return parts


def _listed(level: Mapping[str, float]) -> str:
    return ", ".join(f"{title.lower()} {number(value)}" for title, value in level.items())


def _figure(i: int, panel: Panel, runs: Sequence[SavedRun]) -> Markup:
    return element(
        "figure",
        element("figcaption", element("b", name_of(panel.title)), element("small", panel.about)),
        element("div", class_="chart", data_panel=i),
        class_="card",
    )


def _all_pictures(runs: Sequence[SavedRun]) -> list[Mapping[str, Any]]:
    return [picture for run in runs for picture in run.pictures]


def _answer_pictures(runs: Sequence[SavedRun]) -> Markup:
    first = len(_all_pictures(runs))
    cards = []
    for place, picture in enumerate(pictures_of_answers(runs)):
        caption = element("figcaption", element("b", name_of(str(picture["title"]), LONGEST_SENTENCE)))
        cards.append(
            element("figure", caption, element("div", class_="chart", data_picture=first + place), class_="card")
        )
    return element("div", *cards, class_="grid pictures")


def _pictures(runs: Sequence[SavedRun]) -> Markup:
    several = len(runs) > 1
    cards, count = [], 0
    for run in runs:
        for picture in run.pictures:
            words = joined([name_of(run.name), ": "]) if several else ""
            caption = element("figcaption", element("b", words, name_of(str(picture["title"]), LONGEST_SENTENCE)))
            cards.append(element("figure", caption, element("div", class_="chart", data_picture=count), class_="card"))
            count += 1
    return element("div", *cards, class_="grid pictures")


# --- the numbers behind the charts


def _data(runs: Sequence[SavedRun], charts: Sequence[Panel]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "name": short(run.name),
                "times": {name: _packed(run.history[(name,)], "<f8") for name in TIMES if run.history},
            }
            for run in runs
        ],
        "panels": [_panel_data(panel) for panel in charts],
        "pictures": [_picture_data(picture) for picture in (*_all_pictures(runs), *pictures_of_answers(runs))],
    }


def _panel_data(panel: Panel) -> dict[str, Any]:
    return {
        "title": short(panel.title),
        "log": panel.logarithmic,
        "bound": panel.bound,
        "lines": [
            {
                "run": line.run,
                "label": short(line.label),
                "minor": line.minor,
                "raw": line.raw,
                "values": _packed(line.values, "<f4"),
            }
            for line in panel.lines
        ],
        "marks": [
            {
                "run": mark.run,
                "label": mark.label,
                "estimate": mark.interval.estimate,
                "low": mark.interval.low,
                "high": mark.interval.high,
            }
            for mark in panel.marks
            if np.isfinite([mark.interval.estimate, mark.interval.low, mark.interval.high]).all()
        ],
    }


def _picture_data(picture: Any) -> dict[str, Any]:
    series = {
        short(str(name)): {"shape": np.shape(values), "values": _packed(np.ravel(values), "<f4")}
        for name, values in picture["series"].items()
    }
    rest = {
        name: picture[name] for name in ("title", "kind", "x_label", "y_label", "categories", "reference", "extent")
    }
    return {**rest, "series": series}


def _packed(values: Any, kind: str) -> str:
    """Numbers as base64: an eighth of what a hundred thousand rows would take as text, and read in no time."""
    with np.errstate(over="ignore"):
        return base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode()


def _safe_json(value: Any) -> str:
    """JSON that ends no script element, whatever the names in it."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))  # ASCII only
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
