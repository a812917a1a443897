"""`python -m benchmarks.cutest`."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # batched eigenvalues would be slow without end: threads of threads

import jax

jax.config.update("jax_enable_x64", True)

from benchmarks.cutest.run import main  # noqa: E402 (the precision is chosen first)

main()
