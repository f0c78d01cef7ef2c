"""The requests of the client, and their retries."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from tests.support.proxies import certificate
from topics.client import Retry
from topics.client.threads import Stop
from topics.spark.client.http import ADVICE, RequestError, TopicsClient

BODY = b'{"create":false,"records":[{"data":1},{"data":2}]}'
THROTTLED = Fault(status=429, code="throttled", retry_after="3")
NOT_READY = Fault(status=503, code="not_ready")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses of the client instead of sleeping."""
    recorded: list[float] = []
    monkeypatch.setattr(Stop, "wait", lambda _stop, pause_s: recorded.append(pause_s))
    return recorded


def client_of(stub: StubServer, **fields: Any) -> TopicsClient:
    retry = Retry(deadline=300, first=0.5, most=2.0, tries=5, connects=5)
    return TopicsClient(stub.url, connect_timeout=2, timeout=5, **{"retry": retry, **fields})


def test_an_append_sends_key_and_type_and_requests_no_seqs(stub: StubServer) -> None:
    topic = stub.make("a:b.c")
    with client_of(stub, key="secret") as client:
        receipt = client.append("a:b.c", BODY, 2, "k1")
    assert (
        receipt.first_seq,
        receipt.last_seq,
        receipt.head_seq,
        receipt.count,
        receipt.deduped,
    ) == (1, 2, 2, 2, False)
    assert stub.seen == [("POST", "/v0/topics/a:b.c?return_seqs=false", 200)]
    sent = stub.headers[0]
    assert (sent["Idempotency-Key"], sent["Content-Type"], sent["Authorization"]) == (
        "k1",
        "application/json",
        "Bearer secret",
    )
    assert "Content-Encoding" not in sent
    assert topic.records == [{"data": 1}, {"data": 2}]


def test_the_error_for_a_long_tag_names_its_record(stub: StubServer) -> None:
    stub.make("t")
    detail = {"field": "tag", "max": 256}
    stub.faults.append(Fault(status=400, code="invalid_request", detail=detail))
    body = b'{"records":[{"data":1,"tag":"a"},{"data":2,"tag":"%b"}]}' % (b"x" * 300)
    message = f"invalid_request: .*: record 2 of the 2 of its request has '{'x' * 80}...'"
    with client_of(stub) as client, pytest.raises(RequestError, match=message):
        client.append("t", body, 2, "k")


def test_a_request_fails_if_retry_after_is_too_long(stub: StubServer, pauses: list[float]) -> None:
    stub.make("t")
    stub.faults.append(replace(THROTTLED, retry_after="86400"))
    with client_of(stub) as client, pytest.raises(RequestError, match="throttled"):
        client.append("t", BODY, 2, "k")
    assert pauses == []


def test_a_server_that_stays_busy_fails_with_its_code_and_advice(
    stub: StubServer, pauses: list[float]
) -> None:
    topic = stub.make("t")
    stub.faults.extend([NOT_READY] * 100)
    with client_of(stub) as client, pytest.raises(RequestError) as failure:
        client.append("t", BODY, 2, "k")
    assert (failure.value.status, failure.value.code) == (503, "not_ready")
    assert ADVICE["not_ready"] in str(failure.value)
    assert len(stub.statuses("POST")) == 6
    assert topic.records == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(drop=True),
        Fault(drop=True, commit=True),
        Fault(cut=True, commit=True),
        replace(NOT_READY, commit=True),
    ],
    ids=[
        "reset before",
        "reset after the write",
        "reset within the response",
        "refused after the write",
    ],
)
def test_an_append_with_a_broken_response_is_retried_and_written_once(
    stub: StubServer, pauses: list[float], fault: Fault
) -> None:
    topic = stub.make("t")
    stub.faults.append(fault)
    with client_of(stub) as client:
        receipt = client.append("t", BODY, 2, "k")
        assert client.retries == 1
    assert receipt.deduped is fault.commit
    assert (receipt.first_seq, receipt.last_seq) == (1, 2)
    assert topic.records == [{"data": 1}, {"data": 2}]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "record_too_large"),
        (403, "forbidden"),
        (413, "payload_too_large"),
        (422, "topic_full"),
    ],
)
def test_other_refusals_fail_immediately_in_one_line(
    stub: StubServer, pauses: list[float], status: int, code: str
) -> None:
    stub.make("t")
    stub.faults.append(Fault(status=status, code=code))
    with client_of(stub) as client, pytest.raises(RequestError) as failure:
        client.append("t", BODY, 2, "k")
    assert str(failure.value) == f'topic "t": {status} {code}: refused with {code} ({ADVICE[code]})'
    assert stub.statuses("POST") == [status]
    assert pauses == []


def test_a_response_for_other_records_is_refused(stub: StubServer) -> None:
    stub.make("t").append("t", [{"data": 0}], "k")
    with (
        client_of(stub) as client,
        pytest.raises(RequestError, match="2 records sent with key k"),
    ):
        client.append("t", BODY, 2, "k")


def test_state_is_none_for_an_absent_topic_and_put_creates_it(stub: StubServer) -> None:
    with client_of(stub) as client:
        assert client.state("t") is None
        assert client.put_topic("t", {"idempotency_window_ms": 5}).created
        state = client.state("t")
    assert state is not None
    assert state.config["idempotency_window_ms"] == 5
    assert stub.seen[0] == ("GET", "/v0/topics/t?touch=false", 404)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_error_of_an_unreachable_server_names_the_address(pauses: list[float]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        TopicsClient(url, retry=Retry(connects=2)) as client,
        pytest.raises(RequestError) as failure,
    ):
        client.state("t")
    assert (failure.value.status, failure.value.code) == (0, "unreachable")
    assert url in str(failure.value)
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("scheme", "reason"), [("https", "CERTIFICATE_VERIFY_FAILED"), ("http", "WRONG_VERSION_NUMBER")]
)
def test_a_failed_tls_handshake_is_not_retried_and_its_error_contains_advice(
    scheme: str, reason: str, tmp_path: Path, pauses: list[float]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        if scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            pem = certificate(tmp_path)
            context.load_cert_chain(pem, pem.with_suffix(".key"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"https://localhost:{server.server_port}"
        message = rf"no answer tls_failed: .*{reason}.* \(set the option caFile or SSL_CERT_FILE"
        with TopicsClient(address) as client, pytest.raises(RequestError, match=message):
            client.state("t")
        server.shutdown()
        thread.join()
    assert pauses == []


def test_a_restarted_server_needs_another_connection(stub: StubServer) -> None:
    stub.make("t")
    stub.faults.extend([Fault(drop=True), None])
    with client_of(stub, retry=Retry(first=0.0)) as client:
        client.append("t", BODY, 2, "k")
        client.state("t")
        assert client.connections == 2
