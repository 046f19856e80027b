"""A real browser, driven by WebDriver's own protocol: no library between."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1200,900"
)


def installed() -> bool:
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


class Page:
    """One window."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, url: str) -> None:
        _ask(f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        return _ask(f"{self._session}/execute/sync", {"script": script, "args": []})

    def show(self, *, width: int, scheme: str) -> None:
        """A window of this width, for someone who likes pages `light` or `dark`."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        liked = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        for command, given in (
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", liked),
        ):
            _ask(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": given})

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        with urllib.request.urlopen(f"{self._session}/screenshot", timeout=60) as answer:
            return base64.b64decode(json.load(answer)["value"])

    def complaints(self) -> list[str]:
        """What the console holds: errors of scripts, files that were not found."""
        return [line["message"] for line in _ask(f"{self._session}/se/log", {"type": "browser"})]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}", "--silent"])
    options = {"args": [*FLAGS.split(), f"--user-data-dir={profile}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    base, session = f"http://127.0.0.1:{port}/session", None
    try:
        for _ in range(100):  # until the driver listens
            with suppress(ConnectionError, urllib.error.URLError):
                made = _ask(base, {"capabilities": {"alwaysMatch": wanted}})
                session = f"{base}/{made['sessionId']}"
                break
            time.sleep(0.1)
        assert session is not None, "chromedriver does not answer"
        yield Page(session)
    finally:
        if session is not None:  # else the browser outlives its driver
            urllib.request.urlopen(urllib.request.Request(session, method="DELETE")).close()
        driver.terminate()
        driver.wait()


def _ask(url: str, content: Any) -> Any:
    asked = urllib.request.Request(url, json.dumps(content).encode(), method="POST")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)["value"]
