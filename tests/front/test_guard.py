"""Admission: refusals keep the connection usable, and the decision for a head is reused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.front import RECORD, running
from topics.engine.access import Access
from topics.errors import Forbidden, InvalidRequest
from topics.formats.api.request_heads import parse_head
from topics.front.authorization import key_of
from topics.front.data.records import RETURN_SEQS
from topics.front.request import Request


# Refusals that the rows of `tests.contract.refusal_rows` cannot express.
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("GET", "/v0/topics/", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics/a%2Fb", b"", {}, 404, "not_found"),
        ("BREW", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("post", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("POST", "/v0/topics/a", b"", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a", RECORD, {"content_type": ""}, 415, "unsupported_media_type"),
        ("POST", "/v0/topics/a", RECORD, {"content_encoding": "gzip"}, 400, "invalid_request"),
        ("POST", "/v0/topics/bug", RECORD, {}, 500, "internal"),
        ("POST", "/v0/topics/shard-bug", RECORD, {}, 500, "internal"),
    ],
)
async def test_each_refusal_has_its_status_and_code_and_keeps_the_connection_open(
    method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    async with running() as run:
        client = await run.connect()
        answer = await client.request(method, path, body, **headers)
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["content-type"] == "application/json"
        if status == 405:
            assert answer.headers["allow"]
        assert b"secret" not in answer.body
        if "content_encoding" in headers and code == "invalid_request":
            assert await client.is_closed()
        else:
            assert (await client.request("GET", "/v0/health")).status == 200


HEAD = b"GET /v0/topics HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("first_bytes", "is_known"),
    [
        (HEAD + b"Authorization: Bearer boss\r\n\r\n", True),
        (HEAD + b"AUTHORIZATION:\tbearer  boss \r\nX-More: begins", True),
        (HEAD + b"Authorization: Bearer Boss\r\n\r\n", False),
        (HEAD + b"Authorization: Bearer bos", False),
        (HEAD + b"Authorization: Basic boss\r\n\r\n", False),
        (HEAD + b"X-Authorization: Bearer boss\r\n\r\n", False),
        (b"GET /v0/watch?topic=a&token=boss HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET /v0/watch?topic=a&token=b HTTP/1.1\r\nHost: x\r\n\r\n", False),
        (b"\x16\x03\x01\xff", False),
        (b"", False),
    ],
)
def test_the_key_of_a_new_client_is_found_in_its_first_bytes(
    first_bytes: bytes, is_known: bool
) -> None:
    access = Access.parse("reader:read,boss")
    boss = access.authenticate(b"boss")
    assert boss is not None
    assert key_of(access, first_bytes) == (boss.digest if is_known else None)
    assert key_of(Access(), first_bytes) is None


async def test_a_renamed_request_equals_a_request_with_that_name() -> None:
    async with running(keys="writer:write:t.,other:write:u.,boss") as run:
        guard = run.server.guard

        def admitted(topic: str, key: str = "writer") -> Request:
            line = f"POST /v0/topics/{topic}?return_seqs=false&x=y HTTP/1.1\r\n"
            fields = f"Host: localhost\r\nAuthorization: Bearer {key}\r\nAccept-Encoding: gzip\r\n"
            body = (
                "Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n"
            )
            return guard.admit(parse_head(f"{line}{fields}{body}\r\n".encode()))

        first, other = admitted("t.a"), admitted("t.b")
        renamed = guard.renamed(first, "t.b")
        assert renamed == replace(other, query=first.query)
        assert first.query[RETURN_SEQS] is other.query[RETURN_SEQS] is False
        assert guard.renamed(first, "u.a") is None
        with pytest.raises(Forbidden):
            admitted("u.a")
        head = b"PUT /v0/topics/t.a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer boss\r\n"
        with pytest.raises(InvalidRequest, match="more than one"):
            guard.admit(parse_head(head + b"idempotency-key: a\r\n" * 2 + b"\r\n"))
