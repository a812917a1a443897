"""The report in a real Chromium: no complaint in the console, the numbers of the run, hands on the charts."""

import base64
import dataclasses

import numpy as np
import pytest

from front.browser import Browser, executable
from lariax import report

LOUD = "*** NO CHROMIUM HERE: THE REPORT IS NOT TESTED IN A BROWSER. `make browser` installs Debian's where it may. ***"

pytestmark = pytest.mark.skipif(executable() is None, reason=LOUD)

FIRST = "document.querySelector('[data-panel=\"0\"]')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser.page()
    browser.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory, saved_run, hostile_run, long_run):
    folder = tmp_path_factory.mktemp("reports")
    other = dataclasses.replace(saved_run, name="second")
    empty = dataclasses.replace(saved_run, history={path: values[:0] for path, values in saved_run.history.items()})
    bare = dataclasses.replace(saved_run, history={}, certificate=None, pictures=(), multipliers={}, settings={})
    chosen = {"one": [saved_run], "two": [saved_run, other], "hostile": [hostile_run], "long": [long_run]}
    values = 2 + 1e-4 * np.sin(np.arange(len(saved_run)))
    history = {**saved_run.history, ("objective",): values}
    narrow = dataclasses.replace(saved_run, history=history, certificate=None)
    chosen |= {"empty": [empty], "bare": [bare], "mixed": [bare, saved_run, empty], "narrow": [narrow]}
    return {name: report.write(runs, folder / f"{name}.html") for name, runs in chosen.items()}


@pytest.fixture
def one(page, files):
    page.size(1200)
    page.open(files["one"])
    return page


def box(page):
    return page.run(
        f"(() => {{ const r = {FIRST}.querySelector('.plot'); "
        "r.scrollIntoView({block: 'center', behavior: 'instant'}); "
        "const b = r.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    )


def ticks(page, panel=0):
    return page.run(f"[...document.querySelectorAll('[data-panel=\"{panel}\"] svg text')].map(t => t.textContent)")


@pytest.mark.parametrize("name", ["one", "two", "hostile", "long", "empty", "bare", "mixed"])
def test_quiet_console_and_no_network(page, files, name):
    page.size(1200)
    page.open(files[name])
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.run("document.querySelector('input[value=seconds]').click(); document.getElementById('log-x').click()")
    page.run("document.getElementById('theme').click(); new Promise(r => requestAnimationFrame(() => r(1)))")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith("data:")] == [files[name].as_uri()]


def test_the_numbers_of_the_run(one, saved_run):
    text = one.run("document.body.innerText")
    assert saved_run.certificate.verdict in text
    assert f"{saved_run.certificate.stationarity.estimate:.4g}" in text
    assert f"{saved_run.outcome['draws']:,}" in text
    drawn = one.run(
        "[...document.querySelectorAll('[data-panel]')]"
        ".filter(p => p.querySelector('path.line')?.getAttribute('d')).length"
    )
    assert drawn == len(report.panels([saved_run]))
    label = one.run(f"{FIRST}.querySelector('.plot').getAttribute('aria-label')")
    end = saved_run.history[("feasibility",)][-1]
    assert f"feasibility ends at {float(f'{end:.4g}'):g}" in label


def test_ticks_can_be_told_apart(page, files):
    """Where a line hardly changes, "2" four times says nothing."""
    page.size(1200)
    page.open(files["narrow"])
    every = page.run(
        "[...document.querySelectorAll('[data-panel]')].map(p => "
        "[...p.querySelectorAll('svg text[text-anchor=end]')].map(t => t.textContent))"
    )
    assert all(len(set(texts)) == len(texts) for texts in every), every
    assert any(sum(text.startswith(("2.00", "1.999")) for text in texts) > 1 for texts in every), every


def test_ticks_of_many_digits_are_not_cut(page, tmp_path, saved_run):
    values = -0.2 + 1e-6 * np.sin(np.arange(len(saved_run)))
    run = dataclasses.replace(saved_run, history={**saved_run.history, ("objective",): values}, certificate=None)
    page.open(report.write([run], tmp_path / "digits.html"))
    assert max(map(len, ticks(page, 2))) > 8
    chart = "document.querySelector('[data-panel=\"2\"] svg')"
    places = page.run(f"[...{chart}.querySelectorAll('text')].map(text => text.getBoundingClientRect().left)")
    assert min(places) >= page.run(f"{chart}.getBoundingClientRect().left")


