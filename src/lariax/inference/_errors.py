"""Where there is no error bar."""


class InferenceError(ValueError):
    """The point is not one around which intervals would mean anything; the message says why, and what to do."""
