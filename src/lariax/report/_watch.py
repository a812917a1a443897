"""A run that goes on, seen while it does: on a page that is served to this machine alone, or in a notebook."""

import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jax
import numpy as np

from lariax.loop import History, Snapshot
from lariax.report._page import live_data, live_page
from lariax.report._plot import plot
from lariax.report._words import number
from lariax.runs import SavedRun, lines_of
from lariax.utils import check_among

MOST_ROWS = 1000  # records that are drawn; beyond, every second one goes
WHERE = ("page", "cell")
SHARE = 10  # a notebook's picture is drawn in at most one part in so many of the time
PAUSE = 1.0  # seconds between two pictures, at least


class Watch:
    """A callback that shows a run while it goes on: `lx.solve(..., callback=watch)`.

    Arguments:
        title: of the run.
        where: "page": a page in the browser, at `watch.address`, which is printed. It is served to this machine alone
            (the loopback address), to whoever knows the token in the address. "cell": the output of a notebook's cell,
            drawn by matplotlib. Both are updated in place. By default "cell" in a notebook, else "page".

    The page stays until `watch.close()`, the end of a `with`, or the end of the process.

    >>> import jax.numpy as jnp, lariax as lx
    >>> from lariax import report
    >>> problem = lx.Problem(lambda x: jnp.sum((x - 1) ** 2), constraints={"sum": lx.Equal(jnp.sum, 1.0, samples=None)})
    >>> with report.Watch("small", where="page") as watch:
    ...     result = lx.solve(problem, jnp.zeros(2), iterations=100, callback=watch)
    >>> watch.address.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, title: str = "run", where: str | None = None):
        where = ("cell" if _in_notebook() else "page") if where is None else where
        check_among("where", where, WHERE)
        self._rows, self._stride, self._count, self._title = [], 1, 0, title
        self._ended = ""
        self._shown: _Server | _Cell = _Server(self._state) if where == "page" else _Cell(self._run)
        self.address = self._shown.address

    _rows: list[dict[str, Any]]

    def __call__(self, snapshot: Snapshot) -> None:
        """At every record."""
        row = {**snapshot.record, "iteration": snapshot.iteration}
        rows = [*self._rows, row] if self._count % self._stride == 0 else [*self._rows[:-1], row]
        if len(rows) > MOST_ROWS:
            rows, self._stride = rows[::2], 2 * self._stride
        self._rows, self._count = rows, self._count + 1  # whole lists, for whoever reads them in another thread
        self._shown.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self, words: str = "The run has ended.") -> None:
        """Show that the run has ended, to whoever looks at it, and close the page."""
        self._ended = words
        self._shown.close()

    def _run(self) -> SavedRun:
        rows = self._rows
        columns = jax.tree.map(lambda *each: np.asarray(each), *rows) if rows else {}
        history = lines_of(History(columns)) if rows else {}
        return SavedRun(self._title, {"status": "running"}, history, {}, {}, None, {}, {})

    def _state(self) -> dict[str, Any]:
        """What the page shows."""
        words = self._ended or _words(self._rows[-1]) if self._rows or self._ended else "Compiling."
        about = {"title": self._title, "count": self._count, "ended": bool(self._ended), "words": words}
        return about | live_data(self._run())


def _words(row: dict[str, Any]) -> str:
    parts = [f"{int(row['iteration']):,} iterations", f"{int(row['draws']):,} draws", f"{float(row['seconds']):.1f} s"]
    parts += [f"{name} {number(float(row[name]))}" for name in ("feasibility", "stationarity") if name in row]
    return ", ".join(parts)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class _Cell:
    """The output of a notebook's cell."""

    address = ""

    def __init__(self, run: Callable[[], SavedRun]):
        self._run, self._handle, self._next = run, None, 0.0

    def update(self) -> None:
        began = time.monotonic()
        if began < self._next:
            return
        from IPython.display import display

        figure = plot(self._run(), against="iteration")
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        ended = time.monotonic()
        self._next = ended + max(PAUSE, SHARE * (ended - began))

    def close(self) -> None:
        self._next = 0.0
        if self._handle is not None:
            self.update()


class _Server:
    """Of one page and its numbers. Nobody but this machine can ask, and only with the token."""

    def __init__(self, state: Callable[[], dict[str, Any]]):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
        self._server.daemon_threads = True
        watched = _Watched(secrets.token_urlsafe(16), self._server.server_port, state)
        self._server.watched = watched  # type: ignore[attr-defined]
        self._watched, self.address = watched, f"http://127.0.0.1:{watched.port}/?token={watched.token}"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="lariax-watch").start()

    def update(self) -> None:
        """The page asks by itself."""

    def close(self) -> None:
        """A page that is open gets to know of the end."""
        end = time.monotonic() + 3 * PAUSE
        while self._watched.is_open and time.monotonic() < end:
            time.sleep(0.02)
        self._server.shutdown()
        self._server.server_close()


class _Watched:
    """What is served, and whether a page is open that has not yet heard of the end."""

    def __init__(self, token: str, port: int, state: Callable[[], dict[str, Any]]):
        self.token, self.port, self._state = token, port, state
        self._asked, self._told = -np.inf, False

    @property
    def is_open(self) -> bool:
        return not self._told and time.monotonic() - self._asked < 3 * PAUSE

    def numbers(self) -> bytes:
        state = self._state()
        self._asked, self._told = time.monotonic(), state["ended"]
        return json.dumps(state).encode()


class _Answer(BaseHTTPRequestHandler):
    server_version, sys_version, timeout = "Lariax", "", 10

    def do_GET(self) -> None:
        watched: _Watched = self.server.watched  # type: ignore[attr-defined]
        where = urlsplit(self.path)
        given = parse_qs(where.query).get("token", [""])[0]
        host = f"127.0.0.1:{watched.port}"  # another name for this address is somebody else's page
        if self.headers.get("Host") != host or not hmac.compare_digest(given.encode(), watched.token.encode()):
            self._send(403, "text/plain", b"Open the address that Lariax has printed, with its token.\n", "")
        elif where.path == "/":
            text, policy = live_page()
            self._send(200, "text/html; charset=utf-8", text.encode(), policy)
        elif where.path == "/numbers":
            self._send(200, "application/json", watched.numbers(), "default-src 'none'")
        else:
            self._send(404, "text/plain", b"There is nothing here.\n", "")

    def _send(self, code: int, kind: str, body: bytes, policy: str) -> None:
        self.send_response(code)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **({"Content-Security-Policy": policy} if policy else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Not a word: the terminal is for the run."""
