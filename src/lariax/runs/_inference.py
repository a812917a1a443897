"""Error bars as JSON."""

from typing import Any

from lariax.inference import LAWS, Inference, TableLine, entries
from lariax.runs._json import Reader, RunFolderError, plain
from lariax.runs._saved import SavedInference

MOST = 200  # entries of an array that are kept
PARTS = ("x", "multipliers", "constraints", "objective")
_ENDS = ("estimate", "standard_error", "low", "high")


def inference_to_json(inference: Inference) -> dict[str, Any]:
    """One entry for each number, of long arrays for the first ones."""
    return {
        "about": inference.about,
        "confidence": inference.confidence,
        "draws": inference.draws,
        "warnings": list(inference.warnings),
        "entries": [plain(line._asdict()) for line in entries(inference, MOST)],
    }


def inference_from_json(value: Any, where: str) -> SavedInference:
    reader = Reader(value, where)
    return SavedInference(
        about=reader.get("about", str),
        confidence=reader.get("confidence", float),
        draws=reader.count("draws"),
        warnings=tuple(str(note) for note in reader.get("warnings", list)),
        entries=tuple(
            _entry(Reader(part, f"line {i} of {where}")) for i, part in enumerate(reader.get("entries", list))
        ),
    )


def _entry(reader: Reader) -> TableLine:
    part, law = reader.get("part", str), reader.get("law", str)
    if part not in PARTS or law not in LAWS:
        raise RunFolderError(f"error bars are of {', '.join(PARTS)}, by a law that is known, found {part!r}, {law!r}.")
    estimate, error, low, high = (reader.get(name, float) for name in _ENDS)
    return TableLine(part, reader.get("name", str), estimate, error, low, high, law)
