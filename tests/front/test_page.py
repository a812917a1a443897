"""The page as text, the tables, and the plots for a notebook. What a browser makes of it is in test_browser.py."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from lariax import report
from lariax.certificate import HOLDS, ConstraintReport
from lariax.report._answers import pictures_of_answers
from lariax.report._html import name_of
from lariax.report._panels import smoothed
from lariax.runs import RunFolderError


class Outline(HTMLParser):
    """Every element and its attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, text):
        self.texts.append(text)


def test_the_numbers_of_the_run(saved_run):
    text = " ".join(Outline(report.html([saved_run])).texts)
    certificate = saved_run.certificate
    assert certificate.verdict in text
    assert certificate.heldout.verdict in text
    for measure in (certificate.stationarity, certificate.feasibility, certificate.heldout.objective):
        assert f"{measure.estimate:.4g}" in text
    for name in ("sum", "top", "[0] of 2 entries", "QuadraticPenalty", "jaxlib", "A small problem"):
        assert name in text


def test_nothing_is_fetched_and_only_our_script_runs(saved_run, hostile_run):
    for runs in ([saved_run], [hostile_run], [saved_run, hostile_run]):
        elements = Outline(report.html(runs)).elements
        tags = {tag for tag, _ in elements}
        assert not tags & {"img", "link", "iframe", "object", "b-", "base", "video"}
        assert [attributes.get("type") for tag, attributes in elements if tag == "script"] == ["application/json", None]
        assert not any(name.startswith("on") or name in ("src", "style") for _, found in elements for name in found)
        assert all(found["href"].startswith("#") for _, found in elements if "href" in found)
        policy = next(found["content"] for _, found in elements if found.get("http-equiv"))
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_several_runs_side_by_side(saved_run, long_run):
    text = report.html([saved_run, long_run])
    assert text.count('class="verdict ') == 2
    charts = report.panels([saved_run, long_run])
    feasibility = next(panel for panel in charts if panel.title == "Feasibility")
    assert {line.run for line in feasibility.lines} == {0, 1}


def test_panels(saved_run):
    charts = {panel.title: panel for panel in report.panels([saved_run])}
    assert list(charts)[:3] == ["Feasibility", "Stationarity", "Objective"]
    assert {"sum", "top", "Multipliers", "Step size", "Penalty", "Momentum"} <= set(charts)
    assert charts["sum"].bound == 1.0
    assert charts["top"].bound is None
    assert [mark.label for mark in charts["sum"].marks] == ["certificate", "held out"]
    assert [line.label for line in charts["top"].lines] == ["top[0]", "top[1]"]


def test_intervals_of_multipliers_are_those_of_their_lines(run_with_errors):
    charts = {panel.title: panel for panel in report.panels([run_with_errors])}
    found = {mark.label: (mark.interval.low, mark.interval.high) for mark in charts["Multipliers"].marks}
    assert found == {"sum": pytest.approx((0.2, 0.6)), "top[0]": pytest.approx((0, 0.4)), "top[1]": (-0.2, 0.2)}
    assert set(found) == {line.label for line in charts["Multipliers"].lines}


def gap_of(value, low, high, holds):
    """A gap in both directions, at most 0.02."""
    sides = (np.array([-value, value]), np.array([-high, low]), np.array([-low, high]))
    return ConstraintReport(*sides, "<=", np.full(2, 0.02), holds)


def test_a_verdict_stands_beside_the_entry_that_it_is_about(saved_run):
    """-0.1741 is not what violates a bound of 0.02; and another entry may be the worst on held-out rows."""
    beside = gap_of(-0.15, -0.16, -0.14, "violated")
    heldout = dataclasses.replace(saved_run.certificate.heldout, constraints={"gap": beside})
    own = {"gap": gap_of(0.1741, 0.1741, 0.1741, "violated")}
    certificate = dataclasses.replace(saved_run.certificate, constraints=own, heldout=heldout)
    text = " ".join(Outline(report.html([dataclasses.replace(saved_run, certificate=certificate)])).texts)
    text = re.sub(r"\s+", " ", text)
    assert re.search(r"gap \[1\] of 2 entries <= 0.02 0.1741 ✗ violated exact -0.15 -0.16 to -0.14", text)
    assert re.search(r"gap \[0\] of 2 entries <= 0.02 -0.1741 exact 0.15 ✗ violated 0.14 to 0.16", text)
    assert "'gap'[1] (0.1741, asked <= 0.02) is violated" in text
    lines = [" ".join(line.split()) for line in str(certificate).splitlines()]
    at = lines.index("gap[1] <= 0.02, of 2 samples 0.1741 0.1741 0.1741 violated")
    assert lines[at + 1] == "held out -0.15 -0.16 -0.14"
    at = lines.index("gap[0] <= 0.02, of 2 samples -0.1741 -0.1741 -0.1741")
    assert lines[at + 1] == "held out 0.15 0.14 0.16 violated"


@pytest.mark.parametrize("holds", HOLDS)
def test_page_and_terminal_answer_in_the_same_words(saved_run, holds):
    """Whether constraints hold decides the colour, not whether the last digit of a gradient is 0."""
    own = {"gap": gap_of(0.0052, 0.0052, 0.0052, holds)}
    certificate = dataclasses.replace(saved_run.certificate, constraints=own, heldout=None)
    assert certificate.stationarity.low > certificate.tolerance
    page = report.html([dataclasses.replace(saved_run, certificate=certificate)])
    for text in (page, str(certificate), certificate._repr_html_()):
        assert holds in text
    tone = {"surely": "good", "probably": "good", "undecided": "fair", "violated": "bad"}[holds]
    assert f'class="verdict {tone}"' in page


