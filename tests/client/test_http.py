"""Requests and streams on the wire: header fields, connections, certificates."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from topics.client import Retry, Topics, TopicsError, Unavailable, calls
from topics.client.http import certificates
from topics.client.settings import Target

ONCE = Retry(deadline=0.0)


class Listening(ThreadingHTTPServer):
    """Refuses every request, and records its header fields."""

    address_family, daemon_threads = socket.AF_INET6, True

    def __init__(self) -> None:
        self.heads: list[dict[str, str]] = []
        heads = self.heads

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                heads.append({name.lower(): text for name, text in self.headers.items()})
                self.send_response(503)
                for name, text in (("RETRY-AFTER", "7"), ("X-Request-Id", "r"), ("Location", "/")):
                    self.send_header(name, text)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"no")

            def log_message(self, *_: object) -> None:
                """Write no log."""

        super().__init__(("::1", 0), Handler)


@pytest.fixture
def listening() -> Iterator[Listening]:
    with Listening() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_requests_and_streams_send_the_host_of_the_url(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no server listens there
    place = f"[::1]:{listening.server_port}"
    for url, key, sent in (
        (f"http://{place}/", "k", "Bearer k"),
        (f"http://{place}", "", None),
        (f"http://me:p%20w@{place}", "", "Basic bWU6cCB3"),
    ):
        monkeypatch.setenv("TOPICS_API_KEY", "of the environment")
        with Topics(url, key=key, retry=ONCE) as client:
            for _ in range(2):
                with pytest.raises(Unavailable) as failure:
                    client.call(calls.get_topic("t"))
                assert (failure.value.retry_after_s, failure.value.request_id) == (7.0, "r")
            assert client.pool.connections == 1
            with pytest.raises(TopicsError):
                next(iter(client.watch(("t", 0))))
        for head in listening.heads:
            assert (head["host"], head.get("authorization")) == (place, sent)
            assert head["accept-encoding"] == "identity"
        assert len(listening.heads) == 3
        listening.heads.clear()


def test_an_ssl_context_replaces_the_certificates_of_the_system() -> None:
    context = ssl.create_default_context()
    with Topics("https://localhost:1", ssl_context=context) as client:
        assert certificates(client.target) is context
    assert certificates(Target("http://localhost:1", None, context)) is None
