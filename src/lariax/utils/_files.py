"""Files that are whole or not there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Written as `.NAME.partial` beside it, synced and renamed: all of a file or nothing of it, and on disk when this
    returns."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_names(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync_names(folder: Path) -> None:
    """The names in a folder, too, are on disk."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
