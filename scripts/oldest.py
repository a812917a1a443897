"""The oldest versions that pyproject.toml allows, one pin a line: `python scripts/oldest.py > oldest.txt`."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
EXTRAS = ("plot", "sklearn")
"""Extras of which users have old versions. Those of torch are tested as they come."""

BESIDE = ("pandas",)
"""Of what tests need, what has to fit the oldest NumPy."""


def oldest(project: dict) -> list[str]:
    """`name>=version` as `name==version`, for the dependencies and the extras above."""
    extras = project.get("optional-dependencies", {})
    wanted = project["dependencies"] + [entry for name in EXTRAS for entry in extras.get(name, [])]
    wanted += [entry for entry in extras.get("test", []) if entry.partition(">=")[0] in BESIDE]
    found = [re.fullmatch(r"([\w.-]+)>=([\d.]+)(,<[\d.]+)?", entry) for entry in wanted]
    missing = [entry for entry, match in zip(wanted, found, strict=True) if match is None]
    if missing:
        raise ValueError(f"no lower bound: {', '.join(missing)}. Write name>=version.")
    return [f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text())["project"]
    pins = oldest(project)
    pins += [pin.replace("jax==", "jaxlib==") for pin in pins if pin.startswith("jax==")]
    print("\n".join(pins))
