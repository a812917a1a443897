"""`python -m lariax`."""

from lariax.cli import main

main()
