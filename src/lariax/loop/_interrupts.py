"""Ctrl-C and SIGTERM."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interrupts:
    """Asked once, the run stops at the end of a block; asked again, the signal does what it always does.

    Signals can be taken over in the main thread alone, and only those are that the program has not taken itself.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            return
        self._restore()
        signal.raise_signal(number)
