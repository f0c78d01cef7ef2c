"""In Chromium, a page of another origin sends every request that needs no preflight to a server
without keys on loopback.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import chromium
from tests.support.api import Api, Wire, request
from tests.support.event_sources import at
from tests.support.metrics import scrape
from tests.support.queues import Queue, counters, until
from tests.support.server import Server

pytestmark = pytest.mark.slow

JOBS = 20
WAIT_S = 60.0
FOREIGN = "elsewhere.example"  # Chromium resolves this name to the local machine

# Each function requests a URL in another way. Chromium sends an Origin only with those of NAMED.
WAYS = """
const add = (name, attributes) =>
  document.body.append(Object.assign(document.createElement(name), attributes));
const framed = () => {
  const name = `frame${document.querySelectorAll("iframe").length}`;
  add("iframe", { name });
  return name;
};
const submit = (method, url) => {
  const [action, query] = url.split("?");
  const form = Object.assign(document.createElement("form"), { action, method, target: framed() });
  for (const [name, value] of new URLSearchParams(query))
    form.append(Object.assign(document.createElement("input"), { name, value }));
  document.body.append(form);
  form.submit();
};
const ignored = () => undefined;
const noCors = (url, more) => void fetch(url, { mode: "no-cors", ...more }).catch(ignored);

globalThis.NAMELESS = {
  img: (url) => add("img", { src: url }),
  script: (url) => add("script", { src: url }),
  stylesheet: (url) => add("link", { rel: "stylesheet", href: url }),
  preload: (url) => add("link", { rel: "preload", as: "image", href: url }),
  prefetch: (url) => add("link", { rel: "prefetch", href: url }),
  background: (url) => add("div", { style: `height: 9px; background: url("${url}")` }),
  iframe: (url) => add("iframe", { src: url }),
  object: (url) => add("object", { data: url }),
  embed: (url) => add("embed", { src: url }),
  video: (url) => add("video", { src: url, preload: "auto" }),
  fetch: (url) => noCors(url),
  events: (url) => noCors(url, { headers: { Accept: "text/event-stream" } }),
  link: (url) => {
    add("a", { href: url, target: framed(), textContent: "here" });
    document.body.lastChild.click();
  },
  refresh: (url) =>
    add("iframe", { srcdoc: `<meta http-equiv="refresh" content="0; url=${url}">` }),
  form: (url) => submit("GET", url),
};
globalThis.NAMED = {
  source: (url) => void new EventSource(url),
  cors: (url) => void fetch(url).catch(ignored),
  anonymous: (url) => add("img", { src: url, crossOrigin: "anonymous" }),
  module: (url) => void import(url).catch(ignored),
};
globalThis.POSTS = {
  fetch: (url) => noCors(url, { method: "POST" }),
  text: (url) => noCors(url, { method: "POST", body: '{"node":"n","max":1}' }),
  beacon: (url) => navigator.sendBeacon(url),
  form: (url) => submit("POST", url),
};
globalThis.tryAll = (ways, url) => {
  for (const [name, way] of Object.entries(ways)) way(url.replace("WAY", name));
  return Object.keys(ways).length;
};
null
"""


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>elsewhere</title><link rel=icon href=data:,><body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def page_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    names = f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1"
    with chromium.opened(tmp_path_factory.mktemp("chromium"), names) as browser:
        yield browser


@pytest.mark.parametrize("name", [FOREIGN, "localhost", "127.0.0.1"])
def test_a_page_of_another_origin_cannot_write_lease_move_or_open_streams(
    browser: chromium.Chromium, page_port: int, name: str, tmp_path: Path
) -> None:
    """The requests of a page with a loopback name are accepted only if they have an Origin."""
    with Server(tmp_path / "data", access_log="all") as server, Api(server.address) as api:
        queue = Queue.create(api, "jobs", *range(JOBS), max_deliveries=1, dead_letter="dead")
        api.append("dead", "one")

        def lines() -> list[dict[str, Any]]:
            assert server.log is not None
            return [one for one in server.log.events() if one["event"] == "request"]

        before = len(until(lines, lambda found: found[-1:] and found[-1]["topic"] == "dead"))

        def statuses(route: str) -> list[int]:
            # Requests without a route, which a browser may send on its own, have no such member.
            return [one["status"] for one in lines()[before:] if one.get("route") == route]

        def tried(ways: str, path: str) -> int:
            url = json.dumps(at(server.address, path))
            return int(browser.evaluate(f"tryAll({ways}, {url})"))

        browser.open(f"http://{name}:{page_port}/")
        browser.evaluate(WAYS)
        kinds = ["NAMELESS", *(["NAMED"] if name == FOREIGN else [])]
        paths = {
            "queue.work": f"/v0/topics/jobs/work?node=WAY&max={JOBS}",
            "watch.topics": "/v0/watch?topic=jobs&node=WAY",
            "backup": "/v0/backup?by=WAY",
            "spec": "/v0/openapi.json?by=WAY",  # a document
        }
        posts = {"queue.claim": "/v0/topics/jobs/claim", "queue.redrive": "/v0/topics/dead/redrive"}
        posts["append"] = "/v0/topics/jobs"
        counts = {route: sum(tried(ways, path) for ways in kinds) for route, path in paths.items()}
        if name == FOREIGN:  # a POST always has an Origin
            counts |= {route: tried("POSTS", path) for route, path in posts.items()}
            browser.evaluate(f'void new WebSocket("{at(server.address, "/v0/ws", "ws")}")')
            counts["ws"] = 1
        for route, count in counts.items():
            found = until(lambda: statuses(route), lambda found: len(found) >= count, WAIT_S)  # noqa: B023
            assert set(found) == {200 if route == "spec" else 403}, route
        tried("{ top: (url) => void (location.href = url) }", paths["queue.work"])
        count = counts["queue.work"] + 1
        found = until(lambda: statuses("queue.work"), lambda found: len(found) >= count, WAIT_S)
        assert set(found) == {403}, "a followed link has leased a job"
        assert queue.counters() == counters(ready=JOBS)
        assert api.state("jobs")["head_seq"] == JOBS
        assert api.state("dead")["head_seq"] == 1
        assert scrape(api).value("topics_sse_connections") == 0
        with Wire(server.address) as wire:  # a program can use the only slot for backups
            wire.send(request("GET", "/v0/backup"))
            assert wire.head()[0] == 200
