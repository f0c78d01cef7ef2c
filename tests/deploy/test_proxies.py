"""The site configurations of `deploy/` in nginx and Caddy, in front of a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from tests.contract.live.test_eventsource import NodeSource
from tests.support.api import Api, Wire, data, ok, refused, request
from tests.support.event_sources import Event, at, records
from tests.support.metrics import scrape
from tests.support.proxies import (
    CLIENT,
    DEPLOY,
    Caddy,
    Nginx,
    Proxy,
    ms_of,
    next_port,
    own_address,
    running,
)
from tests.support.queues import Queue, Work, until
from tests.support.relay import Relay
from tests.support.server import Server
from tests.support.sse import Stream, seqs, session
from tests.support.ws import Socket
from topics import cli
from topics.client import Record, Topics
from topics.config import Settings
from topics.formats.api.limits import WAIT_MS_MAX
from topics.formats.api.watch import HEARTBEAT_MAX_MS
from topics.front.http.connection import Timings
from topics.front.live.sse import RETRY, error_event
from topics.storage.standby import Standby

pytestmark = pytest.mark.slow

KEY = "proxy-secret"
WAIT_S = 30.0
CUT_S = 5  # nginx's proxy_read_timeout in tests that wait for it
SITES = ("nginx.conf", "Caddyfile")
KINDS = pytest.mark.parametrize("kind", [Nginx, Caddy])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that keeps its port over restarts and accepts the host names that the proxy
    passes.
    """
    with Server(
        tmp_path_factory.mktemp("proxies") / "data",
        host=own_address(),
        port=next_port(),
        allowed_hosts="topics.example.com",
        trusted_proxies="127.0.0.1",
        access_log="all",
        shards=2,
    ) as server:
        yield server


@pytest.fixture(scope="module", params=[Nginx, Caddy], ids=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy") / "site"
    # nginx logs a warning for each response that it buffers in a file.
    changes = {" crit;": " warn;"} if request.param is Nginx else {}
    with running(request.param, folder, server.address, changes) as proxy:
        yield proxy
        assert "temporary file" not in proxy.logged


@pytest.fixture
def api(proxy: Proxy) -> Iterator[Api]:
    with Api(proxy.address) as api:
        yield api


@pytest.fixture
def direct(server: Server) -> Iterator[Api]:
    with Api(server.address) as api:
        yield api


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9]+", "-", request.node.name).strip("-")


# Forwarding


def test_events_are_forwarded_immediately(proxy: Proxy, api: Api, topic: str) -> None:
    ok(api.append(topic, 0), 201)
    # No heartbeat is sent in the meantime. A buffering proxy would keep these few bytes.
    path = f"/v0/watch?topic={topic}&heartbeat_ms={HEARTBEAT_MAX_MS}"
    with Stream(proxy.address, path) as stream:
        assert seqs(stream.records(1)) == [1]
        for number in (2, 3):
            ok(api.append(topic, number))
            assert seqs(stream.records(1)) == [number]


def test_jobs_are_forwarded_immediately(proxy: Proxy, api: Api, topic: str) -> None:
    queue = Queue.create(api, topic)
    with Work(queue, max_jobs=2) as stream:
        for number in (1, 2):
            queue.push(number)
            assert [job["data"] for job in stream.jobs(1)] == [number]


def test_a_websocket_publishes_and_receives(proxy: Proxy, topic: str) -> None:
    with Socket(proxy.address) as socket:
        socket.request("publish", "1", topic=topic, records=[{"data": "here"}])
        socket.request("subscribe", "2", topics={topic: {}})
        assert data(socket.records(1)) == ["here"]


def test_a_long_append_and_a_long_response_are_forwarded(
    proxy: Proxy, api: Api, topic: str
) -> None:
    text = "x" * 500_000
    ok(api.append(topic, text, text, text, text), 201)
    page = ok(api.diff(topic, max_batch_bytes=8 << 20))
    assert data(page["records"]) == [text] * 4


def test_a_response_to_a_slow_reader_is_not_buffered_in_a_file(
    proxy: Proxy, api: Api, topic: str
) -> None:
    ok(api.append(topic, *["x" * 1_000_000] * 8), 201)
    body = json.dumps({"max_batch_bytes": 8 << 20}).encode()
    with Wire(proxy.address, receive_bytes=4096) as wire:
        wire.send(request("POST", f"/v0/topics/{topic}/diff", body))
        status, _ = wire.head()
        assert status == 200
        ok(api.diff(topic, limit=1))  # other clients are served in the meantime
        wire.close()


