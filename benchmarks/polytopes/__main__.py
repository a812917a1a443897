"""`python -m benchmarks.polytopes`."""

from benchmarks.polytopes.run import main

if __name__ == "__main__":  # not in the processes that it starts
    main()
