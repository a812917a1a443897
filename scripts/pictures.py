"""The pictures of README and of the gallery's page, solved and drawn anew: `make pictures`.

python -m scripts.pictures                    # all of them, in docs/pictures
python -m scripts.pictures fairness biased
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import lariax as lx
from examples import biased
from lariax import gallery
from lariax.compilation import keep_programs

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
COLOURS = ("#0a5f8a", "#d1495b", "#edae49", "#3c8d5a", "#7a5195")
SHOWN = {  # which picture of an entry stands for it
    "fairness": 0,
    "neyman_pearson": 1,
    "chance_constraint": 1,
    "portfolio": 1,
    "dispatch": 0,
    "newsvendor_network": 0,
    "suspension": 0,
    "diffusion_control": 1,
    "principal_components": 0,
    "consensus": 0,
    "resource_sharing": 0,
    "splitting": 0,
}


def draw(picture: gallery.Picture, path: Path) -> None:
    """A `Picture` of the gallery by matplotlib, small."""
    figure = Figure(figsize=(4.6, 3.1), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    DRAW[picture.kind](axes, picture)
    if picture.reference is not None:
        axes.axhline(picture.reference, color="0.4", linewidth=1, linestyle="--")
    axes.set_title("\n".join(_lines(picture.title, 52)), loc="left", fontsize=9.5)
    axes.set_xlabel(picture.x_label, fontsize=8.5)
    axes.set_ylabel(picture.y_label, fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if len(picture.series) > 1:
        axes.legend(fontsize=7.5, facecolor="white", edgecolor="none", framealpha=0.85)
    figure.savefig(path)


def _bars(axes, picture) -> None:
    width = 0.8 / len(picture.series)
    for i, (name, values) in enumerate(picture.series.items()):
        axes.bar(np.arange(len(values)) + i * width, values, width, label=name, color=COLOURS[i])
    places = np.arange(len(picture.categories)) + 0.4 - width / 2
    turned = {"rotation": 35, "ha": "right"} if max(map(len, picture.categories), default=0) > 6 else {}
    axes.set_xticks(places, picture.categories, **turned)


def _lines_of(axes, picture) -> None:
    for i, (name, points) in enumerate(picture.series.items()):
        axes.plot(*np.asarray(points).T, label=name, color=COLOURS[i], linewidth=1.6)


def _scatter(axes, picture) -> None:
    for i, (name, points) in enumerate(picture.series.items()):
        axes.scatter(*np.asarray(points).T, label=name, color=COLOURS[i], s=9, alpha=0.6, linewidths=0)


def _heatmap(axes, picture) -> None:
    ((_, values),) = picture.series.items()
    image = axes.imshow(values, origin="lower", extent=picture.extent, cmap="viridis")
    axes.figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)


DRAW = {"bars": _bars, "lines": _lines_of, "scatter": _scatter, "heatmap": _heatmap}


def _lines(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*SHOWN, "biased", []], help="all, if none is named")
    chosen = parser.parse_args().names or [*SHOWN, "biased"]
    keep_programs()
    FOLDER.mkdir(exist_ok=True)
    for name in chosen:
        path = FOLDER / f"{name}.png"
        if name == "biased":
            paths = [biased.with_lariax()[1], biased.with_the_same_batch()[1]]
            biased.draw(*paths, path, size=5.6, dpi=110)
        else:
            case = gallery.load(name)
            result = lx.solve(case.problem, case.x0, **case.defaults)
            draw(case.pictures(result.x)[SHOWN[name]], path)
        Image.open(path).convert("RGB").quantize(255).save(path, optimize=True)  # a third of the bytes
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
