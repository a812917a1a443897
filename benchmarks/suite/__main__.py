"""`python -m benchmarks.suite`."""

import jax

jax.config.update("jax_enable_x64", True)

from benchmarks.suite.run import main  # noqa: E402 (the precision is chosen first)

main()