def test_a_standby_receives_complete_and_incremental_rounds(
    proxy: Proxy, api: Api, topic: str, tmp_path: Path
) -> None:
    copy = Standby(tmp_path / "copy")
    url = "http://{}:{}".format(*proxy.address)
    for number in range(3):
        ok(api.append(topic, *["x" * 1_000_000] * 4), 201 if number == 0 else 200)
        assert cli.main(["--url", url, "-q", "standby", "run", str(copy.path), "--once"]) == 0
    rounds = copy.intact()
    assert len(rounds) == 3
    assert all(each.received_bytes > 4_000_000 for each in rounds)
    assert copy.damaged(rounds[-1]) == []


def test_a_body_that_is_too_long_is_refused_by_the_server(api: Api, topic: str) -> None:
    answer = api.call("POST", f"/v0/topics/{topic}/diff", b" " * 150_000)
    refused(answer, 413, "payload_too_large")


def test_a_long_poll_ends_with_a_record_or_its_timeout(proxy: Proxy, api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    assert ok(api.diff(topic, from_seq=1, wait_ms=500))["records"] == []
    with Api(proxy.address) as other:
        timer = threading.Timer(0.2, other.append, (topic, 2))
        timer.start()
        page = ok(api.diff(topic, from_seq=1, wait_ms=15_000))
        timer.join()
    assert seqs(page["records"]) == [2]


def test_a_watch_of_64_topics_is_resumed(proxy: Proxy, api: Api) -> None:
    names = [f"{number:0121}" for number in range(64)]
    for name in names:
        assert api.append(name, 1).status in (200, 201)
    path = "/v0/watch?topic=" + "&topic=".join(names)
    assert len(path) > 8192  # the default limit of nginx
    with Stream(proxy.address, path) as stream:
        last = stream.read_until_caught_up(names).last_id
    assert len(last) > 2000
    ok(api.append(names[-1], "more"))
    with Stream(proxy.address, path, last_event_id=last) as stream:
        assert data(stream.records(1)) == ["more"]


def test_http_2_carries_requests_and_streams(proxy: Proxy, api: Api, topic: str) -> None:
    curl = shutil.which("curl")
    if curl is None or "HTTP2" not in subprocess.check_output([curl, "-V"], text=True):
        pytest.skip("there is no curl with HTTP/2")
    host, port = proxy.tls
    command = [curl, "-sN", "--http2", "--cacert", str(proxy.certificate)]
    command += ["--resolve", f"localhost:{port}:{host}", "--max-time", "60"]
    url = f"https://localhost:{port}/v0"
    output = subprocess.check_output([*command, "-w", "%{http_version}", f"{url}/ready"], text=True)
    assert output.endswith("2")
    ok(api.append(topic, "first"), 201)
    watch = subprocess.Popen(
        [*command, f"{url}/watch?topic={topic}"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert watch.stdout is not None
        assert any('"first"' in line for line in watch.stdout)
        ok(api.append(topic, "second"))
        assert any('"second"' in line for line in watch.stdout)
    finally:
        watch.kill()
        watch.communicate()


# Client addresses and host names


def test_the_access_log_has_the_address_of_the_client(
    server: Server, proxy: Proxy, api: Api, topic: str
) -> None:
    forged = {"X-Forwarded-For": "192.0.2.1", "X-Request-Id": f"forged-{topic}"}
    ok(api.append(topic, 1, headers=forged), 201)
    api.call("GET", "/v0/topics", None, {"X-Request-Id": f"cold-{topic}"})
    with Api(server.address) as direct:  # from the address of a trusted proxy that names no client
        direct.call("GET", "/v0/topics", None, {"X-Request-Id": f"direct-{topic}"})

    def peers() -> dict[str, str]:
        assert server.log is not None
        lines = [one for one in server.log.events() if topic in one.get("request_id", "")]
        return {line["request_id"].removesuffix(f"-{topic}"): line["peer"] for line in lines}

    found = until(peers, lambda found: len(found) == 3, WAIT_S)
    assert (found["forged"], found["cold"]) == (CLIENT, CLIENT)
    assert found["direct"].startswith("127.0.0.1:")


def test_the_host_name_reaches_the_host_check(proxy: Proxy, api: Api) -> None:
    for host in ("topics.example.com", "topics.example.com:8443"):
        assert api.call("GET", "/v0/topics", None, {"Host": host}).status == 200
    answer = api.call("GET", "/v0/topics", None, {"Host": "evil.example"})
    assert "evil.example" in refused(answer, 403, "forbidden")["message"]


# Disconnects and restarts


def test_the_server_detects_clients_that_disconnect(
    proxy: Proxy, api: Api, direct: Api, topic: str
) -> None:
    def streams() -> float:
        return scrape(direct).value("topics_sse_connections")

    until(streams, lambda count: count == 0, WAIT_S)
    queue = Queue.create(api, topic)
    with (
        Stream(proxy.address, session(api, [topic])["stream_url"]),
        Work(queue),
        Socket(proxy.address),
    ):
        until(streams, lambda count: count == 3, WAIT_S)
    until(streams, lambda count: count == 0, WAIT_S)


@KINDS
def test_a_client_continues_after_a_restart_of_the_server(
    kind: type[Proxy], tmp_path: Path
) -> None:
    with (
        Server(tmp_path / "data", host=own_address(), port=next_port()) as server,
        running(kind, tmp_path / "site", server.address) as proxy,
        Topics("http://{}:{}".format(*proxy.address)) as client,
    ):
        client.topic("a").append(1)
        with client.watch("a") as events:
            records = (event.data for event in events if isinstance(event, Record))
            assert next(records) == 1
            server.restart("kill")
            client.topic("a").append(2)
            assert next(records) == 2


@KINDS
def test_while_the_server_is_down_streams_reconnect_and_requests_get_503(
    kind: type[Proxy], tmp_path: Path
) -> None:
    with (
        Server(tmp_path / "data", host=own_address(), port=next_port()) as server,
        running(kind, tmp_path / "site", server.address) as proxy,
        Api(proxy.address) as api,
    ):
        ok(api.append("a", 1), 201)
        # the server's own error
        assert refused(api.call("GET", "/v0/topics/b"), 404, "topic_not_found")
        server.stop()
        for method, body in (("GET", None), ("POST", {"records": []}), ("DELETE", None)):
            for accept in ("", "*/*", "application/json"):
                headers = {"Accept": accept} if accept else {}
                answer = api.call(method, "/v0/topics/a", body, headers)
                refused(answer, 503, "not_ready")
                assert answer.headers["retry-after"] == "2"
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["access-control-allow-origin"] == "*"
        for path in ("/v0/watch?topic=a", "/v0/topics/a/work?node=n"):
            for accept in ("text/event-stream", "application/json, text/event-stream;q=0.5"):
                answer = api.call("GET", path, None, {"Accept": accept})
                assert answer.status == 200
                assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                assert answer.headers["access-control-allow-origin"] == "*"
                error = error_event(503, "the proxy cannot reach the server")
                assert answer.body == error + RETRY
        server.start()
        ok(api.append("a", 2))


class HttpxLoop:
    """Reconnects as its own stream specifies, and gives up after any status other than 200."""

    def __init__(self, url: str) -> None:
        self._httpx = pytest.importorskip("httpx", reason="httpx is not installed")
        self._sse = pytest.importorskip("httpx_sse", reason="httpx-sse is not installed")
        self._url = url
        self._is_over = threading.Event()
        self.events: list[Event] = []
        self.statuses: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        last_id, retry_s = "", 1.0
        with self._httpx.Client(trust_env=False, timeout=5.0) as client:
            while not self._is_over.is_set():
                headers = {"Last-Event-ID": last_id} if last_id else {}
                with (
                    suppress(self._httpx.TransportError),
                    self._sse.connect_sse(client, "GET", self._url, headers=headers) as source,
                ):
                    self.statuses.append(source.response.status_code)
                    if source.response.status_code != 200:
                        return
                    for event in source.iter_sse():
                        last_id = event.id or last_id
                        retry_s = retry_s if event.retry is None else event.retry / 1000
                        self.events.append(
                            {"event": event.event, "id": event.id, "data": event.data}
                        )
                        if self._is_over.is_set():
                            return
                self._is_over.wait(retry_s)

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        return until(lambda: [*self.events], enough, WAIT_S)


@KINDS
@pytest.mark.parametrize("client", [NodeSource, HttpxLoop], ids=["eventsource", "httpx-sse"])
def test_an_eventsource_continues_after_a_restart_of_the_server(
    kind: type[Proxy], client: type[NodeSource] | type[HttpxLoop], tmp_path: Path
) -> None:
    """It reconnects at least once while the server is down, and gets the proxy's response."""
    with (
        Server(tmp_path / "data", host=own_address(), port=next_port()) as server,
        running(kind, tmp_path / "site", server.address) as proxy,
    ):
        url = at(proxy.address, "/v0/watch?topic=a&heartbeat_ms=1000")
        with Api(proxy.address) as api, client(url) as source:
            ok(api.append("a", 1, durability="fsync"), 201)
            source.wait(lambda events: records(events) == [1])
            server.stop()
            source.wait(lambda events: any("cannot reach" in one["data"] for one in events))
            server.start()
            ok(api.append("a", 2))
            assert records(source.wait(lambda events: len(records(events)) >= 2)) == [1, 2]


# Connections, logs and timeouts


@KINDS
def test_requests_share_a_connection_to_the_server(kind: type[Proxy], tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data") as server,
        Relay(server.address) as relay,
        running(kind, tmp_path / "site", relay.address) as proxy,
    ):
        for _ in range(5):
            with Api(proxy.address) as api:
                assert api.append("a", 1).status in (200, 201)
                ok(api.diff("a"))
        assert relay.connections == 1


@KINDS
def test_no_log_of_the_proxy_contains_a_query_string(kind: type[Proxy], tmp_path: Path) -> None:
    path = f"/v0/watch?topic=a&token={KEY}"
    # Caddy logs an error of its site only at this level.
    changes = {"    log {\n": "    debug\n    log {\n"} if kind is Caddy else {}
    with (
        Server(tmp_path / "data", api_keys=KEY) as server,
        running(kind, tmp_path / "site", server.address, changes) as proxy,
        Api(proxy.address) as api,
    ):
        with Api(server.address, token=KEY) as direct:
            ok(direct.append("a", 1), 201)
        with Stream(proxy.address, path) as stream:
            assert seqs(stream.records(1)) == [1]
            server.kill()
        assert api.call("GET", path).status == 503
        assert api.call("GET", path, None, {"X-Filler": "x" * 70_000}).status in (400, 431, 503)
    if kind is Nginx:
        assert '"GET /v0/watch" 503' in proxy.logged
    else:
        assert "/v0/watch" in proxy.logged
    assert KEY not in proxy.logged
    assert "token" not in proxy.logged


def test_nginx_closes_streams_that_are_silent_beyond_heartbeats_and_long_polls(
    server: Server, tmp_path: Path
) -> None:
    cut = {"proxy_read_timeout 75s": f"proxy_read_timeout {CUT_S}s"}
    with running(Nginx, tmp_path / "site", server.address, cut) as proxy, Api(proxy.address) as api:
        ok(api.append("silence", 1), 201)
        path = "/v0/watch?topic=silence&tail=true&heartbeat_ms="
        began = time.monotonic()
        with (
            Stream(proxy.address, f"{path}1000") as beating,
            Stream(proxy.address, f"{path}{HEARTBEAT_MAX_MS}") as silent,
        ):
            assert [*silent.events()][1:] == []  # the proxy has cut it
            assert time.monotonic() - began > CUT_S - 1
            while time.monotonic() - began < 1.5 * CUT_S:
                beating.block()
            ok(api.append("silence", 2))
            assert seqs(beating.records(1)) == [2]


def test_the_times_and_sizes_of_the_sites_fit_the_server() -> None:
    nginx, caddy = ((DEPLOY / name).read_text() for name in SITES)
    idle_ms = 1000 * Timings().idle_s
    assert ms_of(nginx, "proxy_read_timeout") > 1.2 * max(HEARTBEAT_MAX_MS, WAIT_MS_MAX)
    assert ms_of(nginx, "keepalive_timeout") < idle_ms
    assert ms_of(caddy, "keepalive") < idle_ms
    assert f"client_max_body_size {Settings().max_body_bytes >> 20}m;" in nginx
