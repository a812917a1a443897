"""Measurements of Lariax. Each module writes its own section of RESULTS.md."""
