"""A headless Chromium, driven over its debugging protocol: open pages, evaluate JavaScript,
collect console errors, press keys.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 30.0
OPTIONS = [  # No look-ups, updates or welcome pages
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-port=0",
]


def found() -> str | None:
    """Return the path of a browser on this machine, or None."""
    return next((path for program in PROGRAMS if (path := shutil.which(program))), None)


@contextlib.contextmanager
def opened(profile: Path, *arguments: str) -> Iterator[Chromium]:
    """Run a browser for the tests of a module, or skip them if none is installed."""
    program = found()
    if program is None:
        pytest.skip("Chromium is not installed")
    pytest.importorskip("websockets", reason="websockets is not installed (the dev extra has it)")
    with Chromium(program, profile, *arguments) as browser:
        yield browser
        browser.open("about:blank")


class Chromium:
    """A browser with one page."""

    def __init__(self, program: str, profile: Path, *more: str) -> None:
        from websockets.sync.client import connect

        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """Console errors, exceptions and policy violations of all pages."""
        arguments = [
            *OPTIONS,
            *(["--no-sandbox"] if os.getuid() == 0 else []),
            *more,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            url = self._page_url(self._port(profile / "DevToolsActivePort"))
            self._closing = contextlib.ExitStack()
            self._connection = self._closing.enter_context(
                connect(url, proxy=None, compression=None, max_size=None)
            )
        except BaseException:
            self._kill()
            raise
        self._call("Runtime.enable")
        self._call("Log.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        self._kill()

    def open(self, url: str) -> None:
        """Load a page, or navigate within it if only the fragment differs."""
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + START_S
        while self.evaluate("[location.href, document.readyState]") != [url, "complete"]:
            assert time.monotonic() < deadline, f"the page {url} does not load"
            time.sleep(0.01)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise. Raise AssertionError if
        it throws.
        """
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def set_window(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Set the size of the window and the preferred color scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """Press and release a key."""
        enter = {"text": "\r", "windowsVirtualKeyCode": 13}
        text = enter if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def _record_complaint(self, event: Any) -> None:
        params = event["params"]
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    def _call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=START_S))
            if "method" in message:
                self._record_complaint(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _port(self, file: Path) -> int:
        deadline = time.monotonic() + START_S
        while not (file.exists() and file.read_text().count("\n")):
            assert self._process.poll() is None, (
                f"the browser ended with {self._process.returncode}"
            )
            assert time.monotonic() < deadline, "the browser does not open its debugging port"
            time.sleep(0.02)
        return int(file.read_text().splitlines()[0])

    def _page_url(self, port: int) -> str:
        deadline = time.monotonic() + START_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
            connection.request("GET", "/json/list")
            targets = json.loads(connection.getresponse().read())
            connection.close()
            for target in targets:
                if target["type"] == "page":
                    return str(target["webSocketDebuggerUrl"])
            assert time.monotonic() < deadline, f"the browser has no page: {targets}"
            time.sleep(0.02)

    def _kill(self) -> None:
        """Kill the browser and its children, which form their own process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(START_S)
