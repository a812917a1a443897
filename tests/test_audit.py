"""The audit tells "nothing is known" from "nobody was asked"."""

from scripts.audit import CLEAN, PINS, UNKNOWN, VULNERABLE, verdict

FINE = {"name": "numpy", "version": "2.4.6", "vulns": []}
BAD = {"name": "pillow", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
MISSED = {"name": "scipy", "skip_reason": "Dependency not found on PyPI"}


def test_verdicts():
    assert verdict({"dependencies": [FINE]}) == (CLEAN, ["Nothing is known against the 1 pinned versions."])
    code, lines = verdict({"dependencies": [FINE, BAD, MISSED]})
    assert code == VULNERABLE
    assert lines[0] == "pillow 1.0: PYSEC-1, mended in 1.1"
    assert "2 of 3" in lines[1]
    code, lines = verdict({"dependencies": [MISSED]})
    assert code == UNKNOWN
    assert lines[0].startswith("NOT AUDITED: none")
    assert verdict({"dependencies": []})[0] == UNKNOWN


def test_every_pin_is_exact():
    """As pip-audit wants it, and as the tests need it."""
    pins = [line for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    assert len(pins) > 30
    assert all(line.split(";")[0].count("==") == 1 for line in pins)
