"""Ctrl-C and SIGTERM."""

import os
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

PATIENCE = 0.5
"""Seconds that Python has to take a signal up. It cannot while the main thread compiles, or waits for a device."""


class Interrupts:
    """Asked once, the run stops at the end of a block; asked again, the signal does what it always does.

    Python takes signals up in the main thread, between two of its instructions, and compiling may be one that takes
    minutes. So a thread listens too: it says at the first signal what is being waited for, and at the second ends the
    process, if nobody else has.

    Signals can be taken over in the main thread alone, and only those are that the program has not taken itself.
    """

    def __init__(self) -> None:
        self.asked = False
        self.waits_for = "a program is being compiled"  # what takes long now; "": nothing does
        self._taken_up, self._said, self._depth = 0, False, 0
        self._before: dict[signal.Signals, Any] = {}
        self._mouth: socket.socket | None = None

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) is default:
                    self._before[number] = signal.signal(number, self._ask)
            if self._before:
                self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self._mouth is not None:
            signal.set_wakeup_fd(-1)
            self._mouth.close()  # and the thread ends
            self._mouth = None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._taken_up += 1
        if not self.asked:
            self.asked = True
            if self.waits_for:
                self._say(number)
            return
        self._restore()
        signal.raise_signal(number)

    def _say(self, number: int) -> None:
        if not self._said:
            self._said = True
            what = self.waits_for or "the device is at work"
            print(
                f"lariax: {signal.Signals(number).name} has come, but {what}: the run ends after that, with the answer "
                "so far. Once more ends the process at once.",
                file=sys.stderr,
                flush=True,
            )

    def _listen(self) -> None:
        """Signals are written to a socket as they come, whatever the main thread does."""
        mouth, ear = socket.socketpair()
        mouth.setblocking(False)
        other = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        if other != -1:  # that of an event loop, which is to go on
            signal.set_wakeup_fd(other)
            mouth.close()
            ear.close()
            return
        self._mouth = mouth
        threading.Thread(target=self._hear, args=(ear, {*self._before}), daemon=True, name="lariax-signals").start()

    def _hear(self, ear: socket.socket, ours: set[signal.Signals]) -> None:
        came = 0
        with ear:
            while byte := ear.recv(1):
                if byte[0] not in ours:
                    continue
                came += 1
                end = time.monotonic() + PATIENCE
                while self._taken_up < came and time.monotonic() < end:
                    time.sleep(0.01)
                if self._taken_up < came and came == 1:
                    self._say(byte[0])
                elif self._taken_up < came:
                    os._exit(128 + byte[0])
