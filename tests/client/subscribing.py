"""Programs with topics.js in Chromium and in Node.js, and a server with prepared responses."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.chromium import Chromium

MODULE = Path(__file__).parents[2] / "topics/client/js/topics.js"
WAIT_S = 60.0
Events = list[tuple[str, Any]]  # the name of a handler and its argument

BEGIN = """
const { append, subscribe, publish, work } = await import(MODULE);
const shown = ({ error, ...event }) =>
  error ? { ...event, status: error.status, code: error.code } : event;
const status = (event) => say(["status", shown(event)]);
const options = OPTIONS;
"""
SUBSCRIBE = """
const names = ["record", "tombstone", "caughtUp", "topicDeleted", "status"];
const on = Object.fromEntries(names.map((name) => [name, (event) => say([name, shown(event)])]));
const running = subscribe({ on, ...options, ...MORE });
"""


def script(module: str, options: dict[str, Any], program: str) -> str:
    return BEGIN.replace("MODULE", module).replace("OPTIONS", json.dumps(options)) + program


class Running:
    """A program that reports with ``say([name, event])`` and defines ``running``, which has
    ``close()``. The program can use ``options``, the handler ``status`` and the functions of
    topics.js.
    """

    def events(self) -> Events:
        """Return all that the program has reported."""
        raise NotImplementedError

    def wait(self, enough: Callable[[Events], bool]) -> Events:
        """Wait until the reports satisfy ``enough``. Return all of them."""
        deadline = time.monotonic() + WAIT_S
        while not enough(events := self.events()):
            assert time.monotonic() < deadline, events[-20:]
            time.sleep(0.02)
        return events

    def records(self, count: int) -> list[Any]:
        """Wait for this number of records. Return their data."""
        return data(self.wait(lambda events: len(data(events)) >= count))


def data(events: Events) -> list[Any]:
    return [event["data"] for name, event in events if name == "record"]


def of(events: Events, name: str) -> list[Any]:
    return [event for kind, event in events if kind == name]


class InPage(Running):
    """A program in the open page of the browser. Its origin is not that of a server."""

    def __init__(
        self, browser: Chromium, page: str, options: dict[str, Any], program: str = SUBSCRIBE
    ) -> None:
        self._browser = browser
        browser.open(page)
        browser.evaluate(
            "globalThis.reported = []; globalThis.say = (one) => reported.push(one); null"
        )
        lines = script('"/topics.js"', options, program)
        browser.evaluate(f"(async () => {{ {lines} globalThis.running = running; }})()")

    def events(self) -> Events:
        return [(name, event) for name, event in self._browser.evaluate("reported")]

    def close(self) -> None:
        self._browser.evaluate("running.close(); null")


class InNode(Running):
    """A program in a process of Node.js."""

    def __init__(self, node: str, options: dict[str, Any], program: str = SUBSCRIBE) -> None:
        say = "const say = (one) => console.log(JSON.stringify(one));"
        close = 'process.stdin.on("data", () => running.close()).unref();'
        lines = say + script("process.env.MODULE", options, program) + close
        self._process = subprocess.Popen(
            [node, "--experimental-websocket", "--input-type=module", "--eval", lines],
            env=os.environ | {"MODULE": MODULE.as_uri()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._events: Events = []
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            name, event = json.loads(line)
            self._events.append((name, event))

    def events(self) -> Events:
        return [*self._events]

    def close(self) -> None:
        """Close ``running``. The process then has no pending work and exits."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"close\n")
        self._process.stdin.flush()
        self.join()

    def join(self) -> None:
        """Wait until the process exits on its own."""
        assert self._process.wait(WAIT_S) == 0
        self._thread.join(WAIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._thread.join(WAIT_S)  # the thread reads to the end before the pipe is closed
        with self._process:
            pass


class Answering(ThreadingHTTPServer):
    """Replies to requests for streams with the next of ``answers``, and records the path and
    event id of each request. Pages of any origin may send requests.
    """

    daemon_threads = True

    def __init__(self, *answers: Callable[[BaseHTTPRequestHandler], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests = iter(answers), list[tuple[str, str | None]]()
        self.is_over, self.is_left = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: the end of the connection is the end of the response."""

    server: Answering

    def do_OPTIONS(self) -> None:
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        if self.path in ("/", "/topics.js"):
            self.send_response(200)
            is_page = self.path == "/"
            self.send_header("Content-Type", "text/html" if is_page else "text/javascript")
            self.end_headers()
            self.wfile.write(b"<title>a page</title>" if is_page else MODULE.read_bytes())
            return
        self.server.requests.append((self.path, self.headers.get("Last-Event-ID")))
        with contextlib.suppress(ConnectionError):
            next(self.server.answers)(self)

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "Authorization, Last-Event-ID")
        self.send_header("Access-Control-Expose-Headers", "Retry-After")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests print nothing."""


def stream(*chunks: bytes, then: bytes | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    """Reply with an event stream of these chunks. The stream ends after them unless ``then`` is
    given, which is sent repeatedly. The value b"" keeps the stream open without data.
    """

    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert isinstance(handler, Handler)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for chunk in chunks:
            handler.wfile.write(chunk)
            handler.wfile.flush()
        try:
            while then is not None and not handler.server.is_over.wait(0.05):
                handler.wfile.write(then)
        except ConnectionError:
            handler.server.is_left.set()

    return answer


def silent(handler: BaseHTTPRequestHandler) -> None:
    """Send no response."""
    assert isinstance(handler, Handler)
    handler.server.is_over.wait(WAIT_S)


def refused(status: int, body: bytes = b"", **headers: str) -> Callable[[Any], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@functools.cache
def version(program: str) -> tuple[int, int]:
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    major, minor, _ = shown.stdout.strip().removeprefix("v").split(".", 2)
    return int(major), int(minor)


def node() -> str:
    program = shutil.which("node")
    if program is None or version(program) < (20, 10):
        pytest.skip("Node.js 20.10 or later, with a WebSocket, is not installed")
    return program


@contextlib.contextmanager
def page_server() -> Iterator[str]:
    """Serve a page that may import topics.js. Yield its URL."""
    with Answering() as server:
        yield server.url + "/"
