"""The documented surface, once through each lane."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
import trio

from tests.front.support import FakeBackend, running
from topics.config import Settings
from topics.formats.wire.calls import AppendParams

LANES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "cold"])
RECORD = b'{"records":[{"data":1}]}'
KEYS = "boss,reader:read,writer:write:t.,admin:admin+delete"


def bearer(key: str) -> str:
    return f"Bearer {key}"


@LANES
async def test_a_topic_lives_its_life(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        assert (await client.ask("PUT", "/v0/topics/a", b'{"ttl_ms":5}')).json()["config"] == {
            "ttl_ms": 5
        }
        assert (await client.ask("PUT", "/v0/topics/a")).status == 200
        assert (await client.ask("POST", "/v0/topics/a", RECORD)).json()["head_seq"] == 1
        assert (await client.ask("POST", "/v0/topics/b", RECORD)).status == 201
        assert (await client.ask("POST", "/v0/topics/a/diff", b"{}")).json()["records"] == [
            {"data": 1}
        ]
        assert (await client.ask("POST", "/v0/topics/a/diff")).status == 200
        assert (await client.ask("GET", "/v0/topics/a?touch=false")).json()["touch"] is False
        assert (await client.ask("DELETE", "/v0/topics/a?if_empty=true")).code == "topic_not_empty"
        assert (await client.ask("DELETE", "/v0/topics/a")).json()["deleted"] is True
        assert (await client.ask("DELETE", "/v0/topics/a")).json()["deleted"] is False
        assert (await client.ask("GET", "/v0/topics/a")).json()["error"]["detail"] == {"topic": "a"}


@LANES
async def test_parameters_reach_the_shard(fast: bool) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        headers = {
            "authorization": bearer("writer"),
            "idempotency_key": "klé".encode().decode("latin-1"),
        }
        assert (
            await client.ask("POST", "/v0/topics/t.x?return_seqs=false&later=1", RECORD, **headers)
        ).status == 201
        method, params, body = run.backend.calls[-1]
        assert (method, body) == ("append", RECORD)
        assert params.at > 0
        assert params == AppendParams("t.x", "klé", False, ["t."], params.at)


@LANES
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("GET", "/v0/nothing", b"", {}, 404, "not_found"),
        ("GET", "/v0/metrics", b"", {}, 404, "not_found"),
        ("GET", "/v0/topics/", b"", {}, 400, "invalid_request"),
        ("GET", "/v0//topics", b"", {}, 404, "not_found"),
        ("GET", "/v0/topics/a/b", b"", {}, 404, "not_found"),
        ("GET", "/v0/topics/a%2Fb", b"", {}, 404, "not_found"),
        ("POST", "/v0/topics/a%0A", RECORD, {}, 400, "invalid_request"),
        ("POST", "/v0/topics/%C3%A9", RECORD, {}, 400, "invalid_request"),
        ("POST", "/v0/topics/" + "a" * 256, RECORD, {}, 400, "invalid_request"),
        ("PATCH", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("OPTIONS", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("TRACE", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("BREW", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("post", "/v0/topics/a", b"", {}, 405, "method_not_allowed"),
        ("POST", "/v0/topics", b"", {}, 405, "method_not_allowed"),
        ("POST", "/v0/topics/a", RECORD, {"content_type": ""}, 415, "unsupported_media_type"),
        (
            "POST",
            "/v0/topics/a",
            RECORD,
            {"content_type": "text/json"},
            415,
            "unsupported_media_type",
        ),
        (
            "POST",
            "/v0/topics/a",
            RECORD,
            {"content_type": "application/json; charset=latin-1"},
            415,
            "unsupported_media_type",
        ),
        ("POST", "/v0/topics/a", RECORD, {"content_encoding": "br"}, 415, "unsupported_media_type"),
        (
            "PUT",
            "/v0/topics/a",
            b"{}",
            {"content_type": "text/plain"},
            415,
            "unsupported_media_type",
        ),
        ("POST", "/v0/topics/a", b"", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a", b"{", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a?return_seqs=1", RECORD, {}, 400, "invalid_request"),
        ("POST", "/v0/topics/a", RECORD, {"content_encoding": "gzip"}, 400, "invalid_request"),
        ("POST", "/v0/topics/a/diff", b"{}", {}, 404, "topic_not_found"),
        ("GET", "/v0/topics?cursor=%21", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?cursor=e30", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?page_size=ten", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?touch=yes", b"", {}, 400, "invalid_request"),
        ("GET", "/v0/topics?prefix=%ff", b"", {}, 400, "invalid_request"),
        ("POST", "/v0/topics/bug", RECORD, {}, 500, "internal"),
        ("POST", "/v0/topics/shard-bug", RECORD, {}, 500, "internal"),
    ],
)
async def test_every_refusal_has_its_status_and_code_and_the_connection_goes_on(
    fast: bool, method: str, path: str, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        answer = await client.ask(method, path, body, **headers)
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["content-type"] == "application/json"
        if status == 405:
            assert answer.headers["allow"]
        assert b"secret" not in answer.body
        if "content_encoding" in headers and code == "invalid_request":
            assert await client.is_closed()
        else:
            assert (await client.ask("GET", "/v0/health")).status == 200


@LANES
@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/v0/topics/t.a", None, 401),
        ("POST", "/v0/topics/t.a", "Bearer unknown", 401),
        ("POST", "/v0/topics/t.a", "Basic boss", 401),
        ("POST", "/v0/topics/t.a?token=boss", None, 401),
        ("GET", "/v0/nothing", None, 401),
        ("BREW", "/v0/topics/t.a", None, 401),
        ("GET", "/v0/nothing", "Bearer reader", 404),
        ("PATCH", "/v0/topics/t.a", "Bearer reader", 405),
        ("POST", "/v0/topics/t.a", "bearer reader", 403),
        ("POST", "/v0/topics/other", "Bearer writer", 403),
        ("POST", "/v0/topics/t.a", "Bearer writer", 201),
        ("POST", "/v0/topics/t.a/diff", "Bearer writer", 403),
        ("POST", "/v0/topics/t.a/diff", "Bearer reader", 404),
        ("PUT", "/v0/topics/t.a", "Bearer reader", 403),
        ("DELETE", "/v0/topics/t.a", "Bearer admin", 200),
        ("GET", "/v0/topics", "Bearer admin", 403),
        ("GET", "/v0/health", None, 200),
        ("GET", "/readyz", None, 200),
        ("GET", "/", None, 200),
    ],
)
async def test_keys_scopes_and_prefixes(
    fast: bool, method: str, path: str, key: str | None, status: int
) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        body = RECORD if method == "POST" else b""
        for _ in range(2):  # the second time the head is known
            answer = await client.ask(method, path, body, **({"authorization": key} if key else {}))
            assert answer.status == (200 if status == 201 and run.backend.calls[1:] else status)
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"


@LANES
async def test_forbidden_comes_before_a_wrong_body_and_unauthorized_before_all(fast: bool) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        bad = {"content_type": "text/plain"}
        assert (
            await client.ask("POST", "/v0/topics/%20?return_seqs=x", RECORD, **bad)
        ).status == 401
        bad["authorization"] = "Bearer writer"
        assert (
            await client.ask("POST", "/v0/topics/%20?return_seqs=x", RECORD, **bad)
        ).status == 403
        bad["authorization"] = "Bearer boss"
        assert (
            await client.ask("POST", "/v0/topics/%20?return_seqs=x", RECORD, **bad)
        ).status == 415


@LANES
async def test_probes_need_a_key_when_told_so(fast: bool) -> None:
    async with running(fast=fast, keys=KEYS, probe_auth=True) as run:
        client = await run.connect()
        assert (await client.ask("GET", "/v0/health")).status == 401
        assert (await client.ask("GET", "/v0/health", authorization="Bearer writer")).status == 200


@LANES
async def test_probes_tell_a_replay(fast: bool) -> None:
    backend = FakeBackend(ready=False)
    async with running(fast=fast, backend=backend) as run:
        client = await run.connect()
        assert (await client.ask("GET", "/v0/health")).json()["status"] == "ok"
        for method, path, body in (
            ("GET", "/v0/ready", b""),
            ("POST", "/v0/topics/a", RECORD),
            ("GET", "/v0/topics", b""),
        ):
            answer = await client.ask(method, path, body)
            assert (answer.status, answer.code) == (503, "not_ready")
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["detail"]["replay_progress"] == 0.25
        backend.ready = True
        assert (await client.ask("GET", "/v0/ready")).json()["wal_replay_complete"] is True
        head = await client.ask("HEAD", "/healthz")
        assert head.status == 200
        assert int(head.headers["content-length"]) > 0


@LANES
async def test_the_list_is_merged_paged_and_filtered(fast: bool) -> None:
    names = [f"t.{n:03}" for n in range(25)] + ["z"]
    backend = FakeBackend(shards=3, topics={name: [] for name in names})
    async with running(fast=fast, backend=backend, keys="all,some:read:t.") as run:
        client = await run.connect()
        seen: list[str] = []
        path = "/v0/topics?page_size=10"
        while True:
            page = (await client.ask("GET", path, authorization="Bearer some")).json()
            seen += [topic["topic"] for topic in page["topics"]]
            assert "server_total_ms" in page["performance"]
            if "next_cursor" not in page:
                break
            assert "=" not in page["next_cursor"]
            path = "/v0/topics?page_size=10&cursor=" + page["next_cursor"]
        assert seen == names[:-1]
        assert (
            len(
                (
                    await client.ask("GET", "/v0/topics?page_size=0", authorization="Bearer all")
                ).json()["topics"]
            )
            == 1
        )
        assert (
            len(
                (
                    await client.ask("GET", "/v0/topics?page_size=9999", authorization="Bearer all")
                ).json()["topics"]
            )
            == 26
        )
        assert (await client.ask("GET", "/v0/topics?prefix=z", authorization="Bearer some")).json()[
            "topics"
        ] == []
        padded = base64.urlsafe_b64encode(b'{"after":"t.023"}').decode()
        rest = (
            await client.ask("GET", f"/v0/topics?cursor={padded}", authorization="Bearer all")
        ).json()["topics"]
        assert [topic["topic"] for topic in rest] == ["t.024", "z"]


@LANES
async def test_the_exactly_last_page_has_no_cursor(fast: bool) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": [], "b": []})) as run:
        client = await run.connect()
        assert "next_cursor" not in (await client.ask("GET", "/v0/topics?page_size=2")).json()


@LANES
@pytest.mark.parametrize("size", [100, 4096, 4097, 300_000])
@pytest.mark.parametrize("how", ["plain", "chunked", "gzip", "gzip members", "chunked gzip"])
async def test_bodies_of_any_size_and_coding_arrive_whole(fast: bool, size: int, how: str) -> None:
    noise = (
        "".join(chr(32 + (n * n * 7 + n) % 90) for n in range(size))
        .replace('"', "'")
        .replace("\\", "/")
    )
    body = json.dumps({"records": [{"data": noise}]}).encode()
    wire = body
    headers = {"content-type": "application/json"}
    if "gzip" in how:
        half = len(body) // 2
        wire = (
            gzip.compress(body)
            if "members" not in how
            else gzip.compress(body[:half]) + gzip.compress(body[half:])
        )
        headers["content-encoding"] = "gzip"
    if "chunked" in how:
        headers["transfer-encoding"] = "chunked"
        wire = b"".join(
            b"%x;ext=1\r\n%b\r\n" % (len(p), p)
            for p in (wire[i : i + 7001] for i in range(0, len(wire), 7001))
        )
        wire += b"0\r\ntrailer: yes\r\n\r\n"
    else:
        headers["content-length"] = str(len(wire))
    async with running(fast=fast) as run:
        client = await run.connect()
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await client.say(
            f"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode() + wire
        )
        assert (await client.hear()).status == 201
        assert run.backend.topics["a"] == [{"data": noise}]
        assert (await client.ask("GET", "/v0/health")).status == 200


@LANES
async def test_the_limit_holds_on_the_wire_and_after_inflation(fast: bool) -> None:
    settings = Settings(inline_bytes=1024, max_body_bytes=100_000)
    async with running(fast=fast, settings=settings) as run:
        exact = b'{"records":[{"data":"' + b"x" * (100_000 - 25) + b'"}]}'
        assert len(exact) == 100_000
        client = await run.connect()
        assert (await client.ask("POST", "/v0/topics/a", exact)).status == 201
        for body, headers in (
            (exact + b" ", {}),
            (gzip.compress(exact + b" "), {"content_encoding": "gzip"}),
            (
                b"186a1\r\n" + exact + b" \r\n0\r\n\r\n",
                {"content_length": "", "transfer_encoding": "chunked"},
            ),
        ):
            client = await run.connect()
            answer = await client.ask("POST", "/v0/topics/a", body, **headers)
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert answer.headers["connection"] == "close"
            assert await client.is_closed()
        assert len(run.backend.calls) == 1


@LANES
async def test_a_gzip_bomb_and_a_cut_gzip_are_refused(fast: bool) -> None:
    settings = Settings(inline_bytes=1024, max_body_bytes=4_000_000)
    async with running(fast=fast, settings=settings) as run:
        for body, code in (
            (gzip.compress(b" " * 4_000_001), "payload_too_large"),
            (gzip.compress(RECORD)[:-3], "invalid_request"),
            (gzip.compress(RECORD) + b"junk", "invalid_request"),
        ):
            client = await run.connect()
            assert (
                await client.ask("POST", "/v0/topics/a", body, content_encoding="gzip")
            ).code == code
        assert run.backend.calls == []


@LANES
async def test_ten_thousand_equal_heartbeats_may_come_under_gzip(fast: bool) -> None:
    beat = {
        "data": {
            "host": "machine-0001",
            "service": "checkout",
            "status": "up",
            "load": [0.1, 0.2, 0.3],
            "note": "x" * 60,
        }
    }
    body = json.dumps({"records": [beat] * 10_000}).encode()
    packed = gzip.compress(body)
    assert len(body) > 200 * len(packed)
    async with running(fast=fast, settings=Settings(max_body_bytes=len(body))) as run:
        client = await run.connect()
        answer = await client.ask("POST", "/v0/topics/a", packed, content_encoding="gzip")
        assert (answer.status, answer.json()["head_seq"]) == (201, 10_000)


@LANES
async def test_without_shared_memory_a_large_body_is_throttled(fast: bool) -> None:
    async with running(fast=fast, backend=FakeBackend(full=True)) as run:
        client = await run.connect()
        answer = await client.ask("POST", "/v0/topics/a", b'{"records":[]}' + b" " * 5000)
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.headers["retry-after"] == "1"


@LANES
async def test_gzip_out_only_for_long_answers_and_when_asked(fast: bool) -> None:
    async with running(
        fast=fast, backend=FakeBackend(topics={"a": []}, answer_bytes=200_000)
    ) as run:
        client = await run.connect()
        for accept, expected in (
            ("gzip, br", "gzip"),
            ("br, *;q=0.5", "gzip"),
            ("gzip;q=0", None),
            ("", None),
        ):
            answer = await client.ask("POST", "/v0/topics/a/diff", b"{}", accept_encoding=accept)
            assert answer.headers.get("content-encoding") == expected
            assert len(answer.json()["filler"]) == 200_000
        run.backend.answer_bytes = 10
        answer = await client.ask("POST", "/v0/topics/a/diff", b"{}", accept_encoding="gzip")
        assert "content-encoding" not in answer.headers


@LANES
async def test_a_key_has_its_cap_of_requests_in_flight(fast: bool) -> None:
    settings = Settings(max_inflight_per_key=2)
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(fast=fast, settings=settings, keys="one,two", backend=backend) as run:
        assert backend.gate is not None
        clients = [await run.connect() for _ in range(3)]
        for client in clients[:2]:
            await client.say(
                b"POST /v0/topics/slow/diff HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n\r\n"
            )
        await run.until(lambda: backend.waiting == 2)
        answer = await clients[2].ask("GET", "/v0/topics", authorization="Bearer one")
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json()["error"]["detail"] == {"limit": "max_inflight_per_key", "max": 2}
        assert (await clients[2].ask("GET", "/v0/topics", authorization="Bearer two")).status == 200
        assert (await clients[2].ask("GET", "/v0/health")).status == 200
        backend.gate.set()
        for client in clients[:2]:
            assert (await client.hear()).status == 200
        assert (await clients[2].ask("GET", "/v0/topics", authorization="Bearer one")).status == 200


@LANES
async def test_a_bug_is_logged_with_its_traceback(
    fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        assert (await client.ask("POST", "/v0/topics/bug", RECORD)).code == "internal"
    assert "a secret of the inside" in caplog.text
    assert "Traceback" in caplog.text
