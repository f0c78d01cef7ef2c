"""Heads that are made to cost much: they come in pieces, have too much of something, or are not
ASCII.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import time
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.front import FakeBackend, request, running
from topics.errors import InvalidRequest
from topics.formats.api import request_heads
from topics.formats.api.fields import LIST_MAX, list_members
from topics.formats.api.request_heads import FIELDS_MAX, PartialHead, parse_head
from topics.front.body_limits import SHORT_BODY_BYTES
from topics.front.media import accepts_gzip
from topics.front.queries import PARAMETERS_MAX, QUERY_MAX_BYTES, find_token
from topics.front.routes.table import ROUTES

LANES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "cold"])
HEAD = b"POST /v0/topics/a HTTP/1.1\r\nhost: x\r\nx-a: \xc3\xa9\r\n\r\n"


@given(st.binary(max_size=30), st.lists(st.integers(1, 20), min_size=1))
def test_a_head_ends_at_the_same_byte_in_any_pieces(behind: bytes, sizes: list[int]) -> None:
    part, pos, turn = PartialHead(), 0, 0
    wire = HEAD + behind
    while True:
        piece = wire[pos : pos + sizes[turn % len(sizes)]]
        used = part.feed(piece)
        pos += len(piece) if used is None else used
        turn += 1
        if used is not None:
            break
    assert (part.whole(), wire[pos:]) == (HEAD, behind)


@pytest.mark.parametrize("bad", [b"\n", b"\ra", b"\0", b"\x7f"])
def test_a_head_in_pieces_is_refused_with_the_byte_that_spoils_it(bad: bytes) -> None:
    part = PartialHead()
    said = [bytes([byte]) for byte in b"GET / HTTP/1.1\r\nx: " + bad]
    for byte in said[:-1]:
        part.feed(byte)
    with pytest.raises(InvalidRequest):
        part.feed(said[-1])


def test_every_byte_of_a_head_that_drips_in_is_looked_at_twice_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0

    class Counted:
        def search(self, part: bytearray, pos: int) -> re.Match[bytes] | None:
            nonlocal looked_at
            looked_at += len(part) - pos
            return NEVER.search(part, pos)

    NEVER = request_heads.NEVER_IN_HEAD  # noqa: N806 - it is the pattern's own name
    monkeypatch.setattr(request_heads, "NEVER_IN_HEAD", Counted())
    part = PartialHead()
    for _ in range(20_000):
        part.feed(b"a")
    assert looked_at <= 40_000


@LANES
async def test_an_empty_line_in_pieces_before_a_request_means_nothing(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        for piece in (
            b"\r",
            b"\n\r",
            b"\n",
            b"\r\n\r",
            b"\n\r\n" + request("POST", "/v0/topics/a", b'{"records":[]}'),
        ):
            await client.say(piece)
            await run.until(lambda: all(not c.buffer[c.pos :] for c in run.server.connections))
        assert (await client.hear()).status == 201


def test_a_head_has_so_many_fields_and_no_more() -> None:
    fields = b"a:\r\n" * (FIELDS_MAX - 1)
    assert len(parse_head(b"GET / HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n").fields) == FIELDS_MAX
    with pytest.raises(InvalidRequest, match="more than"):
        parse_head(b"GET / HTTP/1.1\r\nhost: x\r\na:\r\n" + fields + b"\r\n")


def test_a_list_is_read_so_far_and_no_further() -> None:
    assert list_members(b" A ,b") == [b"a", b"b"]
    assert list_members(b"a," * LIST_MAX + b"close") == [b"a"] * LIST_MAX


def test_blanks_in_an_accept_encoding_are_not_tried_in_every_split() -> None:
    began = time.process_time()
    assert not accepts_gzip(b"gzip" + b" " * 60_000 + b"@")
    assert time.process_time() - began < 0.2  # it takes seconds otherwise


@pytest.mark.parametrize(
    ("query", "token"),
    [
        (b"token=k", b"k"),
        (b"a&token=%6b&token=2", b"k"),
        (b"token=", b""),
        (b"token=%C3%A9+", b"\xc3\xa9 "),
        (b"atoken=k&token", None),
        (b"", None),
        (b"a&" * 30_000 + b"token=k", b"k"),
    ],
)
def test_a_token_is_found_wherever_it_stands(query: bytes, token: bytes | None) -> None:
    assert find_token(query) == token


TOO_MUCH = ["a&" * PARAMETERS_MAX, "a" * (QUERY_MAX_BYTES + 1)]


@LANES
@pytest.mark.parametrize("query", TOO_MUCH, ids=["parameters", "bytes"])
@pytest.mark.parametrize(
    "path", ["/v0/topics/a", "/v0/topics", "/v0/watch/w", "/v0/ws", "/v0/health"]
)
async def test_too_long_a_query_is_told_to_those_with_a_key_only(
    fast: bool, query: str, path: str
) -> None:
    async with running(fast=fast, keys="sesame") as run:
        client = await run.connect()
        if path != "/v0/health":
            assert (await client.ask("GET", f"{path}?{query}")).code == "unauthorized"
        answer = await client.ask("GET", f"{path}?{query}", authorization="Bearer sesame")
        assert (answer.status, answer.code) == (400, "invalid_request")


@LANES
async def test_a_query_just_within_the_bounds_is_read(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        for query in ("a&" * (PARAMETERS_MAX - 1), "a" * QUERY_MAX_BYTES):
            assert (await client.ask("GET", f"/v0/topics?{query}")).status == 200


RECORDS = b'{"records":[]}'
ODD = ["%C3%A9", "%ED%A0%80", "%00"]  # a character, half of one, none


@pytest.mark.slow
@LANES
@pytest.mark.parametrize("keys", ["", "sesame"], ids=["open", "keys"])
async def test_what_is_not_ascii_is_answered_on_every_route(
    fast: bool, keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(fast=fast, keys=keys, backend=FakeBackend(topics={"a": []})) as run:
        for route in ROUTES:
            for method in route.methods:
                for target in _odd_targets(route.path):
                    for fields in ({}, {"authorization": "Bearer sesame"} if keys else None):
                        if fields is not None:
                            client = await run.connect()
                            await client.say(
                                request(
                                    method, target, RECORDS if method != "GET" else b"", **fields
                                )
                            )
                            answer = await client.hear(method=method)
                            assert answer.status < 500, (method, target, fields)
    assert not [record for record in caplog.records if record.name.startswith("topics")]


def _odd_targets(pattern: str) -> list[str]:
    plain = pattern.replace(":topic", "a").replace(":wid", "w")
    names = [pattern.replace(":topic", odd).replace(":wid", odd) for odd in ODD if ":" in pattern]
    queries = [
        "x={}",
        "{}",
        "token={}",
        "prefix={}",
        "cursor={}",
        "return_seqs={}",
        "touch={}",
        "page_size={}",
        "lenient={}",
    ]
    return [*names, *(f"{plain}?{query.format(odd)}" for query in queries for odd in ODD)]


FIELDS = [
    "accept", "accept-encoding", "authorization", "content-encoding", "content-type", "idempotency-key", "last-event-id",
    "origin", "connection", "upgrade", "expect", "sec-websocket-key", "sec-websocket-version", "host", "x-other",
]  # fmt: skip


@pytest.mark.slow
@LANES
async def test_a_field_that_is_not_ascii_is_answered_on_every_route(
    fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        for route in ROUTES:
            for field in FIELDS:
                client = await run.connect()
                said: dict[str, Any] = {field.replace("-", "_"): "é\xff"}
                path = route.path.replace(":topic", "a").replace(":wid", "w")
                method = route.methods[0]
                await client.say(request(method, path, RECORDS if method != "GET" else b"", **said))
                answer = await client.hear(method=method)
                assert answer.status < 500, (route, field)
    assert not [record for record in caplog.records if record.name.startswith("topics")]


SHORT = ["POST /v0/topics/a/diff", "POST /v0/topics/a/delete", "PUT /v0/topics/a", "POST /v0/watch"]


@LANES
@pytest.mark.parametrize("line", SHORT)
async def test_what_is_decoded_in_one_turn_has_a_bound_of_its_own(fast: bool, line: str) -> None:
    method, path = line.split()
    body = b'{"node":[' + b'"",' * 100_000 + b'""]}'
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with running(fast=fast, backend=FakeBackend(topics={"a": []})) as run:
        for wire in (
            request(method, path, body),
            request(method, path, gzip.compress(body), content_encoding="gzip"),
            request(method, path, content_type="application/json", transfer_encoding="chunked")
            + chunks,
        ):
            client = await run.connect()
            with contextlib.suppress(trio.BrokenResourceError):
                await client.say(wire)
            answer = await client.hear()
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert answer.json()["error"]["detail"] == {"max": SHORT_BODY_BYTES}
        assert not run.backend.calls
        client = await run.connect()
        assert (await client.ask("POST", "/v0/topics/a", b'{"records":[%b]}' % body)).status == 200
