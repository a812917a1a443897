"""Coverage of the error bars of `lx.inference`."""
