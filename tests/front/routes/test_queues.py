"""The routes of queues: what reaches the shard, pages of leases, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_backend import FakeBackend
from tests.support.front import LANES, bearer, running
from topics.errors import NotAQueue, Throttled
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, P, R

KEYS = "boss,reader:read,writer:write,worker:read+write:t."
CHUNKED = {"content_length": "", "transfer_encoding": "chunked"}
NAMED = b'{"node":"n","seqs":[1]}'
POSTS = ("claim", "ack", "nack", "extend")
PATHS = [
    *(("POST", f"/v0/topics/t.a/{name}", NAMED) for name in (*POSTS, "redrive")),
    ("GET", "/v0/topics/t.a/work?node=n", b""),
    ("GET", "/v0/topics/t.a/leases", b""),
]
EVERY_CALL = pytest.mark.parametrize(
    ("method", "path", "body"), PATHS, ids=[path.rpartition("/")[2] for _, path, _ in PATHS]
)


class Logs(FakeBackend):
    """Every topic that exists is a log, and topic ``busy`` is throttled."""

    def _answer(
        self, call: Call[P, R], params: Any, raw: bytes, shard: int
    ) -> tuple[tuple[Any, ...], bytes]:
        answer = super()._answer(call, params, raw, shard)
        if params.topic == "t.busy":
            raise Throttled("too much", retry_after_ms=1500)
        if call in (calls.CLAIM, calls.WORK_OPEN):
            raise NotAQueue(params.topic)
        return answer


@LANES
@pytest.mark.parametrize("name", POSTS)
async def test_what_a_worker_says_reaches_the_shard_as_it_was_sent(fast: bool, name: str) -> None:
    async with running(fast=fast, keys=KEYS, backend=FakeBackend(topics={"t.a": []})) as run:
        client = await run.connect()
        path = f"/v0/topics/t.a/{name}"
        answer = await client.ask("POST", path, NAMED, authorization=bearer("worker"))
        assert (answer.status, answer.json()["topic"]) == (200, "t.a")
        [(method, params, body)] = run.backend.calls
        assert (method, body) == (f"queue.{name}", NAMED)
        assert (params.topic, params.at > 0) == ("t.a", True)


async def test_a_redrive_needs_no_body_and_tells_the_names_that_the_key_may_see() -> None:
    async with running(keys=KEYS, backend=FakeBackend(topics={"t.a": []})) as run:
        client = await run.connect()
        for key, body, prefixes in (("boss", b"", None), ("worker", b'{"to":"t.b"}', ["t."])):
            path = "/v0/topics/t.a/redrive"
            assert (await client.ask("POST", path, body, authorization=bearer(key))).status == 200
            method, params, raw = run.backend.calls[-1]
            assert (method, raw) == ("queue.redrive", body)
            assert params == calls.RedriveParams("t.a", prefixes, params.at)


# Refusals


@LANES
@EVERY_CALL
@pytest.mark.parametrize(
    ("key", "missing"),
    [("nobody", ""), ("reader", "write"), ("writer", "read"), ("worker", "prefix")],
)
async def test_every_call_needs_its_scopes_and_prefixes(
    fast: bool, method: str, path: str, body: bytes, key: str, missing: str
) -> None:
    name = path.rpartition("/")[2].partition("?")[0]
    if missing == "prefix":
        path = path.replace("t.a", "elsewhere")
    needed = {
        "ack": {"write"},
        "nack": {"write"},
        "extend": {"write"},
        "leases": {"read"},
    }.get(name, {"read", "write"})
    async with running(fast=fast, keys=KEYS, backend=Logs()) as run:
        client = await run.connect()
        answer = await client.ask(method, path, body, authorization=bearer(key))
        if not missing:
            assert (answer.status, answer.code) == (401, "unauthorized")
        elif missing == "prefix":
            assert (answer.status, answer.code) == (403, "forbidden")
        elif missing in needed:
            assert (answer.status, answer.code) == (403, "forbidden")
            scope = answer.json()["error"]["detail"]["scope"]
            assert scope == ("read+write" if len(needed) == 2 else missing)
        else:
            assert (answer.status, answer.code) == (404, "topic_not_found")


@LANES
@EVERY_CALL
async def test_another_method_is_told_the_right_one(
    fast: bool, method: str, path: str, body: bytes
) -> None:
    other = "GET" if method == "POST" else "POST"
    async with running(fast=fast) as run:
        client = await run.connect()
        answer = await client.ask(other, path, body)
        assert (answer.status, answer.headers["allow"]) == (405, method)


@LANES
@pytest.mark.parametrize("name", POSTS)
@pytest.mark.parametrize(
    ("body", "fields", "status", "code"),
    [
        (b"", {}, 400, "invalid_request"),
        (b"", {"content_length": "0"}, 400, "invalid_request"),
        (
            b"0\r\n\r\n",
            {"content_length": "", "transfer_encoding": "chunked"},
            400,
            "invalid_request",
        ),
        (b"{", {}, 400, "invalid_request"),
        (NAMED, {"content_type": "text/plain"}, 415, "unsupported_media_type"),
        (b" " * 200_000, {}, 413, "payload_too_large"),
    ],
    ids=["none", "empty", "no chunk", "no JSON", "no JSON type", "long"],
)
async def test_a_worker_must_say_something_that_can_be_read(
    fast: bool, name: str, body: bytes, fields: dict[str, str], status: int, code: str
) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        client = await run.connect()
        answer = await client.ask("POST", f"/v0/topics/a/{name}", body, **fields)
        assert (answer.status, answer.code) == (status, code)


@EVERY_CALL
async def test_a_shard_that_is_away_is_a_503(method: str, path: str, body: bytes) -> None:
    async with running(backend=FakeBackend(ready=False)) as run:
        client = await run.connect()
        answer = await client.ask(method, path, body)
        assert (answer.status, answer.code) == (503, "not_ready")
        assert answer.headers["retry-after"]


@pytest.mark.parametrize(("method", "path", "body"), [PATHS[0], PATHS[-2]], ids=["claim", "work"])
async def test_a_log_is_no_queue_and_a_busy_server_says_when_to_come_back(
    method: str, path: str, body: bytes
) -> None:
    async with running(backend=Logs(topics={"t.a": [], "t.busy": []})) as run:
        client = await run.connect()
        answer = await client.ask(method, path, body)
        assert (answer.status, answer.code) == (409, "not_a_queue")
        answer = await client.ask(method, path.replace("t.a", "t.busy"), body)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (
            429,
            "throttled",
            "2",
        )


# Leases


@LANES
async def test_leases_come_in_pages(fast: bool) -> None:
    backend = FakeBackend(topics={"a": []}, leases=250)
    async with running(fast=fast, backend=backend) as run:
        client, seqs, path = await run.connect(), list[int](), "/v0/topics/a/leases"
        sizes, more = list[int](), ""
        while True:
            page = (await client.ask("GET", path + more)).json()
            assert page.keys() - {"next_cursor"} == {"leases", "performance"}
            seqs += page["leases"]
            sizes.append(len(page["leases"]))
            if "next_cursor" not in page:
                break
            more = f"?cursor={page['next_cursor']}"
        assert (seqs, sizes) == ([*range(1, 251)], [100, 100, 50])


@LANES
async def test_only_a_key_that_may_write_is_shown_lease_ids(fast: bool) -> None:
    backend = FakeBackend(topics={"t.a": []})
    async with running(fast=fast, keys=KEYS, backend=backend) as run:
        client = await run.connect()
        for key, with_ids in (("reader", False), ("worker", True)):
            path = "/v0/topics/t.a/leases?node=n%20m&page_size=7"
            assert (await client.ask("GET", path, authorization=bearer(key))).status == 200
            _, params, _ = backend.calls[-1]
            assert params == calls.LeasesParams("t.a", 0, 7, "n m", with_ids, params.at)


@LANES
@pytest.mark.parametrize(
    "query", ["page_size=x", "cursor=!", "cursor=e30", "node=", "node=" + "n" * 129]
)
async def test_a_wrong_query_of_leases_is_refused(fast: bool, query: str) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        client = await run.connect()
        answer = await client.ask("GET", f"/v0/topics/a/leases?{query}")
        assert (answer.status, answer.code) == (400, "invalid_request")
