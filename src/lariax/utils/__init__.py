"""What several packages need and no one of them owns: checks of options, warnings, tables, files that are whole."""

from lariax.utils._files import write_atomically
from lariax.utils._options import (
    check_among,
    check_confidence,
    check_count,
    did_you_mean,
    explains_options,
    is_number,
    takes,
)
from lariax.utils._tables import narrow_table
from lariax.utils._warnings import LariaxWarning, warn

__all__ = [
    "LariaxWarning",
    "check_among",
    "check_confidence",
    "check_count",
    "did_you_mean",
    "explains_options",
    "is_number",
    "narrow_table",
    "takes",
    "warn",
    "write_atomically",
]
