"""Elements of HTML in which every text is escaped."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from lariax.problem import visible
from lariax.report._words import LONGEST, short


class Markup(str):
    """HTML that is already safe."""

    __slots__ = ()


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """<tag attributes>children</tag>. `class_` and `data_x` lose and change their underscores; None leaves one out."""
    head = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{head}>{joined(children)}</{tag}>")


def joined(children: Iterable[object]) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else escape(visible(str(child))) for child in children))


def name_of(text: str, longest: int = LONGEST) -> Markup:
    """A name that somebody chose: kept apart from the writing direction around it, and cut when it is endless."""
    title = visible(text[:2000]) if len(text) > longest else None
    return element("bdi", *_breakable(short(text, longest)), title=title, class_="number" if _is_number(text) else None)


def _breakable(text: str) -> list[object]:
    """Names with dots may be broken after one."""
    first, *others = re.split(r"(?<=\w\.)(?=[^\W\d])", text)
    return [first, *(part for other in others for part in (Markup("<wbr>"), other))]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?", text) is not None


NARROW = 3  # columns that a phone has room for
HINT = "More columns to the right: scroll the table sideways."


def table(
    head: Sequence[object],
    rows: Iterable[Iterable[object]],
    caption: str = "",
    label: str = "Table",
    **attributes: object,
) -> Markup:
    """A table whose first column names the rows; in a box of its own that scrolls when it is too wide."""
    top = element("thead", element("tr", *(element("th", cell, scope="col") for cell in head)))
    body = element(
        "tbody",
        *(
            element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
            for first, *rest in rows
        ),
    )
    words = element("caption", caption) if caption else ""
    whole = element("table", words, top, body, **attributes)
    box = element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption or label)
    return joined([element("p", HINT, class_="sideways"), box]) if len(head) > NARROW else box
