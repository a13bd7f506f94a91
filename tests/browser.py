"""A browser without a window, told what to do through its pipe (DevTools protocol); no port, no network."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser, if there is one."""
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


class Browser:
    """One page at a time; use it with `with`.

    Parameters
    ----------
    folder
        An empty folder of its own.

    Attributes
    ----------
    said, asked
        What the page has written to the console, thrown or been warned of, and addresses that it has asked for.
    """

    def __init__(self, folder: Path) -> None:
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        ends = f"3<&{theirs_in} 4>&{theirs_out}"
        shell = f"exec {FOUND} {' '.join(_QUIET)} --remote-debugging-pipe --user-data-dir={folder} {ends}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", shell], pass_fds=(theirs_in, theirs_out), **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self._left, self._number, self._session = b"", 0, None
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser has ended"
            self._left += more
        one, _, self._left = self._left.partition(b"\0")
        found = json.loads(one)
        about = found.get("params", {})
        if found.get("method") == "Runtime.exceptionThrown":
            self.said.append(about["exceptionDetails"]["exception"].get("description", str(about)))
        if found.get("method") == "Runtime.consoleAPICalled":
            self.said.append(f"{about['type']}: {about['args']}")
        if found.get("method") == "Log.entryAdded":
            self.said.append(about["entry"]["text"])
        if found.get("method") == "Network.requestWillBeSent":
            self.asked.append(about["request"]["url"][:100])
        return found

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        asked |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while (found := self._next()).get("id") != self._number:
            pass
        assert "error" not in found, found
        return found["result"]

    def open(self, page: Path, width: int = 1200, *, dark: bool = False) -> None:
        """Open a file at a width in pixels, and wait until it is there."""
        self.said, self.asked = [], []
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        self.ask("Page.navigate", url=page.absolute().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, code: str) -> Any:
        """Run code in the page, and return what it gives."""
        found = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move the mouse, or press (``Pressed``) and release it."""
        self.ask("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def picture(self, *, whole: bool = True) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
