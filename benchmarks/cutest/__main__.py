"""`python -m benchmarks.cutest`."""

import jax

jax.config.update("jax_enable_x64", True)

from benchmarks.cutest.run import main  # noqa: E402 (the precision is chosen first)

main()
