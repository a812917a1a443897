"""Many noisy inequalities, with exact solutions: how far from the statistical limit the default method ends."""
