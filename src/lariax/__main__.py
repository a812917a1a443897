"""`python -m lariax`."""

from lariax.cli import main

if __name__ == "__main__":
    main()
