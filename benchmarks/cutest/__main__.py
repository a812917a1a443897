"""`python -m benchmarks.cutest`."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # its pool can hang on batched linear algebra

import jax

jax.config.update("jax_enable_x64", True)

from benchmarks.cutest.run import main  # noqa: E402 (the precision is chosen first)

main()
