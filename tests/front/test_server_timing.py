"""Server-Timing: the member ``performance`` as a header field."""

from __future__ import annotations

import re
import time

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import RECORD, running
from topics.front.answers import Answer
from topics.front.server_timing import server_timing


def field(body: bytes) -> bytes:
    [(name, value)] = server_timing(Answer(200, body), time.monotonic_ns())
    assert name == b"server-timing"
    return value


@pytest.mark.parametrize(
    ("members", "value"),
    [
        (b'"server_total_ms":0.620', b"total;dur=0.620"),
        (
            b'"server_total_ms":0.620,"wal_append_ms":0.100,"fsync_ms":0.390',
            b"total;dur=0.620, wal;dur=0.100, fsync;dur=0.390",
        ),
        (
            b'"server_total_ms":0.4,"throttle_wait_ms":12.5,"records_scanned":3',
            b"total;dur=0.4, throttle;dur=12.5",
        ),
    ],
)
def test_each_time_of_the_performance_member_is_a_metric(members: bytes, value: bytes) -> None:
    assert field(b'{"x":{"performance":{"a":1}},"performance":{%b}}' % members) == value


@pytest.mark.parametrize("body", [b"", b"up 1\n", b'{"data":"\\"performance\\":{}}"}'])
def test_a_response_without_that_member_has_only_its_total(body: bytes) -> None:
    assert re.fullmatch(rb"total;dur=[0-9]+\.[0-9]{3}", field(body))


@pytest.mark.parametrize("gzip", ["", "gzip"])
async def test_the_field_has_the_values_of_the_response_body(gzip: str) -> None:
    shards = FakeShards(topics={"a": [{"data": "x" * 2000}]})
    async with running(shards=shards) as run:
        client = await run.connect()
        for method, path, body in (
            ("POST", "/v0/topics/a?server_timing=true", RECORD),
            ("POST", "/v0/topics/a/diff?server_timing=true", b"{}"),
            ("GET", "/v0/topics?prefix=a&server_timing=true", b""),
            ("GET", "/v0/topics/none?server_timing=true", b""),
            ("GET", "/v0/health?server_timing=true", b""),
        ):
            answer = await client.request(method, path, body, accept_encoding=gzip)
            total = answer.json()["performance"]["server_total_ms"]
            name, _, shown = answer.headers["server-timing"].split(", ")[0].partition(";dur=")
            assert (name, float(shown)) == ("total", total)
