"""Measurements of Lariax. Each module writes its own page in benchmarks/results."""
