"""Tables for a terminal of 80 columns."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def narrow_table(*head: str, words: int = 1, title: str | None = None) -> "Table":
    """The first columns, `words` of them, may be folded; numbers never are."""
    from rich import box  # loaded when something is shown, here and wherever rich is used
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    for place, name in enumerate(head):
        table.add_column(escape(name), no_wrap=place >= words, overflow="fold")
    return table