def test_hover_tells_the_value_there(one, saved_run):
    left, top, width, height = box(one)
    one.mouse("mouseMoved", left + 0.5 * width, top + height / 2)
    words = one.run(f"{FIRST}.querySelector('.tip').innerText").split("\n")
    words = [line for line in words if line]
    draws = int(words[0].split()[0].replace(",", ""))
    at = list(saved_run.history[("draws",)]).index(draws)
    assert 0.3 < at / len(saved_run) < 0.7
    shown = float(words[1].removeprefix("feasibility").replace("\N{MINUS SIGN}", "-"))
    assert shown == pytest.approx(saved_run.history[("feasibility",)][at], rel=1e-3)


def test_zoom_by_dragging_and_back(one):
    before = ticks(one), ticks(one, 1)
    left, top, width, height = box(one)
    one.drag(left + 0.4 * width, left + 0.6 * width, top + height / 2)
    zoomed = ticks(one), ticks(one, 1)
    assert all(old != new for old, new in zip(before, zoomed, strict=True)), "all charts zoom together"
    one.run(f"{FIRST}.querySelector('.plot').focus()")
    one.press("0", "0")
    assert (ticks(one), ticks(one, 1)) == before


def test_keys_read_aloud_and_switch(one, saved_run):
    one.run(f"{FIRST}.querySelector('.plot').focus()")
    one.press("End")
    said = one.run("document.getElementById('live').textContent")
    assert said.startswith(f"{int(saved_run.history[('draws',)][-1]):,} draws: feasibility ")
    before = ticks(one)
    one.press("l", "l")
    assert ticks(one) != before
    one.press("+", "+")
    assert one.errors == []


def test_lines_can_be_switched_off(page, files):
    page.size(1200)
    page.open(files["two"])
    count = f"{FIRST}.querySelectorAll('path.line').length"
    before = page.run(count)
    page.run(f"{FIRST}.querySelector('.legend button').click()")
    assert page.run(count) == before - 1
    assert page.run(f"{FIRST}.querySelector('.legend button').getAttribute('aria-pressed')") == "false"


def test_a_hundred_thousand_records(page, files):
    """A pixel shows at most the extremes of what falls on it, so drawing stays quick and the page light."""
    page.size(1200)
    page.open(files["long"])
    assert files["long"].stat().st_size < 20e6
    vertices = page.run(f"{FIRST}.querySelector('path.line').getAttribute('d').split(/[ML]/).length")
    assert 300 < vertices < 6000
    redraw = page.run(
        "(() => { const began = performance.now(); document.getElementById('reset').click(); "
        "return performance.now() - began; })()"
    )
    assert redraw < 3000, "all charts anew, on a slow machine"
    left, top, width, height = box(page)
    page.drag(left + 0.3 * width, left + 0.31 * width + 6, top + height / 2)
    inside = page.run(f"{FIRST}.querySelector('path.line').getAttribute('d').split(/[ML]/).length")
    assert inside > 300, "zooming shows records that were too close to be told apart"
    assert page.errors == []


def test_extremes_survive_thinning(page, tmp_path, saved_run):
    n = 50_000
    spike = np.ones(n)
    spike[31_234] = 1e3
    history = {path: np.linspace(1.0, 2.0, n) for path in saved_run.history}
    history |= {("draws",): np.arange(n), ("feasibility",): spike}
    page.open(report.write([dataclasses.replace(saved_run, history=history)], tmp_path / "spike.html"))
    path = page.run(f"{FIRST}.querySelector('path.line').getAttribute('d')")
    heights = [float(point.split()[1]) for point in path.replace("L", "M").split("M")[1:]]
    assert max(heights) - min(heights) > 100, "one record in fifty thousand is still seen"


def test_hostile_names_are_only_text(page, files, hostile_run):
    page.size(1200)
    page.open(files["hostile"])
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    left, top, width, height = box(page)
    page.mouse("mouseMoved", left + 0.5 * width, top + height / 2)
    assert page.run("window.stolen") is None
    assert page.run("document.scripts.length") == 2
    assert page.run("document.querySelectorAll('img, bdi b, iframe').length") == 0
    text = page.run("document.body.textContent")
    for name in list(hostile_run.certificate.constraints)[:2]:
        assert name in text
    page.size(390)
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert page.errors == []


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_phone_needs_no_sideways_scrolling(page, files, name):
    page.size(390)
    page.open(files[name])
    assert page.run("document.documentElement.scrollWidth") <= 390
    narrow = page.run(
        "Math.min(...[...document.querySelectorAll('tbody th')].map(th => th.getBoundingClientRect().width))"
    )
    assert narrow > 80