def test_a_foreign_file_stays(saved_run, tmp_path):
    target = tmp_path / "thesis.html"
    target.write_text("<html>my thesis</html>")
    with pytest.raises(RunFolderError, match="is not a report of Lariax"):
        report.write([saved_run], target)
    assert target.read_text() == "<html>my thesis</html>"
    report.write([saved_run], tmp_path / "a.html")
    report.write([saved_run], tmp_path / "a.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "thesis.html"]


class TestPlot:
    def test_the_same_pictures(self, result, saved_run):
        figure = result.plot()
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles == [panel.title for panel in report.panels([saved_run])]
        line = figure.axes[0].get_lines()[0]
        np.testing.assert_array_equal(line.get_xdata(), result.history["draws"])
        np.testing.assert_array_equal(line.get_ydata(), result.history["feasibility"])
        assert figure._repr_png_().startswith(b"\x89PNG")

    def test_an_interval_has_the_colour_of_its_line(self, run_with_errors):
        (axes,) = (one for one in report.plot(run_with_errors).axes if one.get_title(loc="left") == "Multipliers")
        drawn = axes.get_lines()
        colours = {line.get_label(): line.get_color() for line in drawn[:3]}
        assert [line.get_color() for line in drawn[3:]] == [colours[name] for name in ("top[1]", "sum", "top[0]")]

    def test_hostile_names_and_several_runs(self, saved_run, hostile_run):
        report.plot([saved_run, hostile_run], against="seconds").canvas.draw()

    def test_nothing_to_plot(self, saved_run):
        empty = dataclasses.replace(saved_run, history={path: values[:0] for path, values in saved_run.history.items()})
        with pytest.raises(ValueError, match="no records"):
            report.plot(empty)

    def test_wrong_axis(self, saved_run):
        with pytest.raises(ValueError, match="one of 'draws', 'seconds', 'iteration'"):
            report.plot(saved_run, against="epochs")


def test_names_do_not_steer_the_terminal(saved_run):
    from rich.console import Console

    name = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe"
    constraints = {name: saved_run.certificate.constraints["sum"]}
    certificate = dataclasses.replace(saved_run.certificate, constraints=constraints, heldout=None)
    evil = dataclasses.replace(
        saved_run, name=name, certificate=certificate, outcome={**saved_run.outcome, "message": name}
    )
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(evil, certificate, report.comparison([evil]))
    assert not {"\x1b", "\x07", "\u202e"} & set(capture.get() + report.html([evil]))


def test_representations(result, saved_run):
    """Terminal and notebook: what ended, the answer, its multipliers, and what to do next."""
    from rich.console import Console

    console = Console(width=120, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(result, result.certificate, saved_run)
    text = capture.get()
    for words in ("budget after 400 iterations", "top", "The budget is spent", "stationarity"):
        assert words in text
    html = result._repr_html_()
    assert "<table>" in html
    assert "budget after 400 iterations" in html
    assert re.search(r"<t[hd]>sum</t[hd]>", html)


def test_smoothing():
    """A mean of the records around, a twentieth of all on either side; what is not finite is left out."""
    values = np.random.default_rng(0).normal(size=200)
    found = smoothed(values)
    np.testing.assert_allclose(found[100], values[90:111].mean())
    np.testing.assert_allclose(found[0], values[:11].mean())
    values[100] = np.nan
    np.testing.assert_allclose(smoothed(values)[100], np.delete(values, 100)[90:110].mean())
    np.testing.assert_allclose(smoothed(np.full(30, 3.0)), 3.0)


def test_all_entries_of_the_answer_in_a_picture(saved_run):
    """Sorted bars, a sorted line, or a heat map; a few numbers are read in the table, and too many do not fit."""
    x = {"w": np.array([0.5, -1.0, 2.0, 0.0]), "m": np.arange(6.0).reshape(2, 3), "b": np.ones(2), "n": np.ones(5000)}
    x["v"] = np.sin(np.arange(1000.0))
    bars, image, line = pictures_of_answers([dataclasses.replace(saved_run, x=x)])
    assert line["kind"] == "lines"
    np.testing.assert_array_equal(line["series"]["xv"][:, 0], np.arange(1, 1001))
    np.testing.assert_array_equal(line["series"]["xv"][:, 1], np.sort(x["v"])[::-1])
    assert (bars["kind"], bars["categories"]) == ("bars", ["2", "0", "3", "1"])
    assert bars["series"]["xw"].tolist() == [2.0, 0.5, 0.0, -1.0]
    assert image["kind"] == "heatmap"
    assert image["series"]["xm"].tolist() == [[3, 4, 5], [0, 1, 2]]


@pytest.mark.parametrize("number", ["-0.005643", "0.5", "1e-05", "32,561", "7"])
def test_numbers_are_not_broken(number):
    assert name_of(number) == f'<bdi class="number">{number}</bdi>'


def test_names_with_dots_are_broken_after_one():
    assert name_of("problem.options.model") == "<bdi>problem.<wbr>options.<wbr>model</bdi>"
    assert name_of("2.13.0+cpu <b>.x") == "<bdi>2.13.0+cpu &lt;b&gt;.x</bdi>"
