"""Pictures of x itself: every entry, where that fits a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lariax.runs import SavedRun

FEWEST, MOST = 3, 400  # bars: fewer are read in the table, more cannot be told apart
LONGEST = 4096  # entries of a line of them
WIDEST = 512  # entries of a side of a heat map
PICTURES = 8  # of one run


def pictures_of_answers(runs: Sequence[SavedRun]) -> list[Mapping[str, Any]]:
    """Sorted bars for vectors, a sorted line for long ones, heat maps for matrices."""
    found: list[Mapping[str, Any]] = []
    for run in runs:
        own = [picture for path, array in run.x.items() if (picture := _picture(path, np.squeeze(array))) is not None]
        words = f"{run.name}: " if len(runs) > 1 else ""
        found += [{**picture, "title": f"{words}{picture['title']}"} for picture in own[:PICTURES]]
    return found


def _picture(path: str, array: np.ndarray) -> dict[str, Any] | None:
    nothing: dict[str, Any] = {"x_label": "", "y_label": "", "categories": [], "reference": None, "extent": None}
    name = path if path == "x" else f"x{path}"
    if array.ndim == 1 and FEWEST <= array.size <= MOST:
        order = np.argsort(-array, kind="stable")
        bars = {"kind": "bars", "categories": [str(i) for i in order], "series": {name: array[order]}}
        return {**nothing, **bars, "title": f"{name}, its {array.size} entries by size", "x_label": "entry"}
    if array.ndim == 1 and MOST < array.size <= LONGEST:
        line = np.stack([np.arange(1, array.size + 1), -np.sort(-array)], axis=1)
        about = {"kind": "lines", "title": f"{name}, its {array.size:,} entries by size", "x_label": "place by size"}
        return {**nothing, **about, "series": {name: line}}
    if array.ndim == 2 and max(array.shape) <= WIDEST:
        rows, columns = array.shape
        image = {"kind": "heatmap", "series": {name: array[::-1]}, "extent": [0, columns, rows, 0]}
        return {**nothing, **image, "title": f"{name}, {rows} by {columns}", "x_label": "column", "y_label": "row"}
    return None