def test_dark_light_and_print(one):
    def brightness():
        colour = one.run("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))

    one.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert brightness() < 150
    one.run("document.getElementById('theme').click()")
    assert brightness() > 700
    one.run("document.getElementById('theme').click()")
    assert brightness() < 150
    one.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert brightness() > 700, "paper is white whatever the theme"
    one.call("Emulation.setEmulatedMedia", media="")
    document = base64.b64decode(one.call("Page.printToPDF", printBackground=True)["data"])
    assert document.startswith(b"%PDF")
    assert len(document) > 20_000


def test_charts_and_controls_have_names(one):
    nameless = one.run(
        "[...document.querySelectorAll('button, input, .plot, canvas, svg[role=img], [role=region]')].filter(e => "
        "!(e.getAttribute('aria-label') || (!e.matches('.plot') && e.textContent.trim()) || e.closest('label') || "
        "e.querySelector('canvas'))).map(e => e.outerHTML.slice(0, 90))"
    )
    assert nameless == []
    tree = one.call("Accessibility.getFullAXTree")["nodes"]
    headings = [node for node in tree if node.get("role", {}).get("value") == "heading"]
    assert len(headings) >= 8


def path_of(page, panel, line):
    return page.run(
        f"document.querySelectorAll('[data-panel=\"{panel}\"] path.line')[{line}].getAttribute('d')",
    )


def test_a_logarithmic_line_goes_on_at_zeros(page, tmp_path, saved_run):
    """At the foot of the axis: one stroke, no gap. What is not finite is a gap."""
    zeros = np.array([1.0, 0.1, 0.0, 0.0, 0.01, 0.0, 0.1] * 3)
    times = {(name,): np.arange(1.0, len(zeros) + 1) for name in ("iteration", "draws", "seconds")}
    for values, strokes in ((zeros, 1), (np.where(np.arange(len(zeros)) == 8, np.nan, zeros), 2)):
        run = dataclasses.replace(saved_run, certificate=None, history={**times, ("feasibility",): values})
        page.open(report.write([run], tmp_path / f"{strokes}.html"))
        drawn = path_of(page, 0, 0)
        assert drawn.count("M") == strokes
        assert drawn.count("M") + drawn.count("L") == np.isfinite(values).sum()


def test_a_smoothed_objective_over_the_raw_one(one):
    places = one.run(
        "[...document.querySelectorAll('[data-panel=\"2\"] path.line')].map(line => line.getAttribute('class'))"
    )
    assert len(places) == 2
    assert [" raw" in each for each in places] == [False, True]


def test_an_interval_has_the_colour_of_its_line(page, tmp_path, run_with_errors):
    page.open(report.write([run_with_errors], tmp_path / "errors.html"))
    chart = (
        "[...document.querySelectorAll('figure')].find(one => one.querySelector('b')?.textContent === 'Multipliers')"
    )
    swatches = page.run(
        f"[...{chart}.querySelectorAll('.series')].map(one => [one.textContent, one.firstChild.firstChild.className])"
    )
    marks = page.run(
        f"[...{chart}.querySelectorAll('.mark')].map(one => [one.textContent.split(':')[0], one.getAttribute('class')])"
    )
    colours = {name: kind.split()[1].removeprefix("f") for name, kind in swatches}
    assert [name for name, _ in marks] == ["top[1]", "sum", "top[0]"]
    assert [kind.split()[1] for _, kind in marks] == [f"k{colours[name]}" for name, _ in marks]
    assert len(set(colours.values())) == 3


def test_a_hint_at_a_table_that_scrolls(page, files):
    """On a phone alone."""
    shown = "[...document.querySelectorAll('.sideways')].map(hint => getComputedStyle(hint).display !== 'none')"
    page.size(390)
    page.open(files["one"])
    assert set(page.run(shown)) == {True}
    page.size(1200)
    assert not any(page.run(shown))
