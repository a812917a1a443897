"""Bounds that are promised, and kept on new data or not: `lariax.sklearn` beside what people do today."""
