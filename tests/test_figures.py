"""The figures of README and of the benchmarks' front page are those of the pages of results."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
FRONT = [ROOT / "README.md", ROOT / "docs/benchmarks.md"]


def page(name):
    return (RESULTS / f"{name}.md").read_text()


def rows(text):
    """The cells of a page's tables, line by line."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def command(name):
    return re.search(r"`(python -m [^`]+?|make \w+)`", page(name))[1]


def accuracy():
    mean, worst = re.search(r"- 100,000 draws: geometric mean ([\d.]+), worst ([\d.]+)", page("suite")).groups()
    return [f"**{mean}** times", f"{worst} on the worst"]


def bias():
    section = page("peers").split("## biased, 2 variables")[1].split("\n## ")[0]
    head, _, *body = rows(section)
    place = head.index("distance late")
    distance = {row[0]: float(row[place].split()[0]) for row in body}
    theirs = [distance["cooper augmented"], distance["hc ALM"]]
    return [f"**{distance['lariax (JAX)']:.3f}**", *(f"{value:.2f}" for value in theirs)]


def peers():
    head, _, *body = rows(page("peers").split("\n## ")[0])
    rival, ours = head.index("its merit"), head.index("lariax (JAX): merit")
    won = sum(float(row[ours]) < float(row[rival]) for row in body)
    return [f"**{won} of {len(body)}**"]


def certificates():
    head, _, *body = rows(page("coverage").split("\n\nThe sequential stop")[0])
    covered = [float(cell) for row in body for cell in row[1 : head.index("warned")]]
    return [f"**{min(covered)} to {max(covered):g} %**", f"{len(body)} cases"]


def cost():
    head, _, *body = rows(page("cost").split("\n## ")[0])
    ratios = [float(row[head.index("ratio (goal 2.5)")]) for row in body]
    return [f"**{min(ratios):.1f} to {max(ratios):.1f}** times"]


FIGURES = {"suite": accuracy, "peers": peers, "coverage": certificates, "cost": cost}


@pytest.mark.parametrize("front", FRONT, ids=lambda path: path.name)
@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_results(front, name):
    text = front.read_text()
    wanted = FIGURES[name]() + (bias() if name == "peers" else [])
    assert [figure for figure in wanted if figure not in text] == []
    assert f"`{command(name)}`" in text
    assert f"benchmarks/results/{name}.md" in text
