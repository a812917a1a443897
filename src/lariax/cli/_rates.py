"""`lariax rates`."""

from collections.abc import Sequence
from pathlib import Path

import jax
import typer

from lariax import rates
from lariax.cli._console import BAD_FOLDER, NOT_AS_ASKED, Screen, WrongInput


def measure(screen: Screen, cases: Sequence[str], seeds: int, longest: int, processes: int, output: Path) -> None:
    """Run the rate laboratory and write its tables and pictures."""
    with screen.explained():
        unknown = sorted(set(cases) - set(rates.THEOREM))
        if unknown:
            raise WrongInput(f"there is no case {', '.join(unknown)}; there are {', '.join(rates.THEOREM)}.")
        rates.check_can_draw()
        jax.config.update("jax_enable_x64", True)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            screen.fail(BAD_FOLDER, f"cannot make the folder {output}: {error.strerror}.")
        report = rates.measure(
            list(cases) or None, seeds=seeds, longest=longest, processes=processes, progress=screen.watched
        )
        files = [output / "rates.md", *rates.draw(report, output)]
        files[0].write_text(report.markdown())
        screen.show(report.markdown())
        screen.show("Written:", *map(str, files))
        claims = [{"claim": claim.sentence, "holds": bool(claim.holds)} for claim in report.claims()]
        screen.give({"claims": claims, "files": files})
        if not all(claim["holds"] for claim in claims):
            raise typer.Exit(NOT_AS_ASKED)
