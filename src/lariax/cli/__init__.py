"""The command line: `lariax --help`.

| exit code | means |
|---|---|
| 0 | done |
| 1 | something failed that should not have: a bug, here or in the problem's own functions |
| 2 | wrong input: an unknown name, a missing file, an option that does not fit |
| 3 | done, but not as asked: diverged, infeasible, tolerance missed, or the certificate finds a violation |
| 4 | a run folder cannot be read or written: missing, broken, foreign, disk full |
| 130 | stopped by Ctrl-C; what there is was saved |
"""

from lariax.cli._app import main

__all__ = ["main"]
