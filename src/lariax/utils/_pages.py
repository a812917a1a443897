"""Which page of the documentation helps with what. Errors and commands take their links from here."""

from typing import Any, ClassVar

DOCS = "docs"
"""Where the documentation is: the folder of the repository. A site that has an address goes here."""

PAGES = {
    "install": "start.md#install",
    "start": "start.md#ten-lines",
    "questions": "faq.md",
    "ends": "faq.md#when-a-run-does-not-end-well",
    "resume": "survival.md",
    "certificate": "certificate.md#how-to-get-one",
    "inference": "inference.md#where-it-refuses",
    "scipy": "api/solve.md",
    "folders": "command-line.md#the-folder-of-a-run",
    "commands": "command-line.md",
    "promise": "guides/scikit-learn.md",
    "problem": "api/problem.md",
    "multipliers": "multipliers.md",
}


def page(topic: str) -> str:
    """The page on a topic.

    >>> page("resume")
    'docs/survival.md'
    """
    return f"{DOCS}/{PAGES[topic]}"


def with_help(error: BaseException, topic: str) -> None:
    """Note the page that helps on an error, once; the note is shown below its message."""
    if not any(note.startswith("Help: ") for note in getattr(error, "__notes__", ())):
        error.add_note(f"Help: {page(topic)}")


class HelpfulError(Exception):
    """An error that names the page that helps."""

    topic: ClassVar[str]

    def __init__(self, *args: Any):
        super().__init__(*args)
        with_help(self, self.topic)
