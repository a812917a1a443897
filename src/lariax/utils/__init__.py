"""What several packages need and no one of them owns: checks of options, and files that are whole or not there."""

from lariax.utils._files import write_atomically
from lariax.utils._options import (
    check_among,
    check_confidence,
    check_count,
    did_you_mean,
    explains_options,
    is_number,
)

__all__ = [
    "check_among",
    "check_confidence",
    "check_count",
    "did_you_mean",
    "explains_options",
    "is_number",
    "write_atomically",
]
