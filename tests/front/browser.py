"""A real Chromium without a window, driven through its own protocol over two pipes: nothing but Python is needed."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run", "--mute-audio")


def executable():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab. `errors` collects what the console, the policy or a script complains of, `requests` what is fetched."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.errors, self.requests = [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self._browser.call(method, parameters, self._session, self)

    def open(self, path):
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < end, f"{expression} did not come true; errors: {self.errors}"
            time.sleep(0.02)

    def size(self, width, height=800):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start, end, y):
        self.mouse("mousePressed", start, y, button="left", clickCount=1)
        for step in range(1, 5):
            self.mouse("mouseMoved", start + (end - start) * step / 4, y, button="left", buttons=1)
        self.mouse("mouseReleased", end, y, button="left", clickCount=1)

    def press(self, key, text=None):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def note(self, event):
        method, what = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(str(what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])


class Browser:
    def __init__(self, profile):
        there, here = os.pipe(), os.pipe()
        command = [executable(), *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        script = f'exec "$@" 3<&{there[0]} 4>&{here[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *command],
            pass_fds=(there[0], here[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there[0])
        os.close(here[1])
        self._out, self._in = there[1], here[0]
        self._buffer, self._count = b"", 0

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        return Page(self, self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])

    def call(self, method, parameters, session=None, page=None):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if page is not None:
                page.note(answer)

    def _read(self, seconds=60):
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], seconds)[0], "Chromium does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium has ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close", {})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
