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


class Page:
    """One tab."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer, self._number, self._rest = reader, writer, 0, b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(answer["params"])[:500])

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

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"].get(
            "value"
        )

    def until(self, script: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(script):
            if time.monotonic() > end:
                raise TimeoutError(f"{script} is not true: {self.value('document.body.innerText')}")
            time.sleep(0.05)

    def key(self, name: str, text: str = "") -> None:
        """Press a key."""
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=name, text=text, windowsVirtualKeyCode=13 if text else 0
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def screenshot(self, path: Path) -> None:
        """Write what can be seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def open_page(folder: Path, width: int = 1200, height: int = 760, *, is_dark: bool = False) -> Iterator[Page]:
    """A tab of a browser that keeps everything in ``folder``."""
    assert PROGRAM is not None
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-pipe", f"--user-data-dir={folder}", f"--window-size={width},{height}",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser), PROGRAM, *flags],
        pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(to_us, from_us)
        media = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=media)
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(from_us)
        os.close(to_us)
