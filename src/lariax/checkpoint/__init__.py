"""Checkpoints on disk: the format of a file, the folder that holds them, and how a problem is recognised."""

from lariax.checkpoint._archive import (
    DTYPES,
    CheckpointError,
    Classes,
    DamagedError,
    Unknown,
    UnsavableError,
    encoded,
    packed,
    raw,
    unpacked,
)
from lariax.checkpoint._fingerprint import differences, environment, functions_of, parts_of
from lariax.checkpoint._folder import Checkpoint, Folder, Keeper, new_folder, remember, remembered

__all__ = [
    "DTYPES",
    "Checkpoint",
    "CheckpointError",
    "Classes",
    "DamagedError",
    "Folder",
    "Keeper",
    "Unknown",
    "UnsavableError",
    "differences",
    "encoded",
    "environment",
    "functions_of",
    "new_folder",
    "packed",
    "parts_of",
    "raw",
    "remember",
    "remembered",
    "unpacked",
]
