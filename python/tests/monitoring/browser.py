"""A headless Chromium by its chromedriver: what the tests of the status page need of W3C
WebDriver, which is JSON over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM, DRIVER = "chromium", "chromedriver"
# Nothing but the page that is asked for: no updates, no look-ups.
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)


def missing() -> str | None:
    """Why there is no browser; None if there is one."""
    for program in (CHROMIUM, DRIVER):
        if not shutil.which(program):
            return f"{program} is not installed (Debian: chromium, chromium-driver)"
    return None


class Browser:
    """One window."""

    def __init__(self, driver: str, width: int, height: int, profile: str) -> None:
        self._driver = driver
        arguments = [*ARGUMENTS, f"--window-size={width},{height}", f"--user-data-dir={profile}"]
        options = {
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which(CHROMIUM)},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._session = f"/session/{session['sessionId']}"

    def _call(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self._driver + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as err:
            raise RuntimeError(json.load(err)["value"]["message"]) from None

    def _do(self, method: str, path: str, body: object = None) -> Any:
        return self._call(method, self._session + path, body)

    def open(self, url: str) -> None:
        """Opens a page; complaints of the one before are forgotten."""
        self._do("POST", "/url", {"url": "about:blank"})
        self.complaints()
        self._do("POST", "/url", {"url": url})

    def js(self, body: str, *arguments: object) -> Any:
        """Calls a function of that body in the page."""
        return self._do("POST", "/execute/sync", {"script": body, "args": arguments})

    def wait(self, condition: str, *arguments: object, seconds: float = 45) -> Any:
        """Returns the expression's first value that is true; looks at each frame."""
        self._do("POST", "/timeouts", {"script": round(seconds * 1000)})
        script = (
            "const end = arguments[arguments.length - 1];"
            f"const look = () => {{ const v = (() => {condition})();"
            " v ? end(v) : setTimeout(look, 20) }; look()"
        )
        try:
            return self._do("POST", "/execute/async", {"script": script, "args": arguments})
        except RuntimeError as err:
            text = self.js("return document.body.innerText")
            raise AssertionError(f"not within {seconds} s: {condition}\n{text}") from err

    def press(self, *keys: str) -> None:
        """Presses keys, one after the other."""
        steps = [{"type": t, "value": key} for key in keys for t in ("keyDown", "keyUp")]
        self._do(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]}
        )

    def devtools(self, command: str, **parameters: object) -> Any:
        return self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def scheme(self, name: str) -> None:
        """Asks for light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        return base64.b64decode(self._do("GET", "/screenshot"))

    def complaints(self) -> list[str]:
        """What the console has said: errors, violated policies, requests that failed."""
        return [line["message"] for line in self._do("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        self._do("DELETE", "")


@contextmanager
def browser(width: int = 1200, height: int = 900) -> Iterator[Browser]:
    driver = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    try:
        port = 0
        for line in driver.stdout:  # "ChromeDriver was started successfully on port N."
            if "started successfully on port" in line:
                port = int(line.rsplit(maxsplit=1)[-1].rstrip("."))
                break
        assert port, f"{DRIVER} does not start"
        with tempfile.TemporaryDirectory() as profile:
            window = Browser(f"http://127.0.0.1:{port}", width, height, profile)
            try:
                yield window
            finally:
                window.close()
    finally:
        driver.terminate()
        driver.wait()
