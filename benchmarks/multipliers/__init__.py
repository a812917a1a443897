"""Multipliers for a loop with an optimizer of its own: ours, with nothing set, beside tuned ones."""
