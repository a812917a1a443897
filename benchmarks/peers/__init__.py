"""cooper-optim and humancompatible-train beside Lariax: the same problems, one machine, one run."""
