"""A browser that shows the console of a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import chromium
from tests.support.api import Api
from tests.support.server import Server

WAIT_S = 30.0


class Console:
    """The console in the page of a browser."""

    def __init__(self, browser: chromium.Chromium, server: Server) -> None:
        self.browser, self.server = browser, server
        self.url = f"http://127.0.0.1:{server.port}/console"
        browser.set_window(1200)

    def open(self, path: str = "#/") -> None:
        """Load a page again, without a key or draft."""
        self.browser.open(f"{self.url}?{time.monotonic_ns()}{path}")
        if self.evaluate("sessionStorage.length"):
            self.evaluate("sessionStorage.clear()")
            self.open(path)

    def go(self, path: str) -> None:
        """Open another page of the console like a link."""
        self.evaluate(
            f"""new Promise((over) => {{
              const drawn = () => requestAnimationFrame(() => requestAnimationFrame(over));
              addEventListener("hashchange", drawn, {{ once: true }});
              location.hash = {json.dumps(path)};
            }})"""
        )

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        return self.browser.evaluate(script)

    def wait(self, script: str) -> bool:
        """Wait until an expression is true."""
        deadline = time.monotonic() + WAIT_S
        while not self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"{script}: never true of\n{self.text}"
            time.sleep(0.02)
        return True

    def shows(self, *texts: str) -> None:
        """Wait until the page shows all the texts."""
        for text in texts:
            self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    @property
    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def click(self, label: str, within: str = "body") -> None:
        """Click the button, tab or link with this text as soon as it is enabled."""
        self.wait(
            f"""(() => {{
              const found = [...document.querySelector({json.dumps(within)})
                ?.querySelectorAll("button, a") ?? []]
                .find((each) => each.innerText.trim() === {json.dumps(label)} && !each.disabled);
              found?.click();
              return found !== undefined;
            }})()"""
        )

    def fill(self, label: str, value: str) -> None:
        """Type into the field with this label, or select a value."""
        self.wait(
            f"""(() => {{
              const found = [...document.querySelectorAll("label")].findLast((each) =>
                each.innerText.trim().startsWith({json.dumps(label)}))
                ?.querySelector("input, select, textarea");
              if (!found) return false;
              found.value = {json.dumps(value)};
              found.dispatchEvent(new Event("input", {{ bubbles: true }}));
              found.dispatchEvent(new Event("change", {{ bubbles: true }}));
              return true;
            }})()"""
        )

    def is_off(self, label: str) -> str:
        """Return JavaScript: whether the button with this text is disabled."""
        return (
            "[...document.querySelectorAll('button')].find((each) =>"
            f" each.innerText.trim() === {json.dumps(label)})?.disabled"
        )

    @property
    def seqs(self) -> list[int]:
        """The seqs of the rows, from top to bottom."""
        found = self.evaluate(
            "[...document.querySelectorAll('.row .seq')].map((e) => e.textContent)"
        )
        return [int(text.removeprefix("#")) for text in found]

    @property
    def too_wide(self) -> list[str]:
        """Return the elements that extend beyond the right edge of the window."""
        found: list[str] = self.evaluate(
            """document.documentElement.scrollWidth <= innerWidth ? []
              : [...document.querySelectorAll("body *")]
                .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
                .map((each) => each.outerHTML.slice(0, 200)).slice(0, 3)"""
        )
        return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.opened(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("console") / "data", shards=2) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        yield server


@pytest.fixture
def console(browser: chromium.Chromium, server: Server) -> Iterator[Console]:
    browser.complaints.clear()
    yield Console(browser, server)
    browser.open("about:blank")  # the stream of the page ends


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(server.address) as api:
        yield api
