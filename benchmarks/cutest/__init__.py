"""CUTEst problems with equalities and noise in the gradient: `TangentNormal` beside stochastic SQP."""
