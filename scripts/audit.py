"""Are vulnerabilities known in the pinned versions of constraints.txt? `make audit` asks pip-audit.

pip-audit itself calls a version that it could not look up skipped, and then reports that no vulnerabilities were found.
Here the exit code tells the difference:

    0   every version was looked up, and nothing is known against it
    1   something is known
    3   some versions, or all, could not be looked up: the service cannot be reached, or does not know them
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINS = Path(__file__).parent.parent / "constraints.txt"
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 3


def verdict(report: Any) -> tuple[int, list[str]]:
    """The exit code for what pip-audit reports, and the words to go with it."""
    packages = report["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", [])
    ]
    if skipped:
        missed = "none" if len(skipped) == len(packages) else f"{len(packages) - len(skipped)} of {len(packages)}"
        lines.append(
            f"NOT AUDITED: {missed} of the pinned versions could be looked up. The service of pip-audit cannot be "
            f"reached from here, or does not know them: {', '.join(skipped)}."
        )
    if any(package.get("vulns") for package in packages):
        return VULNERABLE, lines
    if skipped or not packages:
        return UNKNOWN, lines or ["NOT AUDITED: there are no pinned versions."]
    return CLEAN, [f"Nothing is known against the {len(packages)} pinned versions."]


def main() -> int:
    command = ["-m", "pip_audit", "--no-deps", "--disable-pip", "--requirement", str(PINS), "--format", "json"]
    run = subprocess.run(
        [sys.executable, *command, "--progress-spinner", "off"], capture_output=True, text=True, check=False
    )
    try:
        code, lines = verdict(json.loads(run.stdout))
    except (json.JSONDecodeError, KeyError, TypeError):
        reason = run.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        code, lines = UNKNOWN, [f"NOT AUDITED: pip-audit could not do its work ({reason[0]})."]
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
