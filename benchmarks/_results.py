"""RESULTS.md, section by section."""

from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"


def write(name: str, section: str) -> None:
    """Replace a benchmark's own section of the results, and leave the others alone."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    if begin in text:
        before, rest = text.split(begin, 1)
        after = rest.split(end, 1)[1]
    else:
        before, after = text.rstrip() + "\n\n", "\n"
    RESULTS.write_text(f"{before}{begin}\n{section}\n{end}{after}")
