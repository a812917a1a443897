"""`lariax list`."""

import inspect

from rich.markup import escape
from rich.table import Table

from lariax import gallery
from lariax.cli._console import Screen
from lariax.cli._tasks import gallery_name


def show(screen: Screen, name: str | None) -> None:
    """All entries, or all about one."""
    if name is not None:
        _show_one(screen, gallery_name(name))
        return
    titles = {entry: _documentation(entry).partition("\n")[0].rstrip(".") for entry in gallery.names()}
    table = Table("name", "what it is", box=None, pad_edge=False)
    for entry, title in titles.items():
        table.add_row(f"[bold]{escape(entry)}[/]", escape(title))
    screen.show(table)
    screen.show("\n`lariax list NAME` says more, `lariax solve NAME` solves it.")
    screen.give({"problems": [{"name": entry, "title": title} for entry, title in titles.items()]})


def _show_one(screen: Screen, name: str) -> None:
    text = _documentation(name)
    defaults = {
        option: None if parameter.default is parameter.empty else parameter.default
        for option, parameter in inspect.signature(getattr(gallery, name)).parameters.items()
    }
    screen.show(escape(text))
    if defaults:
        screen.show("\nOptions, with their defaults (-o NAME=VALUE):")
        for option, value in defaults.items():
            screen.show(f"  {option}={value!r}")
    screen.give({"name": name, "documentation": text, "options": defaults})


def _documentation(name: str) -> str:
    return inspect.getdoc(getattr(gallery, name)) or name
