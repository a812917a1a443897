"""Packages that only some parts of Lariax need: an error that says how to get them."""

from collections.abc import Iterator
from contextlib import contextmanager

from lariax.utils._pages import with_help

NAMES = {"sklearn": "scikit-learn"}
"""What a package is installed as, where that is not the name it is imported by."""


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Around imports: an error of a package that is not there says who needs it, and how to install it.

    >>> try:
    ...     with needed_by("this example"):
    ...         import no_such_package
    ... except ModuleNotFoundError as error:
    ...     print(error)
    this example needs no_such_package, which is not installed: pip install no_such_package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "lariax"):
            raise
        name = NAMES.get(package, package)
        message = f"{what} needs {name}, which is not installed: pip install {name}."
        missing = ModuleNotFoundError(message, name=error.name, path=error.path)
        with_help(missing, "install")
        raise missing from error
