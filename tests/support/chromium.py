"""A headless Chromium, driven over its own debugging protocol: open a page, evaluate JavaScript in
it, nothing else.
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
QUIET = [  # no look-ups, updates or welcome pages: nothing but what a test opens
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
    """The browser on this machine."""
    return next((path for program in PROGRAMS if (path := shutil.which(program))), None)


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Chromium]:
    """A browser for the tests of a module, which are skipped where there is none."""
    program = found()
    if program is None:
        pytest.skip("Chromium is not installed")
    pytest.importorskip("websockets", reason="websockets is not installed (the dev extra has it)")
    with Chromium(program, profile) as browser:
        yield browser
        browser.open("about:blank")


class Chromium:
    """One browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        from websockets.sync.client import connect

        self._numbers = itertools.count(1)
        arguments = [
            *QUIET,
            *(["--no-sandbox"] if os.getuid() == 0 else []),
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        self._kill()

    def open(self, url: str) -> None:
        """Load a page, so that what it asks for later is of its own origin."""
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + START_S
        while self.evaluate("[location.href, document.readyState]") != [url, "complete"]:
            assert time.monotonic() < deadline, f"the page {url} does not load"
            time.sleep(0.01)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise; AssertionError if it throws."""
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=START_S))
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
        """The browser leads a process group of its own, so this ends its children and nobody
        else's.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(START_S)
