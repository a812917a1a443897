"""Problems with known solutions: how far from the statistical limit a method ends, on its defaults."""
