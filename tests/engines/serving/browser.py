"""A headless Chromium, driven over a pipe: https://chromedevtools.github.io/devtools-protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_LAUNCH = """
import fcntl, os, sys
ours, theirs = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(ours, 3)  # the browser reads from here
os.dup2(theirs, 4)  # and writes to there
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE = 60


_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38}
_COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """A process, and the pipe to it."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._number, self._rest = reader, writer, 0, b""
        self.complaints: dict[str, list[str]] = {}  # error messages in the console of each tab

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            if answer.get("method") in _COMPLAINTS and answer["params"].get("type") in (None, "error", "assert"):
                complaint = json.dumps(answer["params"])[:500]
                self.complaints.setdefault(answer["sessionId"], []).append(complaint)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._reader], [], [], _PATIENCE)[0]:
                raise TimeoutError(f"the browser said nothing for {_PATIENCE} seconds")
            read = os.read(self._reader, 1 << 16)
            if not read:
                raise EOFError("the browser has ended")
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer

    @contextmanager
    def open(self, url: str, width: int = 1200, height: int = 760, *, is_dark: bool = False) -> Iterator[Page]:
        """A tab that shares nothing with others. One narrower than 800 pixels is a phone's."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
            page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
            is_phone = width < 800
            page.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=height, deviceScaleFactor=2 if is_phone else 1, mobile=is_phone,
            )  # fmt: skip
            media = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
            page.call("Emulation.setEmulatedMedia", features=media)
            page.call("Page.navigate", url=url)
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @property
    def complaints(self) -> list[str]:
        """Return the error messages in the console."""
        return self._browser.complaints.get(self._session, [])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        return self._browser.call(method, self._session, **params)

    def value(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, script: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(script):
            if time.monotonic() > end:
                raise TimeoutError(f"{script} is not true: {self.value('document.body.innerText')}")
            time.sleep(0.02)

    def key(self, name: str, modifiers: int = 0) -> None:
        """Press a key."""
        text = {"text": "\r"} if name == "Enter" else {}
        code = {"key": name, "code": name, "windowsVirtualKeyCode": _KEYS[name], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def type(self, text: str) -> None:
        """Insert a text where the focus is."""
        self.call("Input.insertText", text=text)

    def picture(self) -> bytes:
        """The window as a PNG file."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def narrow(self, bytes_per_second: float) -> None:
        """Limit the speed at which responses arrive; -1 does not."""
        self.call(
            "Network.emulateNetworkConditions",
            offline=False, latency=0, downloadThroughput=bytes_per_second, uploadThroughput=-1,
        )  # fmt: skip


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser that keeps everything in ``folder``."""
    assert PROGRAM is not None
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    command = [PROGRAM, *_FLAGS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser), *command],
        pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(to_us, from_us)
    finally:
        process.kill()
        process.wait()
        os.close(from_us)
        os.close(to_us)
