"""What several packages need and no one of them owns: checks of options, warnings, tables, pages that help, and files
that are whole or not there."""

from lariax.utils._fields import Converted
from lariax.utils._files import write_atomically
from lariax.utils._needs import needed_by
from lariax.utils._options import (
    check_among,
    check_confidence,
    check_count,
    did_you_mean,
    explains_options,
    helped_by,
    is_number,
    takes,
)
from lariax.utils._pages import HelpfulError, page, with_help
from lariax.utils._tables import narrow_table
from lariax.utils._warnings import LariaxWarning, warn

__all__ = [
    "Converted",
    "HelpfulError",
    "LariaxWarning",
    "check_among",
    "check_confidence",
    "check_count",
    "did_you_mean",
    "explains_options",
    "helped_by",
    "is_number",
    "narrow_table",
    "needed_by",
    "page",
    "takes",
    "warn",
    "with_help",
    "write_atomically",
]
